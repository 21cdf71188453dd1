//! Coming together, or not.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_ipc::Error as IpcError;
use cuda_mem_ipc::symmetric::{Error, Group, GroupOptions};
use cuda_mem_ipc::transport::{Address, Connection, FIRST_KIND, Listener, PeerPolicy};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, socket_with,
};

use crate::common::World;
use crate::common::pair::{self, Channel, test_name};
use crate::rank::{Crew, LONG, SOON, Seat, options};

#[test]
fn ranks_that_never_join_are_named() {
    pair::play(test_name!(), &[], |cast| {
        let crew = Crew::start(cast, 1);
        let (world, hasty) = (World::new(), GroupOptions { timeout: SOON, ..options() });
        let join = |rank, ranks| {
            Group::join(&world.context, "hasty", rank, ranks, &crew.seat.directory, &hasty).unwrap_err()
        };
        for (rank, ranks, expected) in [(0, 3, vec![1, 2]), (1, 2, vec![0])] {
            let error = join(rank, ranks);
            let is_named = matches!(&error, Error::Missing { ranks, .. } if *ranks == expected);
            assert!(is_named, "{error}");
        }
        for (rank, ranks) in [(0, 0), (3, 3), (0, 129)] {
            let error = join(rank, ranks);
            assert!(matches!(error, Error::NotAccepted { .. }), "{error}");
        }
        let name = "n".repeat(64);
        let error = Group::join(&world.context, &name, 0, 1, &crew.seat.directory, &hasty).unwrap_err();
        assert!(matches!(error, Error::Join { .. }), "{error}");
        crew.finish();
    });
}

#[test]
fn ranks_with_room_for_other_numbers_of_allocations_are_told_so_when_they_join() {
    pair::play(test_name!(), &[], |cast| {
        let crew = Crew::start(cast, 1);
        let (world, directory) = (World::new(), &crew.seat.directory);
        let join = |rank, segment_allocations| {
            let options = GroupOptions { timeout: 10 * SOON, segment_allocations, ..options() };
            Group::join(&world.context, "uneven", rank, 2, directory, &options)
        };
        let [first, second] = thread::scope(|scope| {
            [(0, 256), (1, 64)]
                .map(|(rank, room)| scope.spawn(move || join(rank, room)))
                .map(|rank| rank.join().unwrap().map(drop))
        });
        let is_named = matches!(
            &second,
            Err(Error::NotAccepted { what, value: 256, accepted })
                if what.contains("allocations") && *accepted == (64..=64)
        );
        assert!(is_named, "{second:?}");
        assert!(matches!(&first, Err(Error::Missing { ranks, .. }) if *ranks == [1]), "{first:?}");
        crew.finish();
    });
}

/// What a rank says of itself first.
fn hello(rank: u64, ranks: u64, group: &str) -> Vec<u8> {
    let allocations = options().segment_allocations as u64;
    let numbers = [8, rank, ranks, allocations].map(u64::to_le_bytes).concat();
    [&numbers, group.as_bytes()].concat()
}

const HELLO: u16 = FIRST_KIND + 48;

#[test]
fn who_is_found_at_the_place_of_a_rank_and_is_another_is_told_apart() {
    pair::play(test_name!(), &[], |cast| {
        let crew = Crew::start(cast, 1);
        let (world, directory) = (World::new(), &crew.seat.directory);
        let place = Address::in_directory(directory, "a.0").unwrap();
        // Rank 1 of two, where somebody says this in place of rank 0.
        let join = |kind, said: &[u8]| {
            let listener = Listener::bind(&place, LONG).unwrap();
            thread::scope(|scope| {
                let rank = scope.spawn(|| Group::join(&world.context, "a", 1, 2, directory, &options()));
                let other = listener.accept(LONG).unwrap().complete(&PeerPolicy::default(), LONG).unwrap();
                other.send(kind, said, &[], LONG).unwrap();
                rank.join().unwrap().unwrap_err()
            })
        };
        let error = join(HELLO, &hello(0, 2, "b"));
        assert!(matches!(&error, Error::OtherGroup { rank: 0, theirs, .. } if theirs == "b"), "{error}");
        let error = join(HELLO, &hello(0, 3, "a"));
        assert!(matches!(error, Error::OtherGroup { rank: 0, their_size: 3, .. }), "{error}");
        for rank in [1, 7] {
            let error = join(HELLO, &hello(rank, 2, "a"));
            assert!(matches!(error, Error::RankTaken { rank: said, .. } if said as u64 == rank), "{error}");
        }
        for (kind, said) in [(HELLO + 1, hello(0, 2, "a")), (HELLO, b"hello".to_vec())] {
            let error = join(kind, &said);
            let is_none = matches!(&error, Error::Transport { rank: 0, source: IpcError::NoHello { .. } });
            assert!(is_none, "{error}");
        }
        let mut older = hello(0, 2, "a");
        older[0] = 3;
        let error = join(HELLO, &older);
        let versions = "the peer speaks versions (3, 3) of the protocol, this side (8, 8)";
        assert!(error.to_string().ends_with(versions), "{error}");
        crew.finish();
    });
}

/// Asks again until somebody listens.
fn until_listening<T, E: std::fmt::Debug>(mut connect: impl FnMut() -> Result<T, E>) -> T {
    let start = Instant::now();
    loop {
        match connect() {
            Ok(connected) => return connected,
            Err(error) => assert!(start.elapsed() < LONG, "{error:?}"),
        }
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn who_is_no_rank_of_the_group_does_not_hold_up_those_that_are() {
    pair::play(test_name!(), &[], |cast| {
        let crew = Crew::start(cast, 1);
        let (world, options) = (World::new(), GroupOptions { timeout: LONG / 3, ..options() });
        let directory = &crew.seat.directory;
        let join = |rank, ranks| Group::join(&world.context, "group", rank, ranks, directory, &options);
        thread::scope(|scope| {
            let first = scope.spawn(|| join(0, 2));
            let address = SocketAddrUnix::new(directory.join("group.0")).unwrap();
            // Each is there before the next, and stays.
            let one = || {
                let family = AddressFamily::UNIX;
                let socket = socket_with(family, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
                connect(&socket, &address).map(|()| socket)
            };
            let silent: Vec<_> = (0..80).map(|_| until_listening(one)).collect();
            let place = Address::in_directory(directory, "group.0").unwrap();
            let half = Connection::connect(&place, &PeerPolicy::default(), LONG).unwrap();
            let chatty = Connection::connect(&place, &PeerPolicy::default(), LONG).unwrap();
            chatty.send(20, b"hello?", &[], LONG).unwrap();
            let gone = Connection::connect(&place, &PeerPolicy::default(), LONG).unwrap();
            drop(gone);
            let others = [hello(0, 2, "group"), hello(2, 2, "group"), hello(1, 2, "another")].map(|said| {
                let other = Connection::connect(&place, &PeerPolicy::default(), LONG).unwrap();
                other.send(HELLO, &said, &[], LONG).unwrap();
                other
            });
            let other = join(1, 3).unwrap_err();
            assert!(matches!(other, Error::OtherGroup { rank: 0, their_size: 2, .. }), "{other}");
            let second = scope.spawn(|| join(1, 2));
            let groups = [first, second].map(|rank| rank.join().unwrap().unwrap());
            for group in &groups {
                group.check().unwrap();
            }
            // Those beyond a number had to go.
            let has_ended = |socket: &&OwnedFd| {
                matches!(recv(socket, &mut [0u8; 8][..], RecvFlags::DONTWAIT), Ok((0, _)))
            };
            assert!(silent.iter().any(|socket| has_ended(&socket)));
            drop((silent, half, chatty, others));
        });
        crew.finish();
    });
}

/// It has connected and is slow to speak, while another process connects again and again and says nothing.
#[test]
fn a_process_that_connects_without_end_pushes_out_no_rank() {
    fn body(first: &Channel) {
        let place = Address::in_directory(Seat::of(first).directory, "slow.0").unwrap();
        let slow = until_listening(|| Connection::connect(&place, &PeerPolicy::default(), LONG));
        assert_eq!(slow.recv(LONG).unwrap().kind, HELLO);
        first.send(b"admitted", &[]);
        first.receive();
        slow.send(HELLO, &hello(1, 2, "slow"), &[], LONG).unwrap();
        // The directory: it is a rank.
        assert_eq!(slow.recv(LONG).unwrap().kind, HELLO + 1);
    }
    pair::play(test_name!(), &[("rank", body)], |cast| {
        let crew = Crew::start(cast, 2);
        let (world, directory) = (World::new(), &crew.seat.directory);
        thread::scope(|scope| {
            let first = scope.spawn(|| Group::join(&world.context, "slow", 0, 2, directory, &options()));
            crew.others[0].receive();
            let address = SocketAddrUnix::new(directory.join("slow.0")).unwrap();
            let silent: Vec<_> = std::iter::repeat_with(|| {
                let family = AddressFamily::UNIX;
                let socket = socket_with(family, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
                connect(&socket, &address).unwrap();
                socket
            })
            .take(200)
            .collect();
            // By then the rank would have had to go, too.
            let start = Instant::now();
            while !matches!(recv(&silent[100], &mut [0u8; 8][..], RecvFlags::DONTWAIT), Ok((0, _))) {
                assert!(start.elapsed() < LONG, "there is room for all");
                thread::sleep(Duration::from_millis(1));
            }
            crew.others[0].send(b"go on", &[]);
            // It ends once it has the directory.
            let ended = first.join().unwrap().unwrap_err();
            assert!(matches!(ended, Error::Broken { rank: 1, .. }), "{ended}");
        });
        crew.finish();
    });
}

//! Coming together, or not.

use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_ipc::symmetric::{Error, Group, GroupOptions};
use cuda_mem_ipc::transport::{Address, Connection, PeerPolicy, Pending, pair as ends};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::common::World;
use crate::common::pair::{self, test_name};
use crate::rank::{Crew, LONG, SOON, options};

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

/// Two ranks, here threads, over connections that are there.
fn over(names: [&str; 2], ranks: [usize; 2], numbers: [usize; 2]) -> [Result<Group, Error>; 2] {
    let world = World::new();
    let (here, there) = ends().unwrap();
    let options = options();
    thread::scope(|scope| {
        let join = |index: usize, pending: Pending| {
            let connection = pending.complete(&PeerPolicy::default(), options.timeout).unwrap();
            let connections = vec![(1 - index, connection)];
            Group::over(&world.context, names[index], numbers[index], ranks[index], connections, &options)
        };
        let other = scope.spawn(move || join(1, Pending::inherited(there).unwrap()));
        [join(0, here), other.join().unwrap()]
    })
}

#[test]
fn ranks_come_together_over_connections_that_are_there() {
    let groups = over(["a", "a"], [2, 2], [0, 1]).map(Result::unwrap);
    for (rank, group) in groups.iter().enumerate() {
        assert_eq!((group.name(), group.rank(), group.world_size()), ("a", rank, 2));
        group.check().unwrap();
    }
}

#[test]
fn ranks_of_different_groups_are_told_apart() {
    let [one, two] = over(["a", "b"], [2, 2], [0, 1]);
    assert!(matches!(&one, Err(Error::OtherGroup { theirs, .. }) if theirs == "b"), "{one:?}");
    assert!(matches!(&two, Err(Error::OtherGroup { theirs, .. }) if theirs == "a"), "{two:?}");
    let [one, _] = over(["a", "a"], [2, 3], [0, 1]);
    assert!(matches!(one, Err(Error::OtherGroup { their_size: 3, .. })), "{one:?}");
    let [one, two] = over(["a", "a"], [2, 2], [0, 0]);
    assert!(matches!(one, Err(Error::RankTaken { rank: 0, .. })), "{one:?}");
    assert!(matches!(two, Err(Error::RankTaken { rank: 0, .. }) | Err(Error::Missing { .. })), "{two:?}");
    let world = World::new();
    let alone = Group::over(&world.context, "a", 0, 2, Vec::new(), &options()).unwrap_err();
    assert!(matches!(&alone, Error::Missing { ranks, .. } if ranks == &[1]), "{alone}");
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
            let silent = until_listening(|| {
                let family = AddressFamily::UNIX;
                let socket = socket_with(family, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
                connect(&socket, &address).map(|()| socket)
            });
            let place = Address::in_directory(directory, "group.0").unwrap();
            let half = Connection::connect(&place, &PeerPolicy::default(), LONG).unwrap();
            let chatty = Connection::connect(&place, &PeerPolicy::default(), LONG).unwrap();
            chatty.send(20, b"hello?", &[], LONG).unwrap();
            let gone = Connection::connect(&place, &PeerPolicy::default(), LONG).unwrap();
            drop(gone);
            let other = join(1, 3).unwrap_err();
            assert!(matches!(other, Error::OtherGroup { rank: 0, their_size: 2, .. }), "{other}");
            let second = scope.spawn(|| join(1, 2));
            let groups = [first, second].map(|rank| rank.join().unwrap().unwrap());
            for group in &groups {
                group.check().unwrap();
            }
            drop((silent, half, chatty));
        });
        crew.finish();
    });
}

//! Peers that do not follow the protocol: what they say is an error, and nothing is lost or mapped that they did not offer.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use cuda_mem_core::host::SharedMapping;
use cuda_mem_core::ipc::{SharedWords, poison_word};
use cuda_mem_ipc::Error;
use cuda_mem_ipc::shared::wire::{
    self, FIRST_OF_RELEASES, FIRST_OF_RING, HandOver, LINES, Message, Place, Point, RING_ENTRIES, Release,
    SLOTS,
};
use cuda_mem_ipc::shared::{AheadLimit, Exporter, Importer, SharedPool, SharedPoolOptions};
use cuda_mem_ipc::transport::Connection;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};

use crate::common::World;
use crate::common::gate::Gate;
use crate::common::pair::{self, test_name};
use crate::link::{LIMIT, SHORT, eventually};
use crate::raw::{
    accept, accepted, both_ends, generation, hand, heard, offer, release, ring, say, segment, write,
};

/// Something that a peer says.
#[derive(Debug, Clone)]
enum Said<'m> {
    /// With descriptors that travel with it.
    Message(Message, &'m [BorrowedFd<'m>]),
    Buffer(HandOver),
    Release(Release),
}

impl Said<'_> {
    fn say(&self, connection: &Connection, words: &SharedWords) {
        match self {
            Self::Message(message, descriptors) => say(connection, message.clone(), descriptors),
            Self::Buffer(said) => hand(words, *said),
            Self::Release(said) => release(connection, words, *said),
        }
    }
}

/// An importer, and an exporter that says anything.
pub(crate) fn importer(world: &World) -> (Importer, Connection, SharedWords) {
    importer_ahead(world, AheadLimit::default())
}

fn importer_ahead(world: &World, limit: AheadLimit) -> (Importer, Connection, SharedWords) {
    let (here, there) = both_ends();
    let words = offer(world, &there);
    let importer = Importer::with_ahead(&world.context, here, limit, LIMIT).unwrap();
    accepted(&there);
    (importer, there, words)
}

/// A buffer behind the first fence.
fn buffer(sequence: u64, segment: u64, offset: u64, len: u64) -> HandOver {
    HandOver { sequence, segment, offset, len, fence: Point { line: 0, generation: 1 } }
}

pub(crate) fn part(offset: u64, len: u64) -> HandOver {
    buffer(7, 0, offset, len)
}

#[test]
fn what_no_exporter_says_ends_the_connection() {
    let world = World::new();
    let (memory, said) = segment(&world, 0);
    let descriptor = memory.export_posix_fd().unwrap();
    let (one, bytes) = (descriptor.as_fd(), said.bytes);
    let known = Said::Message(Message::Segment(said.clone()), &[one]);
    let retired = Said::Message(Message::Retire { segment: 0 }, &[]);
    let let_go = Said::Message(Message::LetGo { segment: 0 }, &[]);
    let cases: [(&str, &[Said<'_>]); 14] = [
        ("an unknown segment", &[Said::Buffer(part(0, 1))]),
        ("behind the end", &[known.clone(), Said::Buffer(part(bytes, 1))]),
        ("beyond the end", &[known.clone(), Said::Buffer(part(0, bytes + 1))]),
        ("one byte too many", &[known.clone(), Said::Buffer(part(1, bytes))]),
        ("far away", &[known.clone(), Said::Buffer(part(1 << 62, 1))]),
        ("a segment twice", &[known.clone(), known.clone()]),
        ("a segment without memory", &[Said::Message(Message::Segment(said.clone()), &[])]),
        ("a segment with two memories", &[Said::Message(Message::Segment(said.clone()), &[one, one])]),
        ("the end of what never was", &[Said::Message(Message::Retire { segment: 3 }, &[])]),
        ("the end of a segment twice", &[known.clone(), retired.clone(), retired.clone()]),
        ("an end with a descriptor", &[known.clone(), Said::Message(Message::Retire { segment: 0 }, &[one])]),
        ("what an importer says", &[let_go]),
        ("a call", &[Said::Message(Message::Ring, &[])]),
        ("another offer", &[Said::Message(Message::Offer, &[one])]),
    ];
    for (what, messages) in cases {
        let (importer, hostile, words) = importer(&world);
        messages.iter().for_each(|said| said.say(&hostile, &words));
        if messages.iter().any(|said| matches!(said, Said::Buffer(_))) {
            let refused = importer.recv(LIMIT);
            assert!(matches!(refused, Err(Error::Protocol { .. })), "{what}: {refused:?}");
        }
        // Whether anybody receives or not.
        assert!(hostile.recv(LIMIT).unwrap_err().is_gone(), "{what}");
        assert!(matches!(importer.recv(LIMIT), Err(Error::Broken)), "{what}");
        eventually(what, || importer.mapped_ahead() == 0 && importer.buffers() == 0);
    }
    // A part of what has ended.
    let (importer, hostile, words) = importer(&world);
    known.say(&hostile, &words);
    eventually("it is mapped", || importer.mapped_ahead() == 1);
    retired.say(&hostile, &words);
    eventually("it has ended", || importer.mapped_ahead() == 0);
    hand(&words, part(0, 1));
    let refused = importer.recv(LIMIT);
    assert!(matches!(refused, Err(Error::Protocol { .. })), "{refused:?}");
    let (importer, hostile, _words) = self::importer(&world);
    hostile.send(wire::SEGMENT, b"no segment", &[], LIMIT).unwrap();
    assert!(matches!(importer.recv(LIMIT), Err(Error::Wire { .. } | Error::Broken)));
    assert_eq!(world.driver.release_failures(), 0);
}

/// The sign that a receiver sleeps lies in memory of both.
#[test]
fn a_receiver_that_is_said_to_be_awake_hears_of_the_end() {
    let world = World::new();
    let (importer, hostile, words) = importer(&world);
    let sign = words.mapping().word((FIRST_OF_RING + 2) * 64).unwrap();
    thread::scope(|scope| {
        let receiver = scope.spawn(|| importer.recv(LIMIT));
        eventually("it sleeps", || sign.load(Ordering::SeqCst) == 1);
        thread::sleep(SHORT);
        sign.store(0, Ordering::SeqCst);
        let start = Instant::now();
        drop(hostile);
        let error = receiver.join().unwrap().unwrap_err();
        assert!(error.is_gone() && start.elapsed() < LIMIT / 12, "{error}, behind {:?}", start.elapsed());
    });
}

/// Writes words of the ring, whose entries begin three cache lines behind its start.
fn write_ring(words: &SharedWords, line: usize, values: &[u64]) {
    write(words, FIRST_OF_RING + line, values);
}

#[test]
fn what_no_exporter_puts_into_the_ring_ends_the_connection() {
    let world = World::new();
    let (memory, said) = segment(&world, 0);
    let descriptor = memory.export_posix_fd().unwrap();
    let good = [7, 0, 0, said.bytes, 0, 1, 0];
    let with = |word: usize, value: u64| {
        let mut entry = good;
        entry[word] = value;
        entry
    };
    for (what, tail, entry) in [
        ("more than there is room for", RING_ENTRIES + 1, good),
        ("fewer than before", u64::MAX, good),
        ("an unknown segment", 1, with(1, 3)),
        ("behind the end", 1, with(2, said.bytes)),
        ("no bytes", 1, with(3, 0)),
        ("no line", 1, with(4, 32)),
        ("no generation", 1, with(5, 0)),
    ] {
        let (importer, hostile, words) = importer(&world);
        say(&hostile, Message::Segment(said.clone()), &[descriptor.as_fd()]);
        write_ring(&words, 3, &entry);
        write_ring(&words, 0, &[tail]);
        let refused = importer.recv(LIMIT);
        assert!(matches!(refused, Err(Error::Protocol { .. } | Error::Wire { .. })), "{what}: {refused:?}");
        assert!(hostile.recv(LIMIT).unwrap_err().is_gone(), "{what}");
        // Whatever it writes from here on.
        write_ring(&words, 3, &with(6, 0));
        write_ring(&words, 0, &[1]);
        assert!(matches!(importer.recv(LIMIT), Err(Error::Broken)), "{what}");
        assert_eq!(importer.buffers(), 0, "{what}");
    }
    let (importer, hostile, words) = importer(&world);
    say(&hostile, Message::Segment(said.clone()), &[descriptor.as_fd()]);
    write_ring(&words, 3, &good);
    write_ring(&words, 0, &[1]);
    assert_eq!(importer.recv(LIMIT).unwrap().sequence(), 7);
}

/// The number of the buffer that was given back last.
fn released(words: &SharedWords) -> u64 {
    let word = |slot: usize| words.mapping().word((FIRST_OF_RELEASES + slot) * 64).unwrap();
    let tail = word(0).load(Ordering::SeqCst);
    word(3 + usize::try_from(tail - 1).unwrap()).load(Ordering::SeqCst)
}

/// It is the exporter's loss: the buffer goes back, and what follows is as good as ever.
#[test]
fn memory_that_is_not_what_it_was_said_to_be_is_not_mapped() {
    let world = World::new();
    let (memory, said) = segment(&world, 0);
    let device = || memory.export_posix_fd().unwrap();
    let host = || SharedMapping::create(1 << 16).unwrap().as_fd().try_clone_to_owned().unwrap();
    let pool = Place::DevicePool { uuid: world.context.device().uuid().unwrap(), block: [9; 64] };
    let uuid = world.context.device().uuid().unwrap();
    let longer = Place::Parts { uuid, sizes: vec![said.bytes, 3 * said.bytes] };
    let two = Place::Parts { uuid, sizes: vec![said.bytes; 2] };
    let cases: [(&str, wire::Segment, Vec<OwnedFd>); 11] = [
        ("memory and no pool", wire::Segment { place: pool.clone(), ..said.clone() }, vec![device()]),
        ("no pool", wire::Segment { place: pool.clone(), ..said.clone() }, vec![host()]),
        ("a device's and no node's", wire::Segment { place: Place::Node(0), ..said.clone() }, vec![device()]),
        ("no node's", wire::Segment { place: Place::Node(0), ..said.clone() }, vec![host()]),
        (
            "a part that is none",
            wire::Segment { place: two, bytes: 2 * said.bytes, ..said.clone() },
            vec![device(), host()],
        ),
        (
            "parts that are larger",
            wire::Segment { place: longer, bytes: 4 * said.bytes, ..said.clone() },
            vec![device(), device()],
        ),
        ("larger", wire::Segment { bytes: said.bytes * 2, ..said.clone() }, vec![device()]),
        ("smaller", wire::Segment { bytes: said.bytes / 2, ..said.clone() }, vec![device()]),
        ("another device", wire::Segment { place: Place::Device([3; 16]), ..said.clone() }, vec![device()]),
        ("no memory", said.clone(), vec![File::open("/dev/null").unwrap().into()]),
        (
            "of the host, and larger",
            wire::Segment { place: Place::Host, bytes: 1 << 17, ..said.clone() },
            vec![host()],
        ),
    ];
    let (importer, hostile, words) = importer(&world);
    for (number, (what, said, descriptors)) in (1..).zip(cases) {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        say(&hostile, Message::Segment(wire::Segment { segment: number, ..said.clone() }), &descriptors);
        for sequence in [10, 20] {
            hand(&words, buffer(sequence, number, 0, 1));
            let refused = importer.recv(LIMIT);
            assert!(
                matches!(refused, Err(Error::Core(_) | Error::WrongSize { .. } | Error::NoSuchDevice { .. })),
                "{what}: {refused:?}"
            );
            assert_eq!(released(&words), sequence, "{what}");
        }
        say(&hostile, Message::Retire { segment: number }, &[]);
        if matches!(said.place, Place::DevicePool { .. }) {
            assert!(matches!(importer.recv(SHORT), Err(Error::Timeout { .. })));
            assert_eq!(heard(&hostile), Message::LetGo { segment: number }, "{what}");
        }
    }
    say(&hostile, Message::Segment(said.clone()), &[device().as_fd()]);
    hand(&words, part(0, said.bytes));
    let buffer = importer.recv(LIMIT).unwrap();
    assert_eq!((buffer.len() as u64, importer.buffers()), (said.bytes, 1));
    // A fence that never comes is waited for by streams alone.
    assert!(matches!(buffer.synchronize(SHORT), Err(Error::Timeout { .. })));
}

#[test]
fn what_is_no_offer_is_refused() {
    let world = World::new();
    let small = SharedMapping::create(1).unwrap();
    let null = File::open("/dev/null").unwrap();
    let words = SharedWords::create(&world.context, SLOTS).unwrap();
    let offer = Message::Offer;
    let cases: [(&str, Message, &[BorrowedFd<'_>]); 6] = [
        ("no memory", offer.clone(), &[]),
        ("too small", offer.clone(), &[small.as_fd()]),
        ("two", offer.clone(), &[words.as_fd(), null.as_fd()]),
        ("no file in memory", offer.clone(), &[null.as_fd()]),
        ("an answer", Message::Accept { segments: 0, bytes: 0 }, &[]),
        ("another message", Message::Ring, &[]),
    ];
    for (what, message, descriptors) in cases {
        let (here, there) = both_ends();
        say(&there, message, descriptors);
        let refused = Importer::new(&world.context, here, LIMIT);
        assert!(matches!(refused, Err(Error::Protocol { .. } | Error::Core(_))), "{what}: {refused:?}");
    }
}

/// An exporter with a buffer handed over, and an importer that says anything.
pub(crate) fn exporter(world: &World, pool: &SharedPool) -> (Exporter, Connection, SharedWords) {
    let (here, there) = both_ends();
    let exporter = thread::scope(|scope| {
        let exporter = scope.spawn(|| Exporter::new(&world.context, here, LIMIT).unwrap());
        let memory = there.recv(LIMIT).unwrap().descriptors.into_vec().remove(0);
        let words = SharedWords::open(&world.context, memory).unwrap();
        accept(&there, 0);
        (exporter.join().unwrap(), words)
    });
    let (exporter, words) = exporter;
    let stream = world.new_stream();
    let buffer = pool.allocate(1000, &stream).unwrap();
    assert_eq!(exporter.hand_over(&buffer, &stream, LIMIT).unwrap(), 0);
    assert!(matches!(heard(&there), Message::Segment(_)));
    (exporter, there, words)
}

/// More streams than there are lines, so that some share one and wait for each other.
#[test]
fn an_importer_that_takes_fences_back_holds_up_no_stream() {
    let world = World::new();
    let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
    let (exporter, hostile, words) = exporter(&world, &pool);
    let streams: Vec<_> = (0..2 * LINES).map(|_| world.new_stream()).collect();
    for stream in &streams {
        let buffer = pool.allocate(1000, stream).unwrap();
        exporter.hand_over(&buffer, stream, LIMIT).unwrap();
        (0..LINES as usize).for_each(|line| write(&words, line, &[0]));
    }
    drop(hostile);
    eventually("its leases end", || exporter.leases() == 0);
    let start = Instant::now();
    let are_idle = || streams.iter().all(|stream| stream.is_idle().unwrap());
    while !are_idle() && start.elapsed() < LIMIT {
        thread::yield_now();
    }
    let held_up = streams.iter().filter(|stream| !stream.is_idle().unwrap()).count();
    // Whoever is held up goes on, so that the test ends.
    (0..LINES as usize).for_each(|line| poison_word(words.mapping(), line).unwrap());
    assert_eq!(held_up, 0);
}

#[test]
fn what_is_announced_ahead_is_bounded() {
    let world = World::new();
    let (memory, said) = segment(&world, 0);
    let descriptor = memory.export_posix_fd().unwrap();
    let limit = AheadLimit { segments: 3, bytes: 2 * said.bytes };
    let (importer, hostile, words) = importer_ahead(&world, limit);
    for segment in 0..6 {
        say(&hostile, Message::Segment(wire::Segment { segment, ..said.clone() }), &[descriptor.as_fd()]);
    }
    eventually("two are mapped", || importer.mapped_ahead() == 2);
    // The last, which is beyond: it is mapped when its buffer comes.
    hand(&words, buffer(7, 5, 0, said.bytes));
    let received = importer.recv(LIMIT).unwrap();
    thread::sleep(SHORT);
    assert_eq!((importer.mapped_ahead(), received.len() as u64), (2, said.bytes));
}

/// As many as an importer knows of, each mapped with a buffer: one more breaks the connection.
#[test]
fn more_segments_than_are_accepted_end_the_connection() {
    let world = World::new();
    let (memory, said) = segment(&world, 0);
    let descriptor = memory.export_posix_fd().unwrap();
    let limit = AheadLimit { segments: 4096, bytes: u64::MAX };
    let (importer, hostile, _words) = importer_ahead(&world, limit);
    for segment in 0..5000 {
        let (kind, payload) = Message::Segment(wire::Segment { segment, ..said.clone() }).encode();
        if hostile.send(kind, &payload, &[descriptor.as_fd()], LIMIT).is_err() {
            break;
        }
    }
    assert!(hostile.recv(LIMIT).unwrap_err().is_gone());
    eventually("all go", || importer.mapped_ahead() == 0);
}

/// The exporter waits for it, whether it was imported, refused or never looked at.
#[test]
fn the_end_of_a_block_of_a_pool_that_was_announced_ahead_is_told() {
    let world = World::new();
    let (memory, said) = segment(&world, 0);
    let descriptor = memory.export_posix_fd().unwrap();
    let place = Place::DevicePool { uuid: world.context.device().uuid().unwrap(), block: [9; 64] };
    for limit in [AheadLimit::default(), AheadLimit::NONE] {
        let (_importer, hostile, _words) = importer_ahead(&world, limit);
        for segment in 0..3 {
            let said = wire::Segment { segment, place: place.clone(), ..said.clone() };
            say(&hostile, Message::Segment(said.clone()), &[descriptor.as_fd()]);
            say(&hostile, Message::Retire { segment }, &[]);
            assert_eq!(heard(&hostile), Message::LetGo { segment });
        }
    }
}

#[test]
fn what_is_no_answer_to_an_offer_is_refused() {
    let world = World::new();
    let null = File::open("/dev/null").unwrap();
    let cases: [(&str, Message, &[BorrowedFd<'_>]); 2] =
        [("another message", Message::Ring, &[]), ("an offer", Message::Offer, &[null.as_fd()])];
    for (what, message, descriptors) in cases {
        let (here, there) = both_ends();
        say(&there, message, descriptors);
        let refused = Exporter::new(&world.context, here, LIMIT);
        assert!(matches!(refused, Err(Error::Protocol { .. })), "{what}: {refused:?}");
    }
}

#[test]
fn what_no_importer_says_ends_its_leases() {
    // Each has a grace of half a second, in which other tests go on.
    pair::play_beside(test_name!(), &[], |_| {
        let world = World::new();
        let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
        let release = |sequence| Said::Release(Release { sequence, fence: Point { line: 0, generation: 0 } });
        let cases: [(&str, &[Said<'_>]); 4] = [
            ("a release of what was not handed over", &[release(1)]),
            ("a release twice", &[release(0), release(0)]),
            ("the end of a segment", &[Said::Message(Message::Retire { segment: 0 }, &[])]),
            (
                "the end of a block that it does not have",
                &[Said::Message(Message::LetGo { segment: 0 }, &[])],
            ),
        ];
        for (what, messages) in cases {
            let (exporter, hostile, words) = exporter(&world, &pool);
            messages.iter().for_each(|said| said.say(&hostile, &words));
            eventually(what, || exporter.leases() == 0);
            assert!(hostile.recv(LIMIT).unwrap_err().is_gone(), "{what}");
            let stream = world.new_stream();
            let buffer = pool.allocate(1000, &stream).unwrap();
            // What is handed over in between goes back, too. Whoever hands over hears what the peer did.
            eventually(what, || match exporter.hand_over(&buffer, &stream, LIMIT) {
                Ok(_) => false,
                Err(error) => matches!(error, Error::Protocol { .. }),
            });
            eventually(what, || exporter.leases() == 0);
        }
        assert!(pool.trim() > 0, "nobody has anything of it any more");
        assert_eq!(world.driver.release_failures(), 0);
    });
}

#[test]
fn an_exporter_whose_peer_has_closed_says_what_it_cannot_do() {
    let world = World::new();
    let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
    let (exporter, hostile, _words) = exporter(&world, &pool);
    let stream = world.new_stream();
    let buffer = pool.allocate(1000, &stream).unwrap();
    drop(hostile);
    let mut refused = [None, None, None];
    eventually("all three are refused", || {
        refused = [
            exporter.attach(&pool).err(),
            exporter.announce(&buffer).err(),
            exporter.hand_over(&buffer, &stream, LIMIT).err(),
        ];
        refused.iter().all(Option::is_some)
    });
    for (error, what) in
        refused.iter().flatten().zip(["attaching a pool", "announcing a segment", "handing over"])
    {
        assert!(matches!(error, Error::Closed { doing } if *doing == what), "{what}: {error:?}");
    }
}

#[test]
fn what_no_importer_writes_into_the_ring_ends_its_leases() {
    // Each has a grace of half a second, in which other tests go on.
    pair::play_beside(test_name!(), &[], |_| {
        let world = World::new();
        let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
        let cases: [(&str, u64, [u64; 3]); 5] = [
            ("more than there is room for", RING_ENTRIES + 1, [0; 3]),
            ("fewer than before", u64::MAX, [0; 3]),
            ("what was not handed over", 1, [1, 0, 0]),
            ("no line", 1, [0, LINES.into(), 1]),
            ("no generation", 1, [0, 0, u64::MAX]),
        ];
        for (what, tail, entry) in cases {
            let (exporter, hostile, words) = exporter(&world, &pool);
            write(&words, FIRST_OF_RELEASES + 3, &entry);
            write(&words, FIRST_OF_RELEASES, &[tail]);
            ring(&hostile);
            eventually(what, || exporter.leases() == 0);
            assert!(hostile.recv(LIMIT).unwrap_err().is_gone(), "{what}");
        }
        // And what one does write ends its lease alone.
        let (exporter, hostile, words) = exporter(&world, &pool);
        write(&words, FIRST_OF_RELEASES, &[1]);
        ring(&hostile);
        eventually("it goes back", || exporter.leases() == 0);
        let stream = world.new_stream();
        let buffer = pool.allocate(1000, &stream).unwrap();
        assert_eq!(exporter.hand_over(&buffer, &stream, LIMIT).unwrap(), 1);
    });
}

/// A fence that is never reached keeps nobody but its own exporter's streams, and them until the peer is gone.
#[test]
fn a_release_that_never_comes_ends_with_its_peer() {
    let world = World::new();
    let options = SharedPoolOptions { segment_bytes: 512, ..SharedPoolOptions::default() };
    let pool = SharedPool::new(&world.context, &options).unwrap();
    let (exporter, hostile, words) = exporter(&world, &pool);
    release(&hostile, &words, Release { sequence: 0, fence: Point { line: 5, generation: 1 << 60 } });
    eventually("it goes back", || exporter.leases() == 0);
    let stream = world.new_stream();
    let whole = pool.allocate(pool.reserved_bytes(), &stream).unwrap();
    assert!(!stream.is_idle().unwrap());
    drop(hostile);
    stream.synchronize().unwrap();
    drop(whole);
}

/// Takes pages out of memory for fences.
fn punch(words: &SharedWords) -> rustix::io::Result<()> {
    fallocate(words, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 4096)
}

/// A device would go on with the pages it had, and never see that the peer is gone.
#[test]
fn an_importer_that_takes_out_pages_holds_up_no_stream() {
    let world = World::new();
    let options = SharedPoolOptions { segment_bytes: 512, ..SharedPoolOptions::default() };
    let pool = SharedPool::new(&world.context, &options).unwrap();
    let (here, hostile) = both_ends();
    let (exporter, words) = thread::scope(|scope| {
        let exporter = scope.spawn(|| Exporter::new(&world.context, here, LIMIT).unwrap());
        let memory = hostile.recv(LIMIT).unwrap().descriptors.into_vec().remove(0);
        let words = SharedWords::open(&world.context, memory).unwrap();
        punch(&words).unwrap();
        accept(&hostile, 0);
        (exporter.join().unwrap(), words)
    });
    assert!(punch(&words).is_err());
    let stream = world.new_stream();
    let buffer = pool.allocate(1000, &stream).unwrap();
    assert_eq!(exporter.hand_over(&buffer, &stream, LIMIT).unwrap(), 0);
    drop(buffer);
    release(&hostile, &words, Release { sequence: 0, fence: Point { line: 5, generation: 1 << 60 } });
    eventually("it goes back", || exporter.leases() == 0);
    let whole = pool.allocate(pool.reserved_bytes(), &stream).unwrap();
    assert!(!stream.is_idle().unwrap());
    drop(hostile);
    eventually("the stream goes on", || stream.is_idle().unwrap());
    drop((whole, words));
}

#[test]
fn an_exporter_that_takes_out_pages_is_too_late() {
    let world = World::new();
    let (_importer, _hostile, words) = importer(&world);
    assert!(punch(&words).is_err());
}

#[test]
fn an_importer_that_poisons_what_is_not_its_own_is_treated_as_gone() {
    let world = World::new();
    let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
    let (exporter, _hostile, words) = exporter(&world, &pool);
    for line in 0..LINES as usize {
        poison_word(words.mapping(), line).unwrap();
    }
    let stream = world.new_stream();
    let buffer = pool.allocate(1000, &stream).unwrap();
    assert!(matches!(exporter.hand_over(&buffer, &stream, LIMIT), Err(Error::PeerDied { .. })));
    assert_eq!(exporter.leases(), 1, "nothing more was handed over");
}

/// Nothing is unpinned while a stream is busy.
#[test]
fn host_memory_that_was_retired_keeps_no_descriptor() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let world = World::new();
    let stream = world.new_stream();
    let (importer, hostile, words) = importer(&world);
    let announce = |segment| {
        let memory = SharedMapping::create(4096).unwrap();
        memory.write(0, &[1]).unwrap();
        let said = wire::Segment {
            segment,
            generation: generation(),
            bytes: memory.bytes() as u64,
            place: Place::Host,
        };
        say(&hostile, Message::Segment(said.clone()), &[memory.as_fd()]);
    };
    let receive = |segment| {
        hand(&words, buffer(segment, segment, 0, 1));
        importer.recv(LIMIT)
    };
    let gate = Gate::before(&stream);
    let before = open();
    for segment in 0..320 {
        announce(segment);
        if segment % 64 == 63 {
            // So that all before it are heard.
            drop(receive(segment).unwrap());
        }
        say(&hostile, Message::Retire { segment }, &[]);
    }
    // The end of the last one is heard before this one's buffer.
    announce(320);
    drop(receive(320).unwrap());
    // Another thread gives the memory back, and finds the device at work.
    eventually("a registration is left", || world.driver.registrations_left() > 0);
    eventually("the descriptors are closed", || open() <= before + 1);
    gate.open();
    drop(words);
}

/// A file of memory that is not there: to pin it would make it, as large as the peer likes.
#[test]
fn host_memory_that_is_not_there_is_not_pinned() {
    let world = World::new();
    let (importer, hostile, words) = importer(&world);
    let holes = SharedMapping::create(1 << 30).unwrap();
    // As many pages as it has bytes, all of them behind its end.
    let beyond = memfd_create("beyond", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&beyond, 1 << 16).unwrap();
    fallocate(&beyond, FallocateFlags::KEEP_SIZE, 1 << 16, 1 << 16).unwrap();
    fcntl_add_seals(&beyond, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    for (segment, bytes, file) in [(0, 1 << 30, holes.as_fd()), (1, 1 << 16, beyond.as_fd())] {
        let said = wire::Segment { segment, generation: generation(), bytes, place: Place::Host };
        say(&hostile, Message::Segment(said), &[file]);
        hand(&words, buffer(segment, segment, 0, 1));
        let refused = importer.recv(LIMIT);
        assert!(
            matches!(refused, Err(Error::WrongSize { said, found: 0 }) if said == bytes),
            "{segment}: {refused:?}"
        );
    }
}

/// Nobody looks after a peer that has given everything back: what it takes back then would be taken back for good.
#[test]
fn a_release_that_is_taken_back_holds_up_no_stream() {
    let world = World::new();
    let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
    let (exporter, hostile, words) = exporter(&world, &pool);
    let stream = world.new_stream();
    // Two pieces of free memory, of which the second one knows of the words when the first is used again.
    let between = pool.allocate(1000, &stream).unwrap();
    exporter.hand_over(&pool.allocate(1000, &stream).unwrap(), &stream, LIMIT).unwrap();
    let line = LINES as usize + 5;
    write(&words, line, &[1]);
    for sequence in [0, 1] {
        release(&hostile, &words, Release { sequence, fence: Point { line: 5, generation: 1 } });
    }
    eventually("they go back", || exporter.leases() == 0);
    drop(exporter);
    assert!(hostile.recv(LIMIT).unwrap_err().is_gone());
    write(&words, line, &[0]);
    drop(hostile);
    let other = world.new_stream();
    let again = pool.allocate(1000, &other).unwrap();
    let start = Instant::now();
    while !other.is_idle().unwrap() && start.elapsed() < 100 * SHORT {
        thread::yield_now();
    }
    let goes_on = other.is_idle().unwrap();
    // So that the test ends.
    poison_word(words.mapping(), line).unwrap();
    assert!(goes_on);
    drop((between, again));
}

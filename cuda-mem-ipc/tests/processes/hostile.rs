//! Peers that do not follow the protocol: what they say is an error, and nothing is lost or mapped that they did not offer.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_core::host::SharedMapping;
use cuda_mem_core::ipc::{SharedWords, poison_word};
use cuda_mem_ipc::Error;
use cuda_mem_ipc::shared::wire::{
    self, Accept, FIRST_OF_RELEASES, FIRST_OF_RING, Fence, HandOver, LINES, Message, Offer, Parts, Place,
    RING_ENTRIES, Release, SLOTS,
};
use cuda_mem_ipc::shared::{AheadLimit, Exporter, Importer, SharedPool, SharedPoolOptions};
use cuda_mem_ipc::transport::Connection;

use crate::common::World;
use crate::common::gate::Gate;
use crate::link::{LIMIT, SHORT, eventually};
use crate::raw::{Branch, accept, accepted, both_ends, generation, heard, offer, say, segment, write};

/// A message, and the descriptors that travel with it.
type Said<'m> = (Message, &'m [BorrowedFd<'m>]);

/// An importer, and an exporter that says anything.
pub(crate) fn importer(world: &World) -> (Importer, Connection, SharedWords) {
    let (importer, hostile, words, _branch) = importer_ahead(world, AheadLimit::default());
    (importer, hostile, words)
}

/// The same, and where it hears of segments ahead.
pub(crate) fn importer_ahead(
    world: &World,
    limit: AheadLimit,
) -> (Importer, Connection, SharedWords, Branch) {
    let (here, there) = both_ends();
    let words = offer(world, &there);
    let importer = Importer::with_ahead(&world.context, here, limit, LIMIT).unwrap();
    let branch = accepted(&there);
    (importer, there, words, branch)
}

const WORD: Fence = Fence::Word { line: 0, generation: 1 };

pub(crate) fn part(offset: u64, len: u64) -> Message {
    Message::HandOver(HandOver { sequence: 7, segment: 0, offset, len, fence: WORD })
}

#[test]
fn what_no_exporter_says_ends_the_connection() {
    let world = World::new();
    let (memory, said) = segment(&world, 0);
    let descriptor = memory.export_posix_fd().unwrap();
    let (one, bytes) = (descriptor.as_fd(), said.bytes);
    let known: Said<'_> = (Message::Segment(said), &[one]);
    let release = Message::Release(Release { sequence: 0, line: 0, generation: 0 });
    let cases: [(&str, &[Said<'_>]); 18] = [
        ("an unknown segment", &[(part(0, 1), &[])]),
        ("behind the end", &[known, (part(bytes, 1), &[])]),
        ("beyond the end", &[known, (part(0, bytes + 1), &[])]),
        ("one byte too many", &[known, (part(1, bytes), &[])]),
        ("far away", &[known, (part(1 << 62, 1), &[])]),
        ("a segment twice", &[known, known]),
        ("a segment without memory", &[(known.0, &[])]),
        ("a segment with two memories", &[(known.0, &[one, one])]),
        ("a buffer with a descriptor", &[known, (part(0, 1), &[one])]),
        ("the end of what never was", &[(Message::Retire { segment: 3 }, &[])]),
        (
            "the end of a segment twice",
            &[known, (Message::Retire { segment: 0 }, &[]), (Message::Retire { segment: 0 }, &[])],
        ),
        ("a part of what has ended", &[known, (Message::Retire { segment: 0 }, &[]), (part(0, 1), &[])]),
        ("a release", &[(release, &[])]),
        ("another offer", &[(Message::Offer(Offer::OURS), &[one, one])]),
        ("nothing to keep", &[(Message::Keep, &[])]),
        ("two things to keep", &[(Message::Keep, &[one, one])]),
        ("no pipe to keep", &[(Message::Keep, &[one])]),
        ("something to keep no more", &[(Message::Forget { keepsake: 0 }, &[])]),
    ];
    for (what, messages) in cases {
        let (importer, hostile, _words) = importer(&world);
        for (message, descriptors) in messages {
            say(&hostile, *message, descriptors);
        }
        let refused = importer.recv(LIMIT);
        assert!(matches!(refused, Err(Error::Protocol { .. })), "{what}: {refused:?}");
        assert!(matches!(importer.recv(LIMIT), Err(Error::Broken)), "{what}");
        assert!(hostile.recv(LIMIT).unwrap_err().is_gone(), "{what}");
        assert_eq!(importer.buffers(), 0);
    }
    let (importer, hostile, _words) = importer(&world);
    hostile.send(wire::HAND_OVER, b"no hand-over", &[], LIMIT).unwrap();
    assert!(matches!(importer.recv(LIMIT), Err(Error::Wire { .. })));
    assert_eq!(world.driver.release_failures(), 0);
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
    let good = [7, 0, 0, said.bytes, 0, 1, 1];
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
        ("no line", 1, with(4, 32 << 32)),
        ("no kind of fence", 1, with(4, 2)),
        ("an event", 1, with(4, 1)),
        ("no generation", 1, with(5, 0)),
        ("behind a message that never comes", 1, with(6, 100)),
    ] {
        let (importer, hostile, words) = importer(&world);
        say(&hostile, Message::Segment(said), &[descriptor.as_fd()]);
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
    say(&hostile, Message::Segment(said), &[descriptor.as_fd()]);
    write_ring(&words, 3, &good);
    write_ring(&words, 0, &[1]);
    assert_eq!(importer.recv(LIMIT).unwrap().sequence(), 7);
}

/// It is the exporter's loss: the buffer goes back, and what follows is as good as ever.
#[test]
fn memory_that_is_not_what_it_was_said_to_be_is_not_mapped() {
    let world = World::new();
    let (memory, said) = segment(&world, 0);
    let device = || memory.export_posix_fd().unwrap();
    let host = || SharedMapping::create(1 << 16).unwrap().as_fd().try_clone_to_owned().unwrap();
    let pool = Place::DevicePool { uuid: world.context.device().uuid().unwrap(), block: [9; 64] };
    let parts = Parts::new(&[said.bytes, said.bytes]).unwrap();
    let longer = Parts::new(&[said.bytes, 3 * said.bytes]).unwrap();
    let longer = Place::Parts { uuid: world.context.device().uuid().unwrap(), parts: longer };
    let two = Place::Parts { uuid: world.context.device().uuid().unwrap(), parts };
    let cases: [(&str, wire::Segment, Vec<OwnedFd>); 9] = [
        ("memory and no pool", wire::Segment { place: pool, ..said }, vec![device()]),
        (
            "no pool",
            wire::Segment { place: Place::NodePool { node: 0, block: [0; 64] }, ..said },
            vec![host()],
        ),
        (
            "a part that is none",
            wire::Segment { place: two, bytes: 2 * said.bytes, ..said },
            vec![device(), host()],
        ),
        (
            "parts that are larger",
            wire::Segment { place: longer, bytes: 4 * said.bytes, ..said },
            vec![device(), device()],
        ),
        ("larger", wire::Segment { bytes: said.bytes * 2, ..said }, vec![device()]),
        ("smaller", wire::Segment { bytes: said.bytes / 2, ..said }, vec![device()]),
        ("another device", wire::Segment { place: Place::Device([3; 16]), ..said }, vec![device()]),
        ("no memory", said, vec![File::open("/dev/null").unwrap().into()]),
        (
            "of the host, and larger",
            wire::Segment { place: Place::Host, bytes: 1 << 17, ..said },
            vec![host()],
        ),
    ];
    let (importer, hostile, _words) = importer(&world);
    for (number, (what, said, descriptors)) in (1..).zip(cases) {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        say(&hostile, Message::Segment(wire::Segment { segment: number, ..said }), &descriptors);
        for sequence in [10, 20] {
            let part = HandOver { sequence, segment: number, offset: 0, len: 1, fence: WORD };
            say(&hostile, Message::HandOver(part), &[]);
            let refused = importer.recv(LIMIT);
            assert!(
                matches!(refused, Err(Error::Core(_) | Error::WrongSize { .. } | Error::NoSuchDevice { .. })),
                "{what}: {refused:?}"
            );
            let release = Message::Release(Release { sequence, line: 0, generation: 0 });
            assert_eq!(heard(&hostile), release, "{what}");
        }
        say(&hostile, Message::Retire { segment: number }, &[]);
        if matches!(said.place, Place::DevicePool { .. } | Place::NodePool { .. }) {
            assert!(matches!(importer.recv(SHORT), Err(Error::Timeout { .. })));
            assert_eq!(heard(&hostile), Message::LetGo { segment: number }, "{what}");
        }
    }
    say(&hostile, Message::Segment(said), &[device().as_fd()]);
    say(&hostile, part(0, said.bytes), &[]);
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
    let offer = Message::Offer(Offer::OURS);
    let cases: [(&str, Message, &[BorrowedFd<'_>]); 6] = [
        ("no memory", offer, &[]),
        ("nothing to keep", offer, &[words.as_fd()]),
        ("too small", offer, &[small.as_fd(), null.as_fd()]),
        ("three", offer, &[words.as_fd(), null.as_fd(), null.as_fd()]),
        ("no file in memory", offer, &[null.as_fd(), null.as_fd()]),
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
        let mut offer = there.recv(LIMIT).unwrap();
        let words = SharedWords::open(&world.context, offer.descriptors.remove(0)).unwrap();
        let _branch = accept(&there, 0);
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
fn what_no_exporter_says_ahead_ends_the_connection() {
    let world = World::new();
    let (memory, said) = segment(&world, 0);
    let descriptor = memory.export_posix_fd().unwrap();
    let one = descriptor.as_fd();
    let known: Said<'_> = (Message::Segment(said), &[one]);
    let retired: Said<'_> = (Message::Retire { segment: 0 }, &[]);
    let release = Message::Release(Release { sequence: 0, line: 0, generation: 0 });
    let cases: [(&str, &[Said<'_>]); 12] = [
        ("a segment twice", &[known, known]),
        ("a segment without memory", &[(known.0, &[])]),
        ("a segment with two memories", &[(known.0, &[one, one])]),
        ("the end of what never was", &[retired]),
        ("the end of a segment twice", &[known, retired, retired]),
        ("an end with a descriptor", &[known, (retired.0, &[one])]),
        ("a buffer", &[known, (part(0, 1), &[])]),
        ("a release", &[(release, &[])]),
        ("a call", &[(Message::Ring, &[])]),
        ("an offer", &[(Message::Offer(Offer::OURS), &[one, one])]),
        ("something to keep", &[(Message::Keep, &[one])]),
        ("something to keep no more with a descriptor", &[(Message::Forget { keepsake: 0 }, &[one])]),
    ];
    for (what, messages) in cases {
        let (importer, hostile, _words, mut branch) = importer_ahead(&world, AheadLimit::default());
        messages.iter().for_each(|(message, descriptors)| branch.say(*message, descriptors));
        // Whether anybody receives or not.
        assert!(hostile.recv(LIMIT).unwrap_err().is_gone(), "{what}");
        assert!(matches!(importer.recv(LIMIT), Err(Error::Broken)), "{what}");
        eventually(what, || importer.mapped_ahead() == 0);
    }
    for (what, number, payload) in [("no message", 0, &b"no segment"[..]), ("not the next", 3, &[])] {
        let (_importer, hostile, _words, mut branch) = importer_ahead(&world, AheadLimit::default());
        branch.next = number;
        branch.send(wire::SEGMENT, payload, &[]);
        assert!(hostile.recv(LIMIT).unwrap_err().is_gone(), "{what}");
    }
    // What is announced ahead is known to whoever receives, and otherwise as before.
    for message in [Message::Retire { segment: 1 }, part(said.bytes, 1)] {
        let (importer, hostile, _words, mut branch) = importer_ahead(&world, AheadLimit::default());
        branch.say(known.0, known.1);
        say(&hostile, message, &[]);
        assert!(matches!(importer.recv(LIMIT), Err(Error::Protocol { .. })), "{message:?}");
    }
    assert_eq!(world.driver.release_failures(), 0);
}

#[test]
fn what_is_announced_ahead_is_bounded() {
    let world = World::new();
    let (memory, said) = segment(&world, 0);
    let descriptor = memory.export_posix_fd().unwrap();
    let limit = AheadLimit { segments: 3, bytes: 2 * said.bytes };
    let (importer, hostile, _words, mut branch) = importer_ahead(&world, limit);
    let mut announce =
        |segment| branch.say(Message::Segment(wire::Segment { segment, ..said }), &[descriptor.as_fd()]);
    (0..6).for_each(&mut announce);
    eventually("two are mapped", || importer.mapped_ahead() == 2);
    // The last, which is beyond: it is mapped when its buffer comes.
    let last = HandOver { sequence: 7, segment: 5, offset: 0, len: said.bytes, fence: WORD };
    say(&hostile, Message::HandOver(last), &[]);
    let buffer = importer.recv(LIMIT).unwrap();
    thread::sleep(SHORT);
    assert_eq!((importer.mapped_ahead(), buffer.len() as u64), (2, said.bytes));
    // One that announces without an end, however many are mapped.
    let (importer, hostile, _words, mut branch) = importer_ahead(&world, AheadLimit::NONE);
    for segment in 0..5000 {
        let said = Message::Segment(wire::Segment { segment, ..said });
        if !branch.try_say(said, &[descriptor.as_fd()]) {
            break;
        }
    }
    assert!(hostile.recv(LIMIT).unwrap_err().is_gone());
    assert_eq!(importer.mapped_ahead(), 0);
}

/// The exporter waits for it, whether it was imported, refused or never looked at.
#[test]
fn the_end_of_a_block_of_a_pool_that_was_announced_ahead_is_told() {
    let world = World::new();
    let (memory, said) = segment(&world, 0);
    let descriptor = memory.export_posix_fd().unwrap();
    let place = Place::DevicePool { uuid: world.context.device().uuid().unwrap(), block: [9; 64] };
    for limit in [AheadLimit::default(), AheadLimit::NONE] {
        let (_importer, hostile, _words, mut branch) = importer_ahead(&world, limit);
        for segment in 0..3 {
            let said = wire::Segment { segment, place, ..said };
            branch.say(Message::Segment(said), &[descriptor.as_fd()]);
            branch.say(Message::Retire { segment }, &[]);
            assert_eq!(heard(&hostile), Message::LetGo { segment });
        }
    }
}

/// It is an importer that hears nothing any more, and is told of each segment with its first buffer.
#[test]
fn an_exporter_that_says_nothing_ahead_any_more_hands_over_as_ever() {
    let world = World::new();
    let (memory, said) = segment(&world, 0);
    let descriptor = memory.export_posix_fd().unwrap();
    let (importer, hostile, _words, mut branch) = importer_ahead(&world, AheadLimit::default());
    branch.say(Message::Segment(said), &[descriptor.as_fd()]);
    drop(branch);
    say(&hostile, part(0, said.bytes), &[]);
    assert_eq!(importer.recv(LIMIT).unwrap().len() as u64, said.bytes);
    say(&hostile, Message::Segment(wire::Segment { segment: 1, ..said }), &[descriptor.as_fd()]);
    let other = HandOver { sequence: 8, segment: 1, offset: 0, len: 1, fence: WORD };
    say(&hostile, Message::HandOver(other), &[]);
    assert_eq!(importer.recv(LIMIT).unwrap().sequence(), 8);
}

#[test]
fn what_is_no_answer_to_an_offer_is_refused() {
    let world = World::new();
    let null = File::open("/dev/null").unwrap();
    let (reader, _writer) = std::io::pipe().unwrap();
    let stream = std::os::unix::net::UnixStream::pair().unwrap().0;
    let accept = Message::Accept(Accept { segments: 1, bytes: 1 });
    let cases: [(&str, Message, &[BorrowedFd<'_>]); 6] = [
        ("nowhere to hear", accept, &[]),
        ("two places", accept, &[null.as_fd(), null.as_fd()]),
        ("a file", accept, &[null.as_fd()]),
        ("a pipe", accept, &[reader.as_fd()]),
        ("another kind of socket", accept, &[stream.as_fd()]),
        ("another message", Message::Ring, &[]),
    ];
    for (what, message, descriptors) in cases {
        let (here, there) = both_ends();
        say(&there, message, descriptors);
        let refused = Exporter::new(&world.context, here, LIMIT);
        assert!(matches!(refused, Err(Error::Protocol { .. } | Error::NotAnEnd)), "{what}: {refused:?}");
    }
}

#[test]
fn what_no_importer_says_ends_its_leases() {
    let world = World::new();
    let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
    let null = File::open("/dev/null").unwrap();
    let release = |sequence| Message::Release(Release { sequence, line: 0, generation: 0 });
    let cases: [(&str, &[Said<'_>]); 5] = [
        ("a release of what was not handed over", &[(release(1), &[])]),
        ("a release twice", &[(release(0), &[]), (release(0), &[])]),
        ("a release with a descriptor", &[(release(0), &[null.as_fd()])]),
        ("the end of a segment", &[(Message::Retire { segment: 0 }, &[])]),
        ("something to keep", &[(Message::Keep, &[null.as_fd()])]),
    ];
    for (what, messages) in cases {
        let (exporter, hostile, _words) = exporter(&world, &pool);
        for (message, descriptors) in messages {
            say(&hostile, *message, descriptors);
        }
        eventually(what, || exporter.leases() == 0);
        assert!(hostile.recv(LIMIT).unwrap_err().is_gone(), "{what}");
        let stream = world.new_stream();
        let buffer = pool.allocate(1000, &stream).unwrap();
        // What is handed over in between goes back, too.
        eventually(what, || match exporter.hand_over(&buffer, &stream, LIMIT) {
            Ok(_) => false,
            Err(error) => error.is_gone() || matches!(error, Error::Broken),
        });
        eventually(what, || exporter.leases() == 0);
    }
    assert!(pool.trim() > 0, "nobody has anything of it any more");
    assert_eq!(world.driver.release_failures(), 0);
}

#[test]
fn what_no_importer_writes_into_the_ring_ends_its_leases() {
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
        say(&hostile, Message::Ring, &[]);
        eventually(what, || exporter.leases() == 0);
        assert!(hostile.recv(LIMIT).unwrap_err().is_gone(), "{what}");
    }
    // And what one does write ends its lease alone.
    let (exporter, hostile, words) = exporter(&world, &pool);
    write(&words, FIRST_OF_RELEASES, &[1]);
    say(&hostile, Message::Ring, &[]);
    eventually("it goes back", || exporter.leases() == 0);
    let stream = world.new_stream();
    let buffer = pool.allocate(1000, &stream).unwrap();
    assert_eq!(exporter.hand_over(&buffer, &stream, LIMIT).unwrap(), 1);
}

/// A fence that is never reached keeps nobody but its own exporter's streams, and them until the peer is gone.
#[test]
fn a_release_that_never_comes_ends_with_its_peer() {
    let world = World::new();
    let options = SharedPoolOptions { segment_bytes: 512, ..SharedPoolOptions::default() };
    let pool = SharedPool::new(&world.context, &options).unwrap();
    let (exporter, hostile, _words) = exporter(&world, &pool);
    say(&hostile, Message::Release(Release { sequence: 0, line: 5, generation: 1 << 60 }), &[]);
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
    use rustix::fs::{FallocateFlags, fallocate};
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
        let mut offer = hostile.recv(LIMIT).unwrap();
        let words = SharedWords::open(&world.context, offer.descriptors.remove(0)).unwrap();
        punch(&words).unwrap();
        let _branch = accept(&hostile, 0);
        (exporter.join().unwrap(), words)
    });
    assert!(punch(&words).is_err());
    let stream = world.new_stream();
    let buffer = pool.allocate(1000, &stream).unwrap();
    assert_eq!(exporter.hand_over(&buffer, &stream, LIMIT).unwrap(), 0);
    drop(buffer);
    say(&hostile, Message::Release(Release { sequence: 0, line: 5, generation: 1 << 60 }), &[]);
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

/// Segments of as many handles as can be, which nobody asked for and of which no buffer comes.
#[test]
fn what_is_announced_beyond_the_limit_keeps_few_descriptors_open() {
    const HANDLES: usize = 64;
    const SEGMENTS: u64 = 30;
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let world = World::new();
    let (importer, hostile, words, mut branch) = importer_ahead(&world, AheadLimit::NONE);
    let (memory, said) = segment(&world, 0);
    let descriptor = memory.export_posix_fd().unwrap();
    let before = open();
    let parts = Parts::new(&[said.bytes; HANDLES]).unwrap();
    let Place::Device(uuid) = said.place else { panic!("{said:?}") };
    for number in 0..SEGMENTS {
        let bytes = HANDLES as u64 * said.bytes;
        let said = wire::Segment { segment: number, bytes, place: Place::Parts { uuid, parts }, ..said };
        branch.say(Message::Segment(said), &[descriptor.as_fd(); HANDLES]);
    }
    // The last of them, behind which all are heard.
    let refused = HandOver { sequence: 0, segment: SEGMENTS - 1, offset: 0, len: 1, fence: WORD };
    say(&hostile, Message::HandOver(refused), &[]);
    let refused = importer.recv(LIMIT);
    assert!(matches!(refused, Err(Error::TooManyAnnounced { most: 1024, .. })), "{refused:?}");
    assert!(open() <= before + 1024, "{} are open, {before} were", open());
    // The connection goes on.
    let said = wire::Segment { segment: SEGMENTS, ..said };
    say(&hostile, Message::Segment(said), &[descriptor.as_fd()]);
    let good = HandOver { sequence: 1, segment: SEGMENTS, offset: 0, len: 1, fence: WORD };
    say(&hostile, Message::HandOver(good), &[]);
    drop(importer.recv(LIMIT).unwrap());
    drop(words);
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
        say(&hostile, Message::Segment(said), &[memory.as_fd()]);
    };
    let receive = |segment| {
        let part = HandOver { sequence: segment, segment, offset: 0, len: 1, fence: WORD };
        say(&hostile, Message::HandOver(part), &[]);
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
    assert!(world.driver.registrations_left() > 0);
    eventually("the descriptors are closed", || open() <= before + 1);
    gate.open();
    drop(words);
}

/// A file of memory that is not there: to pin it would make it, as large as the peer likes.
#[test]
fn host_memory_that_is_not_there_is_not_pinned() {
    let world = World::new();
    let (importer, hostile, _words) = importer(&world);
    let holes = SharedMapping::create(1 << 30).unwrap();
    let bytes = holes.bytes() as u64;
    let said = wire::Segment { segment: 0, generation: generation(), bytes, place: Place::Host };
    say(&hostile, Message::Segment(said), &[holes.as_fd()]);
    say(&hostile, part(0, 1), &[]);
    let refused = importer.recv(LIMIT);
    assert!(matches!(refused, Err(Error::WrongSize { said, found: 0 }) if said == bytes), "{refused:?}");
}

/// Whether nobody has the other end of a pipe any more.
fn is_closed(reader: &std::io::PipeReader) -> bool {
    let mut asked = [rustix::event::PollFd::new(reader, rustix::event::PollFlags::empty())];
    rustix::event::poll(&mut asked, Some(&rustix::time::Timespec::default())).unwrap() > 0
}

/// Those who wait for what an exporter handed on do so until nobody has it, and not until somebody receives once more.
#[test]
fn what_is_kept_goes_with_the_last_buffer_whatever_the_exporter_had_said() {
    let world = World::new();
    let (memory, said) = segment(&world, 0);
    let descriptor = memory.export_posix_fd().unwrap();
    let another = (Message::Segment(wire::Segment { segment: 1, ..said }), descriptor.as_fd());
    let (_more, keepsake) = std::io::pipe().unwrap();
    let buffer = part(0, said.bytes);
    let cases: [(&str, &[Said<'_>]); 7] = [
        ("nothing", &[]),
        ("a call", &[(Message::Ring, &[])]),
        ("a segment", &[(another.0, &[another.1])]),
        ("something to keep", &[(Message::Keep, &[keepsake.as_fd()])]),
        ("the end of a segment", &[(Message::Retire { segment: 0 }, &[])]),
        ("what no exporter says", &[(Message::Retire { segment: 9 }, &[])]),
        ("a call and a buffer and a call", &[(Message::Ring, &[]), (buffer, &[]), (Message::Ring, &[])]),
    ];
    for (what, unheard) in cases {
        let (importer, hostile, words) = importer(&world);
        let (keepers, keepsake) = std::io::pipe().unwrap();
        say(&hostile, Message::Keep, &[keepsake.as_fd()]);
        drop(keepsake);
        say(&hostile, Message::Segment(said), &[descriptor.as_fd()]);
        say(&hostile, buffer, &[]);
        let first = importer.recv(LIMIT).unwrap();
        for (message, descriptors) in unheard {
            say(&hostile, *message, descriptors);
        }
        drop(hostile);
        eventually(what, || matches!(first.is_ready(), Err(Error::PeerDied { .. })));
        thread::sleep(SHORT);
        assert!(!is_closed(&keepers), "{what}: there is a buffer");
        let second = unheard.iter().any(|(message, _)| *message == buffer).then(|| importer.recv(LIMIT));
        drop((first, second.transpose().unwrap()));
        eventually(what, || is_closed(&keepers));
        assert!(importer.recv(LIMIT).is_err());
        drop((importer, words));
    }
}

/// Work that a stream was given behind its use is nothing to those who wait for the use.
#[test]
fn what_is_kept_waits_for_no_later_work() {
    let world = World::new();
    let (memory, said) = segment(&world, 0);
    let descriptor = memory.export_posix_fd().unwrap();
    let (importer, hostile, words) = importer(&world);
    let (keepers, keepsake) = std::io::pipe().unwrap();
    say(&hostile, Message::Keep, &[keepsake.as_fd()]);
    drop(keepsake);
    say(&hostile, Message::Segment(said), &[descriptor.as_fd()]);
    say(&hostile, part(0, said.bytes), &[]);
    let (buffer, stream) = (importer.recv(LIMIT).unwrap(), world.new_stream());
    let before = Gate::before(&stream);
    drop(buffer.on(&stream).unwrap());
    drop(hostile);
    eventually("its end is noticed", || matches!(buffer.is_ready(), Err(Error::PeerDied { .. })));
    drop(buffer);
    thread::sleep(SHORT);
    assert!(!is_closed(&keepers), "the stream has not come to its use");
    let behind = Gate::before(&stream);
    before.open();
    eventually("it is let go", || is_closed(&keepers));
    assert!(!stream.is_idle().unwrap());
    behind.open();
    drop((importer, words));
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
        say(&hostile, Message::Release(Release { sequence, line: 5, generation: 1 }), &[]);
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

/// What goes around in a circle of processes comes again with each round.
#[test]
fn what_is_to_be_kept_is_kept_once() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let world = World::new();
    let (importer, hostile, words) = importer(&world);
    let (keepers, keepsake) = std::io::pipe().unwrap();
    let before = open();
    for _ in 0..250 {
        (0..20).for_each(|_| say(&hostile, Message::Keep, &[keepsake.as_fd()]));
        // Who does not wait at all looks at the ring alone most of the time.
        assert!(importer.recv(Duration::from_millis(2)).unwrap_err().is_timeout());
    }
    // Other tests have descriptors, too.
    assert!(open() < before + 1000, "{} are open, {before} were", open());
    drop(keepsake);
    assert!(!is_closed(&keepers));
    drop(hostile);
    eventually("it is closed", || is_closed(&keepers));
    drop((importer, words));
}

/// That it was given on is no reason to keep it: of two processes that wait for each other's copies neither would go on.
#[test]
fn what_was_given_on_is_closed_with_what_it_is_kept_for() {
    let world = World::new();
    let (memory, said) = segment(&world, 0);
    let descriptor = memory.export_posix_fd().unwrap();
    let (importer, before, words) = importer(&world);
    let (keepers, keepsake) = std::io::pipe().unwrap();
    say(&before, Message::Keep, &[keepsake.as_fd()]);
    drop(keepsake);
    say(&before, Message::Segment(said), &[descriptor.as_fd()]);
    say(&before, part(0, said.bytes), &[]);
    let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
    let (exporter, behind, _words) = exporter(&world, &pool);
    let buffer = importer.recv(LIMIT).unwrap();
    let sequence = exporter.hand_over(&buffer, &world.new_stream(), LIMIT).unwrap();
    for _ in 0..2 {
        assert_eq!(heard(&behind), Message::Keep);
    }
    drop(buffer);
    say(&behind, Message::Release(Release { sequence, line: 0, generation: 0 }), &[]);
    eventually("it goes back", || importer.buffers() == 0);
    assert!(!is_closed(&keepers));
    drop(before);
    eventually("it is closed", || is_closed(&keepers));
    drop((importer, exporter, behind, words));
}

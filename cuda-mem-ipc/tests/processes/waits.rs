//! What waits for a stream or a peer holds up nobody else, and loses nothing when the peer dies meanwhile.

use std::os::fd::AsFd;
use std::time::Duration;

use cuda_mem_core::{DeviceBuffer, Error as CoreError};
use cuda_mem_ipc::Error;
use cuda_mem_ipc::shared::wire::{Message, Point, Release};
use cuda_mem_ipc::shared::{Exportable, Exporter, Importer, MemoryKind, SharedPool, SharedPoolOptions};
use cuda_mem_pool::MemoryResource;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};

use crate::common::capture::{Capture, GLOBAL, RELAXED};
use crate::common::gate::Gate;
use crate::common::{World, pattern};
use crate::hostile::{exporter, importer, part};
use crate::link::{LIMIT, SHORT, enqueue_download, eventually, kinds, options, upload};
use crate::raw::{both_ends, hand, release, say, segment, write};

const LEN: usize = 100_000;

/// The stream captures, so that no release can be recorded before the exporter is gone.
#[test]
fn a_buffer_that_could_not_go_back_is_unmapped_behind_its_uses() {
    let world = World::new();
    let (memory, said) = segment(&world, 0);
    let (importer, hostile, words) = importer(&world);
    say(&hostile, Message::Segment(said.clone()), &[memory.export_posix_fd().unwrap().as_fd()]);
    hand(&words, part(0, LEN as u64));
    // The exporter's work is done.
    write(&words, 0, &[1]);
    let buffer = importer.recv(LIMIT).unwrap();
    upload(&world.stream, buffer.as_raw(), &pattern(LEN, 5));
    let stream = world.new_stream();
    let target = DeviceBuffer::zeroed(&stream, LEN).unwrap();
    stream.synchronize().unwrap();
    let gate = Gate::before(&stream);
    enqueue_download(&stream, buffer.on(&stream).unwrap().address(), &target);
    let capture = Capture::begin(&stream, RELAXED);
    drop(buffer);
    assert_eq!(importer.buffers(), 1, "nothing can be recorded yet");
    drop(hostile);
    eventually("it has gone back", || importer.buffers() == 0);
    drop(importer);
    capture.end().unwrap();
    // Long enough for what must not be done.
    std::thread::sleep(SHORT);
    assert!(!stream.is_idle().unwrap());
    gate.open();
    assert!(target.to_vec(&stream).unwrap() == pattern(LEN, 5));
    assert_eq!(world.driver.release_failures(), 0);
}

/// Its work is done when a graph is launched, and by nothing that a receiver could wait for.
#[test]
fn nothing_is_handed_over_by_a_stream_that_captures() {
    let world = World::new();
    let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
    let (exporter, _hostile, _words) = exporter(&world, &pool);
    let stream = world.new_stream();
    let buffer = pool.allocate(LEN, &stream).unwrap();
    stream.synchronize().unwrap();
    let lent = exporter.leases();
    let capture = Capture::begin(&stream, RELAXED);
    let refused = exporter.hand_over(&buffer, &stream, LIMIT);
    assert!(matches!(refused, Err(Error::Core(CoreError::Capturing { .. }))), "{refused:?}");
    assert_eq!(exporter.leases(), lent);
    capture.end().unwrap();
    exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
    assert_eq!(exporter.leases(), lent + 1);
}

/// In the mode in which the driver ends a capture for most calls of any thread: connecting, mapping, handing over and giving back are
/// none of those.
#[test]
fn a_buffer_goes_over_and_back_beside_a_global_capture() {
    let world = World::new();
    for kind in kinds(&world) {
        let captured = world.new_stream();
        let capture = Capture::begin(&captured, GLOBAL);
        // From another thread, and from this one, which captures.
        let there_and_back = || {
            let (here, there) = both_ends();
            let theirs = world.context.clone();
            let importer = std::thread::spawn(move || Importer::new(&theirs, there, LIMIT).unwrap());
            let exporter = Exporter::new(&world.context, here, LIMIT).unwrap();
            let importer = importer.join().unwrap();
            let pool = SharedPool::new(&world.context, &options(kind, 2 << 20)).unwrap();
            let stream = world.new_stream();
            let buffer = pool.allocate(LEN, &stream).unwrap();
            if kind == MemoryKind::Host {
                buffer.write(0, &pattern(LEN, 1), LIMIT).unwrap();
            }
            exporter.hand_over(buffer.range(0..LEN).unwrap(), &stream, LIMIT).unwrap();
            let received = importer.recv(LIMIT).unwrap();
            received.synchronize(LIMIT).unwrap();
            assert!(received.is_ready().unwrap());
            drop(received.on(&stream).unwrap());
            if kind == MemoryKind::Host {
                let mut bytes = vec![0; LEN];
                received.read(0, &mut bytes, LIMIT).unwrap();
                assert!(bytes == pattern(LEN, 1));
                received.write(0, &bytes, LIMIT).unwrap();
            }
            drop((received, importer));
            eventually("it is back", || exporter.leases() == 0);
            if kind == MemoryKind::Host {
                buffer.read(0, &mut [0; LEN], LIMIT).unwrap();
            }
        };
        std::thread::scope(|scope| scope.spawn(there_and_back).join().unwrap());
        there_and_back();
        assert_eq!(capture.end().map(|graph| graph.len()), Ok(0), "{kind:?}: the capture was harmed");
    }
}

/// An importer that ends has let go of all that it knew, and hears of segments that end after it as long as its last release is not
/// reached.
#[test]
fn segments_may_end_while_an_importer_does() {
    let world = World::new();
    let (here, there) = both_ends();
    let theirs = world.context.clone();
    let importer = std::thread::spawn(move || Importer::new(&theirs, there, LIMIT).unwrap());
    let exporter = Exporter::new(&world.context, here, LIMIT).unwrap();
    let importer = importer.join().unwrap();
    let stream = world.new_stream();
    let blocks = SharedPool::new(&world.context, &options(MemoryKind::DevicePool, 2 << 20)).unwrap();
    let buffer = blocks.allocate(2 << 20, &stream).unwrap();
    exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
    let pool = SharedPool::new(&world.context, &options(MemoryKind::Device, 2 << 20)).unwrap();
    exporter.attach(&pool).unwrap();
    let unused = pool.allocate(LEN, &stream).unwrap();
    let received = importer.recv(LIMIT).unwrap();
    eventually("it is mapped ahead", || importer.mapped_ahead() == 1);
    let (user, target) = (world.new_stream(), DeviceBuffer::zeroed(&stream, LEN).unwrap());
    stream.synchronize().unwrap();
    let gate = Gate::before(&user);
    enqueue_download(&user, received.on(&user).unwrap().address(), &target);
    drop((received, importer));
    eventually("it was given back", || exporter.leases() == 0);
    let (next, address) = (world.new_stream(), buffer.as_raw());
    drop(buffer);
    let again = blocks.allocate(2 << 20, &next).unwrap();
    assert_eq!(again.on(&next).unwrap().address(), address);
    drop(unused);
    assert!(pool.trim() > 0);
    // Longer than an end is waited for that is no death.
    std::thread::sleep(Duration::from_secs(1));
    assert!(!next.is_idle().unwrap(), "the importer's work is not over");
    gate.open();
    next.synchronize().unwrap();
    user.synchronize().unwrap();
}

/// The importer takes no messages, and somebody waits for it to take one.
#[test]
fn who_announces_a_segment_holds_up_nobody_with_less_time() {
    let world = World::new();
    let pool = SharedPool::new(&world.context, &options(MemoryKind::Device, 2 << 20)).unwrap();
    let (exporter, hostile, _words) = exporter(&world, &pool);
    let stream = world.new_stream();
    let known = pool.allocate(1, &stream).unwrap();
    let full = loop {
        if let Err(error) = exporter.hand_over(&known, &stream, Duration::ZERO) {
            break error;
        }
    };
    assert!(full.is_timeout(), "{full}");
    let (one, other) =
        (pool.allocate_isolated(1, &stream).unwrap(), pool.allocate_isolated(1, &stream).unwrap());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| exporter.hand_over(&one, &stream, LIMIT));
        // By now it waits, most likely.
        std::thread::sleep(SHORT);
        assert!(exporter.hand_over(&other, &stream, SHORT).unwrap_err().is_timeout());
        assert!(!waiting.is_finished(), "the one with more time still waits");
        drop(hostile);
        assert!(waiting.join().unwrap().unwrap_err().is_gone());
    });
}

/// The last handle of an allocator goes with the lease, and its end waits for its streams.
#[test]
fn a_lease_whose_end_waits_for_a_stream_hides_nobody_s_death() {
    let world = World::new();
    let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
    let (to_first, first, words) = exporter(&world, &pool);
    let (to_second, second, _others) = exporter(&world, &pool);
    let stream = world.new_stream();
    let allocator = CachingAllocator::new(&world.context, &CachingOptions::default()).unwrap();
    let block = allocator.allocate(LEN, &stream).unwrap();
    let gate = Gate::new(&world.context);
    drop(block.on(&stream).unwrap());
    let lent = Exportable::new(&allocator, block).unwrap();
    let sequence = to_first.hand_over(&lent, &world.stream, LIMIT).unwrap();
    gate.hold(&stream);
    drop((lent, allocator));
    release(&first, &words, Release { sequence, fence: Point { line: 0, generation: 0 } });
    drop(second);
    eventually("the second one's lease ends", || to_second.leases() == 0);
    // Behind it, and not held up by it.
    release(&first, &words, Release { sequence: 0, fence: Point { line: 0, generation: 0 } });
    eventually("and the one behind", || to_first.leases() == 1);
    gate.open();
    eventually("the allocator goes", || to_first.leases() == 0);
    assert_eq!(world.driver.release_failures(), 0);
}

/// What the first peer had is unregistered only when the stream is idle: the driver would hold up every launch meanwhile, and with
/// it whoever looks after the second one.
#[test]
fn a_peer_s_end_holds_up_nobody_while_a_stream_waits_for_another() {
    let world = World::new();
    let (memory, said) = segment(&world, 0);
    let (first_importer, first, _words) = importer(&world);
    let (second_importer, second, others) = importer(&world);
    say(&second, Message::Segment(said.clone()), &[memory.export_posix_fd().unwrap().as_fd()]);
    hand(&others, part(0, LEN as u64));
    let buffer = second_importer.recv(LIMIT).unwrap();
    let (waiting, other) = (world.new_stream(), world.new_stream());
    // Behind a fence that the second one never comes to.
    drop(buffer.on(&waiting).unwrap());
    drop(first);
    assert!(first_importer.recv(LIMIT).unwrap_err().is_gone());
    eventually("its words are let go of", || world.driver.registrations_left() > 0);
    let target = DeviceBuffer::<u8>::zeroed(&other, LEN).unwrap();
    assert!(target.to_vec(&world.new_stream()).unwrap() == vec![0; LEN]);
    assert!(!waiting.is_idle().unwrap(), "it waits for the second one");
    drop(second);
    eventually("the poison lets it go", || waiting.is_idle().unwrap());
    drop((buffer, target, first_importer, second_importer));
    eventually("nothing is left", || world.driver.registrations_left() == 0);
    assert_eq!(world.driver.release_failures(), 0);
}

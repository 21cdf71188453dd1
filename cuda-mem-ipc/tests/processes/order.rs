//! Who waits for whom: the receiver for the exporter's work, and the exporter for the receiver's.

use cuda_mem_core::{DeviceBuffer, Stream};
use cuda_mem_ipc::Error;
use cuda_mem_ipc::shared::{SharedPool, SharedPoolOptions};

use crate::common::gate::Gate;
use crate::common::pair::{self, Cast, Channel, checksum, test_name};
use crate::common::{World, pattern};
use crate::link::{
    LIMIT, SHORT, enqueue_download, enqueue_upload, eventually, export_to, import_from, upload,
};

const LEN: usize = 100_000;

/// Whether the receiver waits for the fence: without it, the same test must see other bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fences {
    Kept,
    Removed,
}

fn reader(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let (stream, fences) = (world.new_stream(), first.receive().bytes);
    let buffer = importer.recv(LIMIT).unwrap();
    assert_eq!((buffer.len(), buffer.sequence()), (LEN, 0));
    assert!(!buffer.is_ready().unwrap());
    assert!(matches!(buffer.synchronize(SHORT), Err(Error::Timeout { .. })));
    let target = DeviceBuffer::zeroed(&stream, LEN).unwrap();
    stream.synchronize().unwrap();
    if fences == b"kept" {
        enqueue_download(&stream, buffer.on(&stream).unwrap().address(), &target);
        assert!(!stream.is_idle().unwrap());
    } else {
        enqueue_download(&stream, buffer.as_raw(), &target);
        stream.synchronize().unwrap();
    }
    first.send(b"enqueued", &[]);
    first.send_words(&[checksum(&target.to_vec(&stream).unwrap())]);
    assert_eq!(first.receive().bytes, b"done");
    buffer.synchronize(LIMIT).unwrap();
    assert!(buffer.is_ready().unwrap());
}

/// What the receiver of a buffer sees whose bytes are written while it has it already.
fn seen(cast: Cast, fences: Fences) -> u64 {
    let world = World::new();
    let stream = world.new_stream();
    let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
    let buffer = pool.allocate(LEN, &stream).unwrap();
    let new = DeviceBuffer::from_slice(&stream, &pattern(LEN, 2)).unwrap();
    upload(&stream, buffer.as_raw(), &pattern(LEN, 1));
    let reader = cast.start("reader");
    let exporter = export_to(&world, &reader);
    reader.send(if fences == Fences::Kept { b"kept" } else { b"none" }, &[]);

    let gate = Gate::before(&stream);
    enqueue_upload(&stream, buffer.on(&stream).unwrap().address(), &new);
    exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
    drop(buffer);
    assert_eq!(exporter.leases(), 1);
    assert_eq!(reader.receive().bytes, b"enqueued");
    gate.open();
    let sum = reader.receive().words()[0];
    reader.send(b"done", &[]);
    eventually("the buffer goes back", || exporter.leases() == 0);
    reader.finish();
    sum
}

#[test]
fn a_receiver_s_stream_waits_for_the_word_of_the_exporter_s() {
    pair::play(test_name!(), &[("reader", reader)], |cast| {
        assert_eq!(seen(cast, Fences::Kept), checksum(&pattern(LEN, 2)));
    });
}

#[test]
fn without_the_fence_a_receiver_sees_what_was_there_before() {
    pair::play(test_name!(), &[("reader", reader)], |cast| {
        assert_eq!(seen(cast, Fences::Removed), checksum(&pattern(LEN, 1)));
    });
}

fn slow_reader(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let streams = [world.new_stream(), world.new_stream()];
    for count in [1, 2] {
        let buffer = importer.recv(LIMIT).unwrap();
        let targets = streams.each_ref().map(|stream| DeviceBuffer::zeroed(stream, LEN).unwrap());
        let gate = Gate::new(&world.context);
        for (stream, target) in streams.iter().zip(&targets).take(count) {
            stream.synchronize().unwrap();
            gate.hold(stream);
            enqueue_download(stream, buffer.on(stream).unwrap().address(), target);
        }
        drop(buffer);
        assert_eq!(importer.buffers(), 0);
        first.send(b"dropped", &[]);
        assert_eq!(first.receive().bytes, b"overwritten, as soon as you have read it");
        gate.open();
        let sums = streams.iter().zip(&targets).take(count);
        let sums: Vec<_> = sums.map(|(stream, target)| checksum(&target.to_vec(stream).unwrap())).collect();
        first.send_words(&sums);
    }
}

/// With one stream, and with two of which either may be the last.
#[test]
fn memory_that_a_receiver_gave_back_is_written_behind_its_work() {
    pair::play(test_name!(), &[("reader", slow_reader)], |cast| {
        let world = World::new();
        let (stream, other) = (world.new_stream(), world.new_stream());
        // Room for one buffer: the next one gets the same bytes.
        let options = SharedPoolOptions { segment_bytes: LEN, ..SharedPoolOptions::default() };
        let pool = SharedPool::new(&world.context, &options).unwrap();
        let whole = { pool.allocate(LEN, &stream).unwrap() };
        let reserved = pool.reserved_bytes();
        drop(whole);
        let reader = cast.start("reader");
        let exporter = export_to(&world, &reader);
        for count in [1, 2] {
            let buffer = pool.allocate(reserved, &stream).unwrap();
            upload(&stream, buffer.on(&stream).unwrap().address(), &pattern(LEN, count));
            exporter.hand_over(buffer.range(0..LEN).unwrap(), &stream, LIMIT).unwrap();
            let first = buffer.as_raw();
            drop(buffer);
            assert_eq!(reader.receive().bytes, b"dropped");
            eventually("the buffer goes back", || exporter.leases() == 0);

            let bytes = DeviceBuffer::from_slice(&other, &pattern(LEN, 99)).unwrap();
            other.synchronize().unwrap();
            let again = pool.allocate(reserved, &other).unwrap();
            assert_eq!((again.as_raw(), pool.reserved_bytes()), (first, reserved));
            assert!(!other.is_idle().unwrap(), "it waits for the receiver");
            enqueue_upload(&other, again.on(&other).unwrap().address(), &bytes);
            reader.send(b"overwritten, as soon as you have read it", &[]);
            let expected = vec![checksum(&pattern(LEN, count)); usize::from(count)];
            assert_eq!(reader.receive().words(), expected);
            other.synchronize().unwrap();
        }
        reader.finish();
    });
}

/// More than the ring has room for.
#[test]
fn buffers_are_received_in_their_order() {
    const COUNT: u64 = 1500;
    fn receiver(first: &Channel) {
        let world = World::new();
        let importer = import_from(&world, first);
        let receive = |sequence| {
            let buffer = importer.recv(LIMIT).unwrap();
            assert_eq!((buffer.sequence(), buffer.len() as u64), (sequence, sequence + 1));
        };
        // Asleep at first, and late then.
        receive(0);
        assert_eq!(first.receive().bytes, b"some are there");
        (1..COUNT).for_each(receive);
    }
    pair::play(test_name!(), &[("receiver", receiver)], |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
        let whole = pool.allocate(LEN, &stream).unwrap();
        let receiver = cast.start("receiver");
        let exporter = export_to(&world, &receiver);
        for sequence in 0..COUNT {
            // Segments come and go between the others.
            let isolated = (sequence % 97 == 5).then(|| pool.allocate_isolated(LEN, &stream).unwrap());
            let part = isolated.as_ref().unwrap_or(&whole).range(0..usize::try_from(sequence).unwrap() + 1);
            exporter.hand_over(part.unwrap(), &stream, LIMIT).unwrap();
            if sequence == 140 {
                receiver.send(b"some are there", &[]);
            }
        }
        eventually("all go back", || exporter.leases() == 0);
        receiver.finish();
    });
}

/// Two streams that hand over in turn, neither of which waits for the other.
#[test]
fn streams_hand_over_without_waiting_for_each_other() {
    fn receiver(first: &Channel) {
        let world = World::new();
        let importer = import_from(&world, first);
        let (held, free) = (importer.recv(LIMIT).unwrap(), importer.recv(LIMIT).unwrap());
        free.synchronize(LIMIT).unwrap();
        assert!(!held.is_ready().unwrap());
        first.send(b"free", &[]);
        held.synchronize(LIMIT).unwrap();
    }
    pair::play(test_name!(), &[("receiver", receiver)], |cast| {
        let world = World::new();
        let (held, free) = (world.new_stream(), world.new_stream());
        let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
        let buffer = |stream: &Stream| pool.allocate(LEN, stream).unwrap();
        let (first, second) = (buffer(&held), buffer(&free));
        let receiver = cast.start("receiver");
        let exporter = export_to(&world, &receiver);
        let gate = Gate::before(&held);
        exporter.hand_over(&first, &held, LIMIT).unwrap();
        exporter.hand_over(&second, &free, LIMIT).unwrap();
        assert_eq!(receiver.receive().bytes, b"free");
        gate.open();
        receiver.finish();
    });
}

/// Segments come and go while other threads' are announced: nobody's overtakes its announcement.
#[test]
fn threads_hand_over_new_segments_at_once() {
    const THREADS: u64 = 4;
    const EACH: u64 = 60;
    fn receiver(first: &Channel) {
        let world = World::new();
        let importer = import_from(&world, first);
        for sequence in 0..THREADS * EACH {
            let buffer = importer.recv(LIMIT).unwrap();
            assert!((1..=THREADS).contains(&(buffer.len() as u64)), "{sequence}");
        }
        first.send(b"all", &[]);
    }
    pair::play(test_name!(), &[("receiver", receiver)], |cast| {
        let world = World::new();
        let pool = SharedPool::new(&world.context, &SharedPoolOptions::default()).unwrap();
        let receiver = cast.start("receiver");
        let exporter = export_to(&world, &receiver);
        std::thread::scope(|scope| {
            for thread in 1..=THREADS {
                let (pool, exporter, stream) = (&pool, &exporter, world.new_stream());
                scope.spawn(move || {
                    for _ in 0..EACH {
                        let len = usize::try_from(thread).unwrap();
                        let buffer = pool.allocate_isolated(LEN, &stream).unwrap();
                        exporter.hand_over(buffer.range(0..len).unwrap(), &stream, LIMIT).unwrap();
                    }
                });
            }
        });
        assert_eq!(receiver.receive().bytes, b"all");
        eventually("all go back", || exporter.leases() == 0);
        receiver.finish();
    });
}

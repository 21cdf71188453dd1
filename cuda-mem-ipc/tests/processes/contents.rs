//! What was written is what is read in the other process: at offsets, many at once, and under load.

use std::time::Duration;

use cuda_mem_core::DeviceBuffer;
use cuda_mem_ipc::shared::{MemoryKind, SharedPool};

use crate::common::kernels::Kernels;
use crate::common::pair::{self, Cast, Channel, checksum, test_name};
use crate::common::{World, pattern};
use crate::link::{
    LIMIT, download, enqueue_download, enqueue_upload, eventually, export_to, import_from, kinds, options,
    upload,
};

const COUNT: usize = 1000;

/// Sizes that are no round numbers.
fn len_of(index: usize) -> usize {
    3000 + index * 7 % 2000
}

fn receiver_of_many(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let stream = world.new_stream();
    let buffers: Vec<_> = (0..COUNT).map(|_| importer.recv(LIMIT).unwrap()).collect();
    assert_eq!(importer.buffers(), COUNT);
    for (index, buffer) in buffers.iter().enumerate() {
        assert_eq!((buffer.len(), buffer.sequence()), (len_of(index), index as u64));
        let address = buffer.on(&stream).unwrap().address();
        let seen = checksum(&download(&stream, address, buffer.len()));
        assert_eq!(seen, checksum(&pattern(buffer.len(), index as u8)), "buffer {index}");
        // The exporter reads them again.
        upload(&stream, address, &pattern(buffer.len(), !(index as u8)));
    }
    first.send(b"seen", &[]);
    drop(buffers);
    // Those that find the exporter's queue full go a little later.
    eventually("all go back", || importer.buffers() == 0);
    assert_eq!(first.receive().bytes, b"done");
    assert_eq!(world.driver.release_failures(), 0);
}

#[test]
fn a_thousand_buffers_of_each_kind_are_there_at_once() {
    pair::play_beside(test_name!(), &[("receiver", receiver_of_many)], |cast| {
        let world = World::new();
        for kind in kinds(&world) {
            a_thousand(cast, &world, kind);
        }
        assert_eq!(world.driver.release_failures(), 0);
    });
}

fn a_thousand(cast: Cast, world: &World, kind: MemoryKind) {
    let stream = world.new_stream();
    let pool = SharedPool::new(&world.context, &options(kind, 64 << 20)).unwrap();
    let receiver = cast.start("receiver");
    let exporter = export_to(world, &receiver);
    let mut buffers = Vec::new();
    for index in 0..COUNT {
        let buffer = pool.allocate(len_of(index), &stream).unwrap();
        upload(&stream, buffer.as_raw(), &pattern(buffer.len(), index as u8));
        assert_eq!(exporter.hand_over(&buffer, &stream, LIMIT).unwrap(), index as u64);
        buffers.push(buffer);
    }
    assert_eq!(exporter.leases(), COUNT);
    assert_eq!(receiver.receive().bytes, b"seen");
    eventually("all go back", || exporter.leases() == 0);
    for (index, buffer) in buffers.iter().enumerate() {
        let address = buffer.on(&stream).unwrap().address();
        let seen = checksum(&download(&stream, address, buffer.len()));
        assert_eq!(seen, checksum(&pattern(buffer.len(), !(index as u8))), "{kind:?}: buffer {index}");
    }
    drop(buffers);
    // One segment, which nobody uses: the pool gives all of it back.
    assert_eq!((pool.trim(), pool.reserved_bytes()), (64 << 20, 0));
    receiver.send(b"done", &[]);
    receiver.finish();
}

const ROUNDS: usize = 400;
const LEN: usize = 200_000;

fn busy_receiver(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let kernels = Kernels::load(&world.context);
    let streams = [(); 3].map(|()| world.new_stream());
    let mut targets = Vec::new();
    for round in 0..ROUNDS {
        let stream = &streams[round % streams.len()];
        let buffer = importer.recv(LIMIT).unwrap();
        let target = DeviceBuffer::<u8>::zeroed(stream, LEN).unwrap();
        let address = buffer.on(stream).unwrap().address();
        kernels.spin(stream, Duration::from_micros(100));
        enqueue_download(stream, address, &target);
        // While the copy is on its way.
        drop(buffer);
        targets.push((stream, target));
        if targets.len() == 20 {
            let sums = targets.drain(..).map(|(stream, target)| checksum(&target.to_vec(stream).unwrap()));
            first.send_words(&sums.collect::<Vec<_>>());
        }
    }
}

/// Both sides drop buffers under work, and the exporter writes into the same few bytes again at once.
#[test]
fn memory_is_used_again_at_once_while_both_sides_work() {
    pair::play(test_name!(), &[("receiver", busy_receiver)], |cast| {
        let world = World::new();
        let kernels = Kernels::load(&world.context);
        let streams = [(); 3].map(|()| world.new_stream());
        let pool = SharedPool::new(&world.context, &options(MemoryKind::Device, 2 << 20)).unwrap();
        let sources: Vec<_> =
            (0..7).map(|seed| DeviceBuffer::from_slice(&streams[0], &pattern(LEN, seed)).unwrap()).collect();
        streams[0].synchronize().unwrap();
        let receiver = cast.start("receiver");
        let exporter = export_to(&world, &receiver);
        for round in 0..ROUNDS {
            let stream = &streams[round % streams.len()];
            // More than fits would be new segments, and nothing used again.
            eventually("buffers go back", || exporter.leases() < 6);
            let buffer = pool.allocate(LEN, stream).unwrap();
            let address = buffer.on(stream).unwrap().address();
            kernels.spin(stream, Duration::from_micros(100));
            enqueue_upload(stream, address, &sources[round % sources.len()]);
            exporter.hand_over(&buffer, stream, LIMIT).unwrap();
            drop(buffer);
            if (round + 1) % 20 == 0 {
                let expected: Vec<_> = (round - 19..=round)
                    .map(|round| checksum(&pattern(LEN, (round % sources.len()) as u8)))
                    .collect();
                assert_eq!(receiver.receive().words(), expected, "round {round}");
            }
        }
        assert_eq!(pool.reserved_bytes(), 2 << 20, "the memory was used again");
        receiver.finish();
        eventually("all go back", || exporter.leases() == 0);
        assert_eq!(world.driver.release_failures(), 0);
    });
}

fn receiver_of_parts(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let stream = world.new_stream();
    for _ in 0..3 {
        let buffer = importer.recv(LIMIT).unwrap();
        let address = buffer.on(&stream).unwrap().address();
        first.send_words(&[checksum(&download(&stream, address, buffer.len()))]);
    }
}

#[test]
fn parts_of_a_buffer_of_each_kind_are_handed_over() {
    pair::play(test_name!(), &[("receiver", receiver_of_parts)], |cast| {
        let world = World::new();
        for kind in kinds(&world) {
            parts(cast, &world, kind);
        }
    });
}

fn parts(cast: Cast, world: &World, kind: MemoryKind) {
    let stream = world.new_stream();
    let pool = SharedPool::new(&world.context, &options(kind, 64 << 20)).unwrap();
    // Not at the start of its segment.
    let _before = pool.allocate(12_345, &stream).unwrap();
    let buffer = pool.allocate(LEN, &stream).unwrap();
    let bytes = pattern(LEN, 5);
    upload(&stream, buffer.as_raw(), &bytes);
    let receiver = cast.start("receiver");
    let exporter = export_to(world, &receiver);
    for range in [0..1, 777..100_001, LEN - 1..LEN] {
        exporter.hand_over(buffer.range(range.clone()).unwrap(), &stream, LIMIT).unwrap();
        assert_eq!(receiver.receive().words(), [checksum(&bytes[range])], "{kind:?}");
    }
    #[allow(clippy::reversed_empty_ranges, reason = "what must be refused")]
    for range in [0..0, 5..4, 0..LEN + 1, LEN..LEN + 1, 1..usize::MAX] {
        assert!(buffer.range(range).is_err());
    }
    receiver.finish();
}

//! Segments that an importer hears of, and maps, before a buffer of them comes.

use cuda_mem_core::DeviceBuffer;
use cuda_mem_ipc::Error;
use cuda_mem_ipc::shared::{AheadLimit, Exportable, Importer, MemoryKind, SharedPool};
use cuda_mem_pool::MemoryResource;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};

use crate::common::gate::Gate;
use crate::common::pair::{self, Cast, Channel, checksum, test_name};
use crate::common::{World, pattern};
use crate::hostile::exporter;
use crate::link::{
    LIMIT, download, enqueue_download, enqueue_upload, eventually, export_to, import_from, invited, kinds,
    options, upload,
};

const LEN: usize = 100_000;
const SEGMENT: usize = 4 << 20;

/// Waits for three segments, takes a buffer of two of them, and calls nothing while the third goes.
fn reader(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let stream = world.new_stream();
    for segments in [3, 2] {
        eventually("they are mapped", || importer.mapped_ahead() == segments);
        first.send(b"mapped", &[]);
        let buffer = importer.recv(LIMIT).unwrap();
        assert_eq!(importer.mapped_ahead(), segments - 1, "one of them has a buffer now");
        let target = DeviceBuffer::zeroed(&stream, LEN).unwrap();
        enqueue_download(&stream, buffer.on(&stream).unwrap().address(), &target);
        first.send(b"enqueued", &[]);
        first.send_words(&[checksum(&target.to_vec(&stream).unwrap())]);
    }
    eventually("what never had a buffer goes as well", || importer.mapped_ahead() == 0);
    first.send(b"retired", &[]);
    assert!(importer.recv(LIMIT).unwrap_err().is_gone());
    drop(importer);
    assert_eq!(world.driver.release_failures(), 0);
}

#[test]
fn segments_of_an_attached_pool_are_mapped_before_their_first_buffer() {
    pair::play(test_name!(), &[("reader", reader)], |cast| {
        let world = World::new();
        kinds(&world).into_iter().for_each(|kind| attach(cast, &world, kind));
        assert_eq!(world.driver.release_failures(), 0);
    });
}

fn attach(cast: Cast, world: &World, kind: MemoryKind) {
    let stream = world.new_stream();
    let pool = SharedPool::new(&world.context, &options(kind, SEGMENT)).unwrap();
    let source = DeviceBuffer::from_slice(&stream, &pattern(LEN, 6)).unwrap();
    let whole = || pool.allocate(SEGMENT, &stream).unwrap();
    // One that is there already, two that come, and one that is nobody else's.
    let one = whole();
    let reader = cast.start("reader");
    let exporter = export_to(world, &reader);
    exporter.attach(&pool).unwrap();
    let own = pool.allocate_isolated(LEN, &stream).unwrap();
    let (two, three) = (whole(), whole());
    for buffer in [one, two] {
        assert_eq!(reader.receive().bytes, b"mapped", "{kind:?}");
        let gate = Gate::before(&stream);
        enqueue_upload(&stream, buffer.on(&stream).unwrap().address(), &source);
        exporter.hand_over(buffer.range(0..LEN).unwrap(), &stream, LIMIT).unwrap();
        assert_eq!(reader.receive().bytes, b"enqueued");
        gate.open();
        assert_eq!(reader.receive().words(), [checksum(&pattern(LEN, 6))], "{kind:?}");
        // Else the next one has its memory.
        eventually("it goes back", || exporter.leases() == 0);
    }
    drop((own, three));
    assert!(pool.trim() >= SEGMENT);
    assert_eq!(reader.receive().bytes, b"retired", "{kind:?}");
    drop(exporter);
    reader.finish();
}

/// Takes at most one segment ahead, and each buffer when it is told to.
fn modest(first: &Channel) {
    let world = World::new();
    let limit = AheadLimit { segments: 1, ..AheadLimit::default() };
    let importer = Importer::with_ahead(&world.context, invited(first), limit, LIMIT).unwrap();
    let stream = world.new_stream();
    let mut buffers = Vec::new();
    for seed in [1, 2, 3] {
        assert_eq!(first.receive().bytes, b"take");
        let buffer = importer.recv(LIMIT).unwrap();
        let address = buffer.on(&stream).unwrap().address();
        assert!(download(&stream, address, LEN) == pattern(LEN, seed));
        buffers.push(buffer);
        first.send(b"taken", &[]);
    }
    // It is there as long as something is announced to it.
    assert_eq!(first.receive().bytes, b"end");
}

#[test]
fn no_more_is_announced_ahead_than_the_importer_takes() {
    pair::play(test_name!(), &[("modest", modest)], |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let pool = SharedPool::new(&world.context, &options(MemoryKind::Device, SEGMENT)).unwrap();
        let modest = cast.start("modest");
        let exporter = export_to(&world, &modest);
        let buffers = [1, 2, 3].map(|seed| {
            let buffer = pool.allocate_isolated(LEN, &stream).unwrap();
            upload(&stream, buffer.as_raw(), &pattern(LEN, seed));
            buffer
        });
        let announced = || buffers.each_ref().map(|buffer| exporter.announce(buffer).unwrap());
        assert_eq!(announced(), [true, false, false]);
        assert_eq!(announced(), [true, false, false], "it is told once");
        for (taken, buffer) in buffers.iter().enumerate() {
            exporter.hand_over(buffer, &stream, LIMIT).unwrap();
            modest.send(b"take", &[]);
            assert_eq!(modest.receive().bytes, b"taken");
            // There is room for one more, of which there is no buffer.
            let known = [0, 1, 2].map(|index| index <= taken + 1);
            assert_eq!(announced(), known);
        }
        modest.send(b"end", &[]);
        modest.finish();
    });
}

/// Takes one buffer, of a segment that it has mapped before.
fn borrower(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let stream = world.new_stream();
    eventually("it is mapped", || importer.mapped_ahead() == 1);
    first.send(b"mapped", &[]);
    let buffer = importer.recv(LIMIT).unwrap();
    let address = buffer.on(&stream).unwrap().address();
    first.send_words(&[checksum(&download(&stream, address, buffer.len()))]);
}

#[test]
fn a_block_of_a_caching_allocator_is_announced() {
    pair::play(test_name!(), &[("borrower", borrower)], |cast| {
        let world = World::new();
        let allocator = CachingAllocator::new(&world.context, &CachingOptions::default()).unwrap();
        let block = allocator.allocate(30 << 20, &world.stream).unwrap();
        let bytes = pattern(block.len(), 3);
        upload(&world.stream, block.address(), &bytes);
        let buffer = Exportable::new(&allocator, block).unwrap();
        let borrower = cast.start("borrower");
        let exporter = export_to(&world, &borrower);
        assert!(exporter.announce(&buffer).unwrap());
        assert_eq!(borrower.receive().bytes, b"mapped");
        // Announced, and never handed over.
        let block = allocator.allocate(30 << 20, &world.stream).unwrap();
        assert!(exporter.announce(&Exportable::new(&allocator, block).unwrap()).unwrap());
        assert_eq!(allocator.pins().len(), 1);
        exporter.hand_over(&buffer, &world.stream, LIMIT).unwrap();
        assert_eq!(borrower.receive().words(), [checksum(&bytes)]);
        drop(buffer);
        borrower.finish();
        eventually("nothing is pinned", || allocator.pins().is_empty());
    });
}

#[test]
fn nothing_is_announced_to_an_importer_that_is_gone() {
    let world = World::new();
    let pool = SharedPool::new(&world.context, &options(MemoryKind::Device, SEGMENT)).unwrap();
    let (exporter, hostile, _words) = exporter(&world, &pool);
    exporter.attach(&pool).unwrap();
    drop(hostile);
    let is_gone = |told: Result<(), Error>| matches!(told, Err(Error::Closed { .. }));
    eventually("it is known to be gone", || is_gone(exporter.attach(&pool)));
    let buffer = pool.allocate(SEGMENT, &world.stream).unwrap();
    assert!(is_gone(exporter.announce(&buffer).map(drop)));
}

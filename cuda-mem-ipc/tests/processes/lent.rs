//! Blocks of a caching allocator that another process is given where they are.

use cuda_mem_core::DeviceBuffer;
use cuda_mem_ipc::Error;
use cuda_mem_ipc::shared::Exportable;
use cuda_mem_ipc::shared::wire::MOST_HANDLES;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions, Pin};
use cuda_mem_pool::{Allocation, DeviceAccessible, MemoryResource};

use crate::common::gate::Gate;
use crate::common::pair::{self, Channel, checksum, test_name};
use crate::common::{World, pattern};
use crate::link::{LIMIT, download, enqueue_download, eventually, export_to, import_from, upload};

const LEN: usize = 100_000;

fn allocator(world: &World) -> CachingAllocator {
    CachingAllocator::new(&world.context, &CachingOptions::default()).unwrap()
}

/// More than one handle has, and not at the beginning of the first.
fn large(world: &World, allocator: &CachingAllocator) -> (Allocation<DeviceAccessible>, usize) {
    let _before = allocator.allocate(3 << 20, &world.stream).unwrap();
    let block = allocator.allocate(90 << 20, &world.stream).unwrap();
    let pinned = allocator.pin(block.address(), block.len(), Pin::Exported).unwrap();
    let handles = pinned.segments().unwrap().len();
    (block, handles)
}

fn receiver(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let stream = world.new_stream();
    loop {
        let buffer = match importer.recv(LIMIT) {
            Ok(buffer) => buffer,
            Err(error) => break assert!(error.is_gone(), "{error}"),
        };
        let address = buffer.on(&stream).unwrap().address();
        let seen = checksum(&download(&stream, address, buffer.len()));
        // The exporter reads it again.
        upload(&stream, address, &pattern(100, 70));
        first.send_words(&[seen]);
    }
    drop(importer);
    assert_eq!(world.driver.release_failures(), 0);
}

#[test]
fn a_block_of_several_handles_is_handed_over_where_it_is() {
    pair::play_beside(test_name!(), &[("receiver", receiver)], |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let allocator = allocator(&world);
        let (block, handles) = large(&world, &allocator);
        assert!(handles > 1 && handles <= MOST_HANDLES, "{handles}");
        let (address, len) = (block.address(), block.len());
        let mut bytes = pattern(len, 5);
        upload(&stream, address, &bytes);
        let buffer = Exportable::new(&allocator, block).unwrap();
        assert_eq!((buffer.as_raw(), buffer.len(), allocator.pins().len()), (address, len, 1));
        let receiver = cast.start("receiver");
        let exporter = export_to(&world, &receiver);
        // Across the ends of handles, and at the very end.
        for range in [0..len, 777..len - 1, len - 1..len, 20 << 20..70 << 20] {
            exporter.hand_over(buffer.range(range.clone()).unwrap(), &stream, LIMIT).unwrap();
            assert_eq!(receiver.receive().words(), [checksum(&bytes[range.clone()])]);
            eventually("it comes back", || exporter.leases() == 0);
            let written = range.len().min(100);
            let seen = download(behind(&buffer, &stream), address + range.start as u64, written);
            // The receiver writes a hundred bytes, also behind a shorter part: peers are given whole handles.
            assert!(seen == pattern(100, 70)[..written]);
            bytes[range.start..][..written].copy_from_slice(&seen);
        }
        assert!(buffer.range(1..len + 1).is_err());
        drop(buffer);
        eventually("nothing is pinned", || allocator.pins().is_empty());
        drop(exporter);
        receiver.finish();
        assert_eq!(world.driver.release_failures(), 0);
    });
}

/// The stream, behind all uses.
fn behind<'s>(buffer: &Exportable, stream: &'s cuda_mem_core::Stream) -> &'s cuda_mem_core::Stream {
    drop(buffer.on(stream).unwrap());
    stream
}

const COUNT: usize = 1000;

fn len_of(index: usize) -> usize {
    3000 + index * 7 % 2000
}

fn receiver_of_many(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let stream = world.new_stream();
    let buffers: Vec<_> = (0..COUNT).map(|_| importer.recv(LIMIT).unwrap()).collect();
    for (index, buffer) in buffers.iter().enumerate() {
        let address = buffer.on(&stream).unwrap().address();
        let seen = checksum(&download(&stream, address, buffer.len()));
        assert_eq!(seen, checksum(&pattern(len_of(index), index as u8)), "buffer {index}");
    }
    // Few mappings serve them all.
    let mut pages: Vec<_> = buffers.iter().map(|buffer| buffer.as_raw() >> 25).collect();
    pages.dedup();
    first.send_words(&[pages.len() as u64]);
    drop(buffers);
    eventually("all go back", || importer.buffers() == 0);
    assert_eq!(first.receive().bytes, b"done");
}

#[test]
fn a_thousand_blocks_are_there_at_once_in_few_handles() {
    pair::play_beside(test_name!(), &[("receiver", receiver_of_many)], |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let allocator = allocator(&world);
        let receiver = cast.start("receiver");
        let exporter = export_to(&world, &receiver);
        for index in 0..COUNT {
            let block = allocator.allocate(len_of(index), &stream).unwrap();
            upload(&stream, block.address(), &pattern(block.len(), index as u8));
            let buffer = Exportable::new(&allocator, block).unwrap();
            exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
        }
        // Dropped here, they are the receiver's alone, and pinned for it.
        assert_eq!(exporter.leases(), COUNT);
        assert!(!allocator.pins().is_empty());
        assert!(receiver.receive().words()[0] < 20);
        eventually("all come back", || exporter.leases() == 0 && allocator.pins().is_empty());
        receiver.send(b"done", &[]);
        receiver.finish();
        assert_eq!(world.driver.release_failures(), 0);
    });
}

fn busy(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let stream = world.new_stream();
    let buffer = importer.recv(LIMIT).unwrap();
    let target = DeviceBuffer::<u8>::zeroed(&stream, LEN).unwrap();
    stream.synchronize().unwrap();
    let gate = Gate::before(&stream);
    enqueue_download(&stream, buffer.on(&stream).unwrap().address(), &target);
    // It goes back before it was read.
    drop(buffer);
    eventually("it goes back", || importer.buffers() == 0);
    first.send(b"back", &[]);
    assert_eq!(first.receive().bytes, b"written");
    gate.open();
    first.send_words(&[checksum(&target.to_vec(&stream).unwrap())]);
    first.receive();
}

/// The receiver gives the block back behind work that has not run; the exporter writes to whatever it is given next.
#[test]
fn a_block_is_not_used_again_before_its_receiver_has_read_it() {
    pair::play(test_name!(), &[("busy", busy)], |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let allocator = allocator(&world);
        let block = allocator.allocate(LEN, &stream).unwrap();
        let address = block.address();
        upload(&stream, address, &pattern(LEN, 1));
        let buffer = Exportable::new(&allocator, block).unwrap();
        let receiver = cast.start("busy");
        let exporter = export_to(&world, &receiver);
        exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
        drop(buffer);
        assert_eq!(receiver.receive().bytes, b"back");
        eventually("it comes back", || exporter.leases() == 0);
        for seed in 2..20 {
            let block = allocator.allocate(LEN, &stream).unwrap();
            assert_ne!(block.address(), address);
            upload(&stream, block.address(), &pattern(LEN, seed));
        }
        receiver.send(b"written", &[]);
        assert_eq!(receiver.receive().words(), [checksum(&pattern(LEN, 1))]);
        // Read, it is nobody's.
        stream.synchronize().unwrap();
        eventually("it is free", || {
            allocator.empty_cache().unwrap();
            allocator.reserved_bytes() == 0
        });
        receiver.send(b"done", &[]);
        receiver.finish();
        assert_eq!(world.driver.release_failures(), 0);
    });
}

fn mortal(first: &Channel) {
    let world = World::new();
    let importer = import_from(&world, first);
    let _buffer = importer.recv(LIMIT).unwrap();
    first.send(b"ready", &[]);
    first.receive();
}

#[test]
fn pins_end_when_the_receiver_dies() {
    pair::play(test_name!(), &[("mortal", mortal)], |cast| {
        let world = World::new();
        let stream = world.new_stream();
        let allocator = allocator(&world);
        for _ in 0..3 {
            let block = allocator.allocate(10 << 20, &stream).unwrap();
            let buffer = Exportable::new(&allocator, block).unwrap();
            let mut receiver = cast.start("mortal");
            let exporter = export_to(&world, &receiver);
            exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
            drop(buffer);
            assert_eq!(receiver.receive().bytes, b"ready");
            assert_eq!((exporter.leases(), allocator.pins().len()), (1, 1));
            receiver.kill();
            eventually("nothing is pinned", || exporter.leases() == 0 && allocator.pins().is_empty());
        }
        stream.synchronize().unwrap();
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.reserved_bytes(), 0);
    });
}

#[test]
fn what_cannot_be_shared_comes_back() {
    let world = World::new();
    let (one, other) = (allocator(&world), allocator(&world));
    let refused = Exportable::new(&other, one.allocate(LEN, &world.stream).unwrap()).unwrap_err();
    assert!(matches!(refused.error, Error::Pool(cuda_mem_pool::Error::UnknownAddress { .. })), "{refused}");
    let refused = Exportable::new(&one, one.allocate(0, &world.stream).unwrap()).unwrap_err();
    assert!(matches!(refused.error, Error::Core(cuda_mem_core::Error::NotAccepted { value: 0, .. })));
    // Handles of 32 MiB at the most.
    let block = one.allocate((MOST_HANDLES + 1) << 25, &world.stream).unwrap();
    let (address, refused) = (block.address(), Exportable::new(&one, block).unwrap_err());
    let Error::TooManyHandles { handles, most } = refused.error else { panic!("{refused}") };
    assert!(handles > most && most == MOST_HANDLES);
    assert!(refused.error.to_string().contains("at most 64"), "{refused}");
    assert_eq!((refused.block.address(), one.pins().len()), (address, 0));
}

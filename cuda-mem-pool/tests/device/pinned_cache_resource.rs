//! `PinnedCachingAllocator` as a resource: owned memory and memory by address.

use std::alloc::Layout;
use std::sync::mpsc;
use std::thread;

use cuda_mem_core::Error::{NotAllocated, WrongSize};
use cuda_mem_core::{Error as CoreError, Stream, Transfer};
use cuda_mem_pool::pinned_cache::PinnedCacheOptions;
use cuda_mem_pool::{Error, MemoryResource, MempoolId, PinnedCachingAllocator};

use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::common::{World, is_filled, pattern};
use crate::support::{cached, device};

const MIB: usize = 1 << 20;

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 256).unwrap()
}

/// How many blocks the allocator has out, and their bytes.
pub(crate) fn out(resource: &PinnedCachingAllocator) -> (u64, u64) {
    let stats = resource.statistics();
    (stats.active_requests.current, stats.active_bytes.current)
}

#[test]
fn an_allocation_takes_part_in_copies_both_ways() {
    let world = World::new();
    let resource = cached(&world);
    let bytes = pattern(100_000, 3);
    let mut source = MemoryResource::allocate(&resource, bytes.len(), &world.stream).unwrap();
    assert_eq!(source.address() % 256, 0);
    source.as_mut_slice().unwrap().copy_from_slice(&bytes);
    let middle = device(&world).allocate(bytes.len(), &world.stream).unwrap().into_buffer::<u8>().unwrap();
    let source = Transfer::upload(&world.stream, source, &middle.whole()).unwrap().wait().unwrap();
    assert_eq!(source.as_slice().unwrap(), bytes);
    let target = MemoryResource::allocate(&resource, bytes.len(), None).unwrap();
    let target = Transfer::download(&world.stream, &middle.whole(), target).unwrap().wait().unwrap();
    assert_eq!(target.as_slice().unwrap(), bytes);
}

#[test]
fn a_device_reaches_it_as_its_own() {
    let world = World::new();
    let resource = cached(&world);
    let mut block = MemoryResource::allocate(&resource, MIB, &world.stream).unwrap();
    let other = world.new_stream();
    block.as_device_range().fill_bytes(&world.stream, 1).unwrap();
    block.as_device_range().fill_bytes(&other, 9).unwrap();
    assert!(is_filled(block.as_slice().unwrap(), 9));
    let buffer = block.into_buffer::<u32>().unwrap();
    let numbers = (0..1000).collect::<Vec<u32>>();
    buffer.range(..1000).unwrap().copy_from_slice(&other, &numbers).unwrap();
    assert_eq!(buffer.to_vec(&world.stream).unwrap()[..1000], numbers);
    buffer.close().unwrap();
    assert_eq!(out(&resource).0, 0);
}

#[test]
fn every_device_reaches_it_at_the_same_address() {
    let world = World::new();
    let resource = cached(&world);
    let mut block = MemoryResource::allocate(&resource, 5000, None).unwrap();
    for (value, device) in (1..).zip(world.driver.devices().unwrap()) {
        let stream = Stream::new(&device.primary_context().unwrap()).unwrap();
        block.as_device_range().fill_bytes(&stream, value).unwrap();
        assert_eq!(block.as_slice().unwrap(), [value; 5000]);
        assert_eq!(
            MemoryResource::allocate(&resource, 100, &stream).unwrap().as_mut_slice().unwrap().len(),
            100
        );
    }
}

#[test]
fn memory_of_a_threads_own_stream_may_be_dropped_in_another() {
    let world = World::new();
    let resource = cached(&world);
    let thread = || {
        let own = Stream::per_thread(&world.context).unwrap();
        let mut block = MemoryResource::allocate(&resource, 5000, &own).unwrap();
        block.as_device_range().fill_bytes(&own, 9).unwrap();
        (block, resource.allocate_raw(5000, &own).unwrap())
    };
    let (block, address) = thread::scope(|scope| scope.spawn(thread).join().unwrap());
    assert_eq!(block.as_slice().unwrap(), [9; 5000]);
    block.close().unwrap();
    // SAFETY: allocated above and not used.
    let refused = unsafe { resource.deallocate(address, 5000, None) };
    assert!(matches!(refused, Err(Error::Core(CoreError::WrongThread))));
    // SAFETY: as above; the free before was refused.
    unsafe { resource.deallocate(address, 5000, &world.stream) }.unwrap();
    assert_eq!(out(&resource).0, 0);
}

#[test]
fn by_address_with_and_without_a_stream() {
    let world = World::new();
    let resource = cached(&world);
    let (with, without) =
        (resource.allocate_raw(5000, &world.stream).unwrap(), resource.allocate_raw(5000, None).unwrap());
    assert_ne!(with, without);
    assert_eq!(out(&resource), (2, 2 * 5120));
    // SAFETY: allocated above and not used.
    unsafe { resource.deallocate(with, 5000, None) }.unwrap();
    // SAFETY: refused, because it is freed already.
    let again = unsafe { resource.deallocate(with, 5000, None) };
    assert!(matches!(again, Err(Error::UnknownAddress { address }) if address == with));
    // SAFETY: as above.
    let again = unsafe { resource.raw().deallocate(with, layout(5000), &world.stream) };
    assert!(matches!(again, Err(NotAllocated { address }) if address == with));
    assert_eq!(out(&resource).0, 1);
    // SAFETY: allocated above and not used.
    unsafe { resource.clone().deallocate(without, 5000, &world.stream) }.unwrap();
    assert_eq!(out(&resource), (0, 0));
    let address = resource.allocate_raw(0, None).unwrap();
    // SAFETY: nothing is there.
    unsafe { resource.deallocate(address, 0, None) }.unwrap();
    assert_eq!((address, resource.statistics().active_requests.allocated), (0, 2));
}

#[test]
fn a_free_that_is_wrong_frees_nothing() {
    let world = World::new();
    let resource = cached(&world);
    let address = resource.allocate_raw(5000, None).unwrap();
    // SAFETY: refused, because the size is another.
    let refused = unsafe { resource.deallocate(address, 5001, None) }.unwrap_err();
    let Error::Core(WrongSize { address: named, given: 5001, allocated: 5000 }) = refused else {
        panic!("{refused}")
    };
    assert_eq!(named, address);
    // Within the block, in another allocator, and nobody's.
    let other = cached(&world);
    assert_ne!(other, resource);
    for (owner, wrong) in [(&resource, address + 256), (&other, address), (&resource, 256)] {
        // SAFETY: refused, because nothing begins there.
        let refused = unsafe { owner.raw().deallocate(wrong, layout(5000), &world.stream) };
        assert!(matches!(refused, Err(NotAllocated { address }) if address == wrong));
    }
    assert_eq!(out(&resource).0, 1);
    // SAFETY: allocated above and not used; what was tried before was refused.
    unsafe { resource.deallocate(address, 5000, None) }.unwrap();
    assert_eq!(out(&resource).0, 0);
}

#[test]
fn what_is_given_back_comes_out_behind_the_stream_that_it_was_given_back_on() {
    let world = World::new();
    let resource = cached(&world);
    let (slow, quick) = (world.new_stream(), world.new_stream());
    let gate = Gate::before(&slow);
    // By address, freed on the slow stream.
    let held_up = resource.allocate_raw(2 * MIB, &quick).unwrap();
    // SAFETY: allocated above and not used.
    unsafe { resource.deallocate(held_up, 2 * MIB, &slow) }.unwrap();
    // And freed on the quick one, though allocated on the other.
    let ready = resource.allocate_raw(2 * MIB, &slow).unwrap();
    assert_ne!(ready, held_up, "handed out under a stream that uses it");
    // SAFETY: as above.
    unsafe { resource.deallocate(ready, 2 * MIB, &quick) }.unwrap();
    quick.synchronize().unwrap();
    let next = MemoryResource::allocate(&resource, 2 * MIB, &quick).unwrap();
    assert_eq!(next.address(), ready);
    gate.open();
    slow.synchronize().unwrap();
    assert_eq!(MemoryResource::allocate(&resource, 2 * MIB, &quick).unwrap().address(), held_up);
}

#[test]
fn what_is_dropped_comes_out_behind_all_that_used_it() {
    let world = World::new();
    let resource = cached(&world);
    let (slow, home) = (world.new_stream(), world.new_stream());
    let gate = Gate::before(&slow);
    let mut block = MemoryResource::allocate(&resource, 2 * MIB, &home).unwrap();
    let held_up = block.address();
    block.as_device_range().fill_bytes(&slow, 7).unwrap();
    drop(block);
    let other = MemoryResource::allocate(&resource, 2 * MIB, &home).unwrap();
    assert_ne!(other.address(), held_up, "handed out under a stream that writes it");
    gate.open();
    home.synchronize().unwrap();
    let again = MemoryResource::allocate(&resource, 2 * MIB, &home).unwrap();
    assert_eq!(again.address(), held_up);
    assert_eq!(again.as_slice().unwrap()[2 * MIB - 1], 7);
}

#[test]
fn sizes_and_alignments_that_are_given_and_refused() {
    let world = World::new();
    let resource = cached(&world);
    assert_eq!(MemoryResource::allocate(&resource, 100, &world.stream).unwrap().address() % 256, 0);
    let refused = resource.raw().allocate(Layout::from_size_align(100, 512).unwrap(), &world.stream);
    assert!(matches!(refused, Err(Error::Alignment { asked: 512, most: 256 })));
    let most = isize::MAX as usize - 255;
    for bytes in [most, usize::MAX] {
        let refused = MemoryResource::allocate(&resource, bytes, &world.stream);
        assert!(matches!(refused, Err(Error::TooLarge { bytes: named }) if named == bytes));
    }
    let kept = MemoryResource::allocate(&resource, 3 * MIB, None).unwrap();
    let refused = MemoryResource::allocate(&resource, 1 << 45, None).unwrap_err();
    let Error::OutOfMemory { requested, used, limit: 0, source: Some(_) } = refused else {
        panic!("{refused}")
    };
    assert_eq!((requested, used), (1 << 45, 3 << 20));
    drop(kept);
}

#[test]
fn a_capturing_stream_gets_memory_of_a_private_pool_alone() {
    let world = World::new();
    let resource = cached(&world);
    let stream = Stream::new(&world.context).unwrap();
    let kept = MemoryResource::allocate(&resource, 2 * MIB, &stream).unwrap();
    let by_address = resource.allocate_raw(2 * MIB, &stream).unwrap();
    let capture = Capture::begin(&stream, RELAXED);
    assert!(matches!(MemoryResource::allocate(&resource, 2 * MIB, &stream), Err(Error::Capturing)));
    drop(kept);
    // SAFETY: allocated above and not used.
    let refused = unsafe { resource.deallocate(by_address, 2 * MIB, None) };
    assert!(matches!(refused, Err(Error::Core(CoreError::Capturing { .. }))));
    assert_eq!(out(&resource).0, 2, "taken back under a capture");

    let pool = MempoolId(0, 1);
    let (allocator, captured) = (&resource, stream.id());
    allocator.begin_allocate_to_pool(pool, move |stream| stream == Some(captured)).unwrap();
    let private = resource.allocate_raw(2 * MIB, &stream).unwrap();
    capture.end().unwrap();
    // SAFETY: allocated above and not used.
    unsafe { resource.deallocate(private, 2 * MIB, None) }.unwrap();
    stream.synchronize().unwrap();
    let next = MemoryResource::allocate(&resource, 2 * MIB, &stream).unwrap();
    assert_ne!(next.address(), private, "a graph has captured it");
    drop(next);
    allocator.end_allocate_to_pool(pool).unwrap();
    allocator.release_pool(pool).unwrap();
    // What waited for the capture comes back with the next allocation.
    // SAFETY: allocated above and not used; the free before was refused.
    unsafe { resource.deallocate(by_address, 2 * MIB, None) }.unwrap();
    drop(MemoryResource::allocate(&resource, 100, None).unwrap());
    assert_eq!(out(&resource), (0, 0));
}

#[test]
fn memory_may_be_freed_by_its_address_in_another_thread() {
    let world = World::new();
    let resource = cached(&world);
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for number in 0..4 {
            let (world, resource, sender) = (&world, &resource, sender.clone());
            scope.spawn(move || {
                let stream = world.new_stream();
                for round in 0..200 {
                    let bytes = 1 + (number * 997 + round * 131) % 70_000;
                    sender.send((resource.allocate_raw(bytes, &stream).unwrap(), bytes)).unwrap();
                }
            });
        }
        drop(sender);
        let (world, resource) = (&world, &resource);
        scope.spawn(move || {
            let stream = world.new_stream();
            for (number, (address, bytes)) in receiver.into_iter().enumerate() {
                let stream = if number % 2 == 0 { Some(&stream) } else { None };
                // SAFETY: allocated by a thread that does not use it and has told nobody else.
                unsafe { resource.deallocate(address, bytes, stream) }.unwrap();
            }
        });
    });
    let stats = resource.statistics();
    assert_eq!((stats.active_requests.allocated, stats.active_requests.freed), (800, 800));
    assert_eq!(out(&resource), (0, 0));
}

#[test]
fn memory_keeps_the_resource_and_the_resource_the_allocator() {
    let world = World::new();
    let options = PinnedCacheOptions::default().with_returns_surplus(false);
    let resource = PinnedCachingAllocator::with_options(&world.context, options);
    let (mut block, clone) = (MemoryResource::allocate(&resource, 5000, None).unwrap(), resource.clone());
    assert_eq!(clone, resource);
    drop((resource, clone));
    block.as_mut_slice().unwrap().fill(5);
    let buffer = device(&world).allocate(5000, &world.stream).unwrap();
    buffer.copy_from_slice(&world.stream, block.as_slice().unwrap()).unwrap();
    assert_eq!(buffer.to_vec(&world.stream).unwrap(), [5; 5000]);
    block.close().unwrap();
}

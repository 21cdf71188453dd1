//! What every resource does.

use std::alloc::Layout;

use cuda_mem_core::{DeviceBuffer, Stream, Transfer};
use cuda_mem_pool::{Error, MemoryResource};

use crate::common::capture::{Capture, THREAD_LOCAL};
use crate::common::{World, is_filled, pattern};
use crate::support::{device, pinned};

#[test]
fn an_allocation_takes_part_in_copies_both_ways() {
    let world = World::new();
    let Some(pinned) = pinned(&world) else { return };
    let bytes = pattern(100_000, 3);
    let mut source = pinned.allocate(bytes.len(), &world.stream).unwrap();
    source.as_mut_slice().unwrap().copy_from_slice(&bytes);
    let middle = device(&world).allocate(bytes.len(), &world.stream).unwrap().into_buffer::<u8>().unwrap();
    let source = Transfer::upload(&world.stream, source, &middle.whole()).unwrap().wait().unwrap();
    assert_eq!(source.as_slice().unwrap(), bytes);
    let target = pinned.allocate(bytes.len(), None).unwrap();
    let target = Transfer::download(&world.stream, &middle.whole(), target).unwrap().wait().unwrap();
    assert_eq!(target.as_slice().unwrap(), bytes);
}

#[test]
fn a_slice_waits_for_what_the_device_writes() {
    let world = World::new();
    let Some(pinned) = pinned(&world) else { return };
    let mut block = pinned.allocate(1 << 20, &world.stream).unwrap();
    let other = world.new_stream();
    block.as_device_range().fill_bytes(&world.stream, 1).unwrap();
    block.as_device_range().fill_bytes(&other, 9).unwrap();
    assert!(is_filled(block.as_slice().unwrap(), 9));
}

#[test]
fn no_bytes_are_no_memory() {
    let world = World::new();
    let resource = device(&world);
    let empty = resource.allocate(0, &world.stream).unwrap();
    assert_eq!((empty.len(), empty.address()), (0, 0));
    let address = resource.allocate_raw(0, None).unwrap();
    assert_eq!(address, 0);
    // SAFETY: nothing is there.
    unsafe { resource.deallocate(address, 0, None) }.unwrap();
    assert_eq!(resource.attributes().used_mem_current().unwrap(), 0);
}

#[test]
fn by_address_the_stream_is_remembered_until_the_free() {
    let world = World::new();
    let resource = device(&world);
    let address = resource.allocate_raw(4096, &world.stream).unwrap();
    let other = resource.allocate_raw(4096, None).unwrap();
    assert_ne!(address, other);
    assert!(resource.attributes().used_mem_current().unwrap() >= 8192);
    // SAFETY: allocated above and not used.
    unsafe { resource.deallocate(address, 4096, None) }.unwrap();
    // It was allocated on a stream of the resource, which the stream of its free does not follow.
    world.context.synchronize().unwrap();
    // SAFETY: as above.
    unsafe { resource.deallocate(other, 4096, &world.stream) }.unwrap();
    // SAFETY: the second free of an address is refused.
    let again = unsafe { resource.deallocate(address, 4096, None) };
    assert!(matches!(again, Err(Error::UnknownAddress { address: named }) if named == address));
    world.context.synchronize().unwrap();
    assert_eq!(resource.attributes().used_mem_current().unwrap(), 0);
}

#[test]
fn sizes_and_alignments_that_are_given_and_refused() {
    let world = World::new();
    let resource = device(&world);
    assert_eq!(resource.allocate(100, &world.stream).unwrap().address() % 256, 0);
    let refused = resource.raw().allocate(Layout::from_size_align(100, 512).unwrap(), &world.stream);
    assert!(matches!(refused, Err(Error::Alignment { asked: 512, most: 256 })));
    let refused = resource.allocate(usize::MAX, &world.stream);
    assert!(matches!(refused, Err(Error::TooLarge { bytes: usize::MAX })));
}

#[test]
fn a_typed_buffer_keeps_the_pool_alive() {
    let world = World::new();
    let resource = device(&world);
    let buffer: DeviceBuffer<u32> =
        resource.allocate(4 * 1000 + 3, &world.stream).unwrap().into_buffer().unwrap();
    resource.close();
    assert_eq!(buffer.len(), 1000);
    let numbers = (0..1000).collect::<Vec<u32>>();
    buffer.copy_from_slice(&world.stream, &numbers).unwrap();
    assert_eq!(buffer.to_vec(&world.stream).unwrap(), numbers);
    buffer.close().unwrap();
}

#[test]
fn a_stream_that_captures_gets_no_memory_and_its_graph_goes_on() {
    let world = World::new();
    let resource = device(&world);
    let stream = Stream::new(&world.context).unwrap();
    let kept = resource.allocate(512, &stream).unwrap();
    let capture = Capture::begin(&stream, THREAD_LOCAL);
    let refused = resource.allocate(512, &stream);
    assert!(matches!(refused, Err(Error::Capturing)));
    assert!(refused.unwrap_err().to_string().contains("cuGraphAddMemAllocNode"));
    // It is freed after the capture.
    drop(kept);
    capture.end().unwrap();
    assert_eq!(world.driver.reclaim(), 0);
    stream.synchronize().unwrap();
    assert_eq!(resource.attributes().used_mem_current().unwrap(), 0);
}

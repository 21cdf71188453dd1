//! Ranges of elements over whatever has memory of a device.

use std::sync::Arc;

use cuda_mem_core::ipc::{DeviceAllocation, ImportedMapping};
use cuda_mem_core::raw_pool::{MemoryPool, PoolBlock};
use cuda_mem_core::vmm::{CreateOptions, PhysicalMemory, granularity};
use cuda_mem_core::{DeviceBuffer, DeviceRange, Error, Uses};

use crate::common::gate::Gate;
use crate::common::{World, pattern};

const LEN: usize = 100_000;

/// Bytes come back the way they went in, on two streams, and elements are where they were put.
fn round_trip(world: &World, range: DeviceRange<'_, u8>) {
    let other = world.new_stream();
    let bytes = pattern(range.len(), 5);
    // The first stream is kept busy: the second one comes behind it by itself.
    let gate = Gate::before(&world.stream);
    let source = DeviceBuffer::<u8>::from_slice(&other, &bytes).unwrap();
    range.copy_from(&world.stream, &source.whole()).unwrap();
    gate.open();
    let mut back = vec![0; bytes.len()];
    range.copy_to_slice(&other, &mut back).unwrap();
    assert!(back == bytes);
    let part = range.range(10..20).unwrap();
    assert_eq!((part.len(), part.as_raw()), (10, range.as_raw() + 10));
    part.range(..=1).unwrap().copy_from_slice(&other, &[1, 2]).unwrap();
    range.range(9..13).unwrap().copy_to_slice(&world.stream, &mut back[..4]).unwrap();
    assert_eq!(back[..4], [bytes[9], 1, 2, bytes[12]]);
    assert!(matches!(part.range(5..11), Err(Error::OutOfRange { len: 10, .. })));
    assert!(matches!(range.copy_from(&other, &range), Err(Error::Overlapping)));
}

#[test]
fn memory_with_a_legacy_handle_is_copied() {
    let world = World::new();
    let memory = DeviceAllocation::new(&world.context, LEN).unwrap();
    round_trip(&world, memory.as_range().unwrap());
    assert_eq!(memory.as_range::<[u8; 3]>().unwrap().len(), memory.bytes() / 3);
}

#[test]
fn a_block_of_a_pool_is_copied() {
    let world = World::new();
    let pool = Arc::new(MemoryPool::current_of_device(world.context.device()).unwrap());
    let block = PoolBlock::allocate(&pool, LEN, &world.stream).unwrap();
    round_trip(&world, block.as_range().unwrap());
}

#[test]
fn mapped_memory_is_copied() {
    let world = World::new();
    let device = world.context.device();
    let bytes = granularity(device).unwrap();
    let memory = PhysicalMemory::create(device, bytes, &CreateOptions::default()).unwrap();
    // SAFETY: nothing uses it before it has memory.
    let mapping = unsafe { ImportedMapping::reserve(device, bytes) }.unwrap();
    mapping.wake(memory, &[device]).unwrap();
    round_trip(&world, mapping.as_range().unwrap());
}

#[test]
fn memory_of_somebody_else_is_copied_and_comes_before_its_uses_end() {
    let world = World::new();
    let theirs = DeviceBuffer::<u8>::zeroed(&world.stream, LEN).unwrap();
    theirs.synchronize().unwrap();
    let uses = Uses::new();
    // SAFETY: the buffer stays, and the uses are waited for before anybody else uses it.
    let range = unsafe { DeviceRange::from_raw_parts(&uses, &world.context, theirs.as_raw(), LEN) }.unwrap();
    round_trip(&world, range);
    uses.wait().unwrap();
    // SAFETY: it is refused.
    let odd = unsafe { DeviceRange::<u32>::from_raw_parts(&uses, &world.context, theirs.as_raw() + 2, 1) };
    assert!(matches!(odd, Err(Error::Misaligned { align: 4, .. })));
}

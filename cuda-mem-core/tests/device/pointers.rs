//! What the driver knows of addresses.

use cuda_mem_core::host::{HostMemory, PinnedFlags, RegisterFlags, Registered};
use cuda_mem_core::pointer::{Attributes, MemoryKind, attributes};
use cuda_mem_core::{DeviceBuffer, ManagedBuffer, PinnedBuffer};

use crate::common::World;
use crate::common::outcome::record;

fn of(world: &World, address: u64) -> Attributes {
    let result = attributes(&world.context, address);
    record!("lookup", &result);
    result.unwrap()
}

#[test]
fn device_memory() {
    let world = World::new();
    let buffer = DeviceBuffer::<u8>::uninit(&world.stream, 5000).unwrap();
    let (start, inside) = (of(&world, buffer.as_raw()), of(&world, buffer.as_raw() + 4321));
    assert_eq!(start.kind, MemoryKind::Device);
    assert_eq!(start.device, world.context.device().as_raw());
    assert!(!start.managed && start.host_address.is_null());
    assert_eq!(start.device_address, buffer.as_raw());
    assert_eq!(inside.device_address, buffer.as_raw() + 4321);
    assert_eq!((start.range_start, start.buffer_id), (inside.range_start, inside.buffer_id));
    assert!(start.range_start <= buffer.as_raw() && start.range_size >= 5000);
}

#[test]
fn two_allocations_have_two_identities() {
    let world = World::new();
    let buffers: Vec<_> =
        (0..3).map(|_| DeviceBuffer::<u8>::uninit(&world.stream, 4 << 20).unwrap()).collect();
    let ids: std::collections::HashSet<_> =
        buffers.iter().map(|buffer| of(&world, buffer.as_raw()).buffer_id).collect();
    assert_eq!(ids.len(), 3);
}

#[test]
fn pinned_memory() {
    let world = World::new();
    let pinned = PinnedBuffer::<u8>::zeroed(&world.context, 5000, PinnedFlags::default()).unwrap();
    let known = of(&world, pinned.as_ptr().addr() as u64);
    assert_eq!(known.kind, MemoryKind::Host);
    assert_eq!(known.host_address.cast_const().cast(), pinned.as_ptr());
    assert!(!known.managed && known.range_size >= 5000);
}

#[test]
fn registered_memory_is_known_until_it_is_unregistered() {
    let world = World::new();
    let flags = RegisterFlags::PORTABLE | RegisterFlags::MAPPED;
    let registered = Registered::new(&world.context, vec![0u8; 100_000], flags).unwrap();
    let address = registered.as_ptr().addr() as u64;
    let known = of(&world, address + 5);
    assert_eq!(known.kind, MemoryKind::Host);
    assert_eq!(known.host_address.addr() as u64, address + 5);
    let stream = world.new_stream();
    assert_eq!(known.device_address, registered.on(&stream).unwrap().address() + 5);
    let vector = registered.close().unwrap();
    assert_eq!(of(&world, address + 5).kind, MemoryKind::Unknown);
    drop(vector);
}

#[test]
fn managed_memory() {
    let world = World::new();
    let managed = ManagedBuffer::<u8>::zeroed(&world.context, 5000).unwrap();
    let known = of(&world, managed.as_raw());
    assert!(known.managed);
    assert_eq!(known.device_address, managed.as_raw());
    assert_eq!(known.host_address.addr() as u64, managed.as_raw());
}

#[test]
fn what_the_driver_does_not_know_is_no_error() {
    let world = World::new();
    let pageable = vec![0u8; 5000];
    for address in [pageable.as_ptr().addr() as u64, 0, 1, u64::MAX] {
        let known = of(&world, address);
        assert_eq!(known.kind, MemoryKind::Unknown, "{address:#x}");
        assert_eq!((known.range_size, known.managed), (0, false));
    }
}

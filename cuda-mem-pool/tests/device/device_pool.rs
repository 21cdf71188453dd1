//! `DeviceMemoryResource`.

use cuda_mem_core::raw_pool::MemoryPool;
use cuda_mem_core::sys::CUmemPool_attribute;
use cuda_mem_pool::{DeviceMemoryResource, DeviceMemoryResourceOptions, Error, MemoryResource};

use crate::common::{World, pattern};
use crate::support::device;

#[test]
fn without_options_it_is_the_devices_pool_and_keeps_its_threshold() {
    let world = World::new();
    let pool = MemoryPool::current_of_device(world.context.device()).unwrap();
    let before = pool.number(CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD).unwrap();
    let resource = DeviceMemoryResource::new(&world.context, None).unwrap();
    assert!(!resource.is_handle_owned());
    assert_eq!(resource.attributes().release_threshold().unwrap(), before);
    assert_eq!(resource.device_id(), world.context.device().as_raw());
    assert!(!resource.is_host_accessible());
    let bytes = pattern(5000, 1);
    let block = resource.allocate(5000, None).unwrap();
    block.copy_from_slice(&world.stream, &bytes).unwrap();
    let handle = resource.handle();
    resource.close();
    assert_eq!(block.to_vec(&world.stream).unwrap(), bytes);
    assert_eq!(DeviceMemoryResource::new(&world.context, None).unwrap().handle(), handle);
}

#[test]
fn a_pool_of_its_own_has_a_limit() {
    let world = World::new();
    let options = DeviceMemoryResourceOptions::default().with_max_size(32 << 20);
    let resource = DeviceMemoryResource::new(&world.context, &options).unwrap();
    assert!(resource.is_handle_owned());
    let refused = resource.allocate(64 << 20, &world.stream).unwrap_err();
    assert!(
        matches!(refused, Error::OutOfMemory { requested, limit, .. } if requested == 64 << 20 && limit == 32 << 20)
    );
    assert!(refused.to_string().contains(", and the limit is 33554432"), "{refused}");
    let error = refused.driver_error().unwrap();
    assert_eq!(error.code().0, 2);
    resource.allocate(16 << 20, &world.stream).unwrap();
}

#[test]
fn what_is_freed_stays_until_it_is_trimmed() {
    let world = World::new();
    let resource = device(&world);
    drop(resource.allocate(4 << 20, &world.stream).unwrap());
    world.context.synchronize().unwrap();
    assert!(resource.attributes().reserved_mem_current().unwrap() >= 4 << 20);
    resource.trim_to(0).unwrap();
    assert_eq!(resource.attributes().reserved_mem_current().unwrap(), 0);
}

#[test]
fn peers_are_a_set() {
    let world = World::new();
    let resource = device(&world);
    let own = world.context.device();
    assert_eq!(resource.peer_accessible_by().unwrap(), []);
    // The memory's own device is always let in, and is no peer.
    resource.set_peer_accessible_by(&[own]).unwrap();
    assert_eq!(resource.peer_accessible_by().unwrap(), []);
    for peer in world.driver.devices().unwrap().into_iter().filter(|device| *device != own) {
        if !peer.can_access_peer(own).unwrap() {
            let refused = resource.set_peer_accessible_by(&[peer]).unwrap_err();
            assert!(matches!(refused, Error::NoPeerAccess { .. }), "{refused}");
            continue;
        }
        let block = resource.allocate(1000, &world.stream).unwrap();
        resource.set_peer_accessible_by(&[peer, own, peer]).unwrap();
        assert_eq!(resource.peer_accessible_by().unwrap(), [peer]);
        drop(block);
        world.context.synchronize().unwrap();
        resource.set_peer_accessible_by(&[]).unwrap();
        assert_eq!(resource.peer_accessible_by().unwrap(), []);
    }
}

#[test]
fn an_ipc_pool_is_exported_once_and_imported() {
    let world = World::new();
    assert!(matches!(device(&world).allocation_handle(), Err(Error::NotIpcEnabled)));
    let options = DeviceMemoryResourceOptions::default().with_ipc_enabled(true);
    let shared = DeviceMemoryResource::new(&world.context, &options).unwrap();
    let (handle, uuid) = (shared.allocation_handle().unwrap(), shared.uuid().unwrap());
    let mapped = DeviceMemoryResource::from_allocation_handle(&world.context, handle, None).unwrap();
    assert!(mapped.is_mapped() && mapped.is_handle_owned());
    assert!(matches!(mapped.allocate(64, None), Err(Error::Mapped)));
    assert_eq!(mapped.register(uuid).unwrap(), mapped);
    assert_eq!(DeviceMemoryResource::from_registry(uuid).unwrap(), mapped);
    shared.trim_to(0).unwrap();
}

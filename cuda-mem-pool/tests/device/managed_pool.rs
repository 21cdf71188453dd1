//! `ManagedMemoryResource`.

use cuda_mem_core::raw_pool::MemoryLocation;
use cuda_mem_pool::{Error, ManagedMemoryResource, MemoryResource};

use crate::common::World;
use crate::support::has_host_pools;

#[test]
fn it_takes_a_driver_that_has_it() {
    let world = World::new();
    let made = ManagedMemoryResource::new(&world.context, None);
    if world.driver.version() >= 13000 {
        assert!(!made.unwrap().is_handle_owned());
    } else {
        assert!(matches!(made, Err(Error::NeedsDriver { needs: 13000, .. })));
    }
}

#[test]
fn host_and_device_see_the_same_bytes_wherever_it_prefers_to_be() {
    let world = World::new();
    if !has_host_pools(&world) {
        return;
    }
    let own = world.context.device().as_raw();
    for (location, device_id) in
        [(None, -1), (Some(MemoryLocation::Device(own)), own), (Some(MemoryLocation::Host), -1)]
    {
        let preferred = location.unwrap_or(MemoryLocation::None);
        let resource = ManagedMemoryResource::new(&world.context, preferred).unwrap();
        assert_eq!((resource.preferred_location(), resource.device_id()), (location, device_id));
        assert!(resource.is_handle_owned() && resource.is_host_accessible());
        let mut block = resource.allocate(100_000, &world.stream).unwrap();
        block.as_mut_slice().unwrap().fill(1);
        block.as_device_range().fill_bytes(&world.stream, 2).unwrap();
        assert!(block.as_slice().unwrap().iter().all(|byte| *byte == 2));
        drop(block);
        world.context.synchronize().unwrap();
        resource.trim_to(0).unwrap();
    }
}

#[test]
fn places_that_are_none() {
    let world = World::new();
    if !has_host_pools(&world) {
        return;
    }
    for (location, negative) in [(MemoryLocation::HostNuma(-3), true), (MemoryLocation::HostNuma(63), false)]
    {
        let refused = ManagedMemoryResource::new(&world.context, location).unwrap_err();
        match refused {
            Error::NegativeNumaId { numa_id: -3 } => assert!(negative),
            Error::NoSuchNumaNode { numa_id: 63, .. } | Error::NoSuchPool { .. } => assert!(!negative),
            other => panic!("{other}"),
        }
    }
}

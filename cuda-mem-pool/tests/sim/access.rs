//! Who reaches the memory of device pools, on machines whose devices reach each other or not.

use cuda_mem_core::{Driver, Stream};
use cuda_mem_pool::{DeviceMemoryResource, DeviceMemoryResourceOptions, Error, MemoryResource};

use crate::machines::machines;

#[test]
fn a_device_that_cannot_reach_the_memory_is_named_and_nothing_changes() {
    for machine in machines(13000).into_iter().filter(|machine| !machine.peers) {
        let sim = machine.builder().record(true).build();
        let driver = Driver::over(sim.table()).unwrap();
        let context = driver.device(0).unwrap().primary_context().unwrap();
        let resource = DeviceMemoryResource::new(&context, &DeviceMemoryResourceOptions::default()).unwrap();
        let devices = driver.devices().unwrap();
        sim.log().clear();
        let refused = resource.set_peer_accessible_by(&devices).unwrap_err();
        let Error::NoPeerAccess { device, owner } = refused else { panic!("{refused}") };
        assert_eq!((device, owner), (devices[1], devices[0]));
        assert!(sim.log().records().iter().all(|record| record.function != "cuMemPoolSetAccess"));
        assert_eq!(resource.peer_accessible_by().unwrap(), []);
        // Its own device is no peer.
        resource.set_peer_accessible_by(&devices[..1]).unwrap();
    }
}

#[test]
fn a_change_takes_a_call_in_each_direction_and_none_if_nothing_changes() {
    let sim = machines(13000)[2].builder().record(true).build();
    let driver = Driver::over(sim.table()).unwrap();
    let context = driver.device(0).unwrap().primary_context().unwrap();
    let resource = DeviceMemoryResource::new(&context, &DeviceMemoryResourceOptions::default()).unwrap();
    let devices = driver.devices().unwrap();
    let calls = |allowed: &[cuda_mem_core::Device]| {
        sim.log().clear();
        resource.set_peer_accessible_by(allowed).unwrap();
        sim.log().records().iter().filter(|record| record.function == "cuMemPoolSetAccess").count()
    };
    assert_eq!(calls(&devices), 1);
    assert_eq!(calls(&devices), 0);
    assert_eq!(calls(&[]), 1);
    assert_eq!(calls(&[]), 0);
}

/// A peer's work may still be running when its memory and the pool are dropped: the free waits for it, a change of access would
/// not, and the work would fault.
#[test]
fn a_pool_that_ends_keeps_letting_in_whoever_may_still_be_at_work() {
    let sim = machines(13000)[2].builder().record(true).build();
    let driver = Driver::over(sim.table()).unwrap();
    let devices = driver.devices().unwrap();
    let context = devices[0].primary_context().unwrap();
    let peer = Stream::new(&devices[1].primary_context().unwrap()).unwrap();
    let resource = DeviceMemoryResource::new(&context, &DeviceMemoryResourceOptions::default()).unwrap();
    resource.set_peer_accessible_by(&devices).unwrap();
    let block = resource.allocate(64, None).unwrap();
    drop(block.on(&peer).unwrap());
    sim.log().clear();
    drop(block);
    drop(resource);
    let records = sim.log().records();
    let calls = ["cuMemFreeAsync", "cuMemPoolSetAccess", "cuMemPoolDestroy"];
    let seen = records.iter().map(|record| record.function).filter(|call| calls.contains(call));
    assert_eq!(seen.collect::<Vec<_>>(), ["cuMemFreeAsync", "cuMemPoolDestroy"]);
}

/// Some drivers give a new pool the handle of a destroyed one, and let in whom that let in.
#[test]
fn a_new_pool_is_asked_whom_it_lets_in() {
    let sim = machines(13000)[2].builder().record(true).build();
    let driver = Driver::over(sim.table()).unwrap();
    let devices = driver.devices().unwrap();
    let context = devices[0].primary_context().unwrap();
    sim.log().clear();
    let resource = DeviceMemoryResource::new(&context, &DeviceMemoryResourceOptions::default()).unwrap();
    let asked = sim.log().records().iter().filter(|record| record.function == "cuMemPoolGetAccess").count();
    assert_eq!(asked, devices.len());
    assert_eq!(resource.peer_accessible_by().unwrap(), []);
}

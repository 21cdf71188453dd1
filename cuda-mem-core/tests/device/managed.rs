//! Managed memory: one address for host and device.

use std::time::Duration;

use cuda_mem_core::sys::CUdevice_attribute;
use cuda_mem_core::{DeviceBuffer, ManagedBuffer, copy};

use crate::common::gate::Gate;
use crate::common::outcome::record;
use crate::common::{World, pattern};

#[test]
fn host_and_device_see_the_same_bytes() {
    let world = World::new();
    let mut managed = ManagedBuffer::<u8>::zeroed(&world.context, 5000).unwrap();
    assert_eq!(managed.as_slice().unwrap(), [0; 5000]);
    managed.as_mut_slice().unwrap().copy_from_slice(&pattern(5000, 1));
    let stream = world.new_stream();
    let device = DeviceBuffer::<u8>::zeroed(&stream, 5000).unwrap();
    {
        let (from, to) = (managed.on(&stream).unwrap(), device.on(&stream).unwrap());
        assert_eq!(from.address(), managed.as_raw());
        // SAFETY: both know that this stream uses them.
        unsafe { copy::memcpy_async(&stream, to.address(), from.address(), 5000) }.unwrap();
    }
    let bytes = device.to_vec(&stream).unwrap();
    record!("bytes", &bytes);
    assert_eq!(bytes, pattern(5000, 1));
    assert_eq!(managed.as_slice().unwrap(), bytes);
    managed.close().unwrap();
}

#[test]
fn a_slice_is_given_when_the_device_has_written() {
    let world = World::new();
    let concurrent = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
    record!("concurrent", &world.context.device().supports(concurrent).unwrap());
    let stream = world.new_stream();
    let device = DeviceBuffer::from_slice(&stream, &pattern(5000, 2)).unwrap();
    let managed = ManagedBuffer::<u8>::zeroed(&world.context, 5000).unwrap();
    let gate = Gate::before(&stream);
    {
        let (from, to) = (device.on_read(&stream).unwrap(), managed.on(&stream).unwrap());
        // SAFETY: both know that this stream uses them.
        unsafe { copy::memcpy_async(&stream, to.address(), from.address(), 5000) }.unwrap();
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(10));
            gate.open();
        });
        assert_eq!(managed.as_slice().unwrap(), pattern(5000, 2));
    });
}

#[test]
fn of_no_bytes() {
    let world = World::new();
    let mut empty = ManagedBuffer::<u32>::zeroed(&world.context, 0).unwrap();
    assert!(empty.is_empty() && empty.as_raw() == 0);
    assert_eq!(empty.as_mut_slice().unwrap(), []);
    empty.close().unwrap();
}

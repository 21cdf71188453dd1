//! Drivers and their devices.

use std::collections::HashSet;

use cuda_mem_core::sys::{CUdevice_attribute, CUresult};
use cuda_mem_core::{Error, sys};

use crate::common::outcome::record;
use crate::common::{World, driver};

#[test]
fn one_table_is_one_driver() {
    assert_eq!(driver(), driver());
    assert!(driver().version() >= sys::MINIMUM_DRIVER);
}

#[test]
fn devices_have_names_memory_and_identities_of_their_own() {
    let devices = driver().devices().unwrap();
    assert_eq!(devices.len(), driver().device_count().unwrap());
    assert!(!devices.is_empty());
    let mut identities = HashSet::new();
    for device in devices {
        assert!(!device.name().unwrap().is_empty());
        assert!(device.total_memory().unwrap() >= 1 << 20);
        assert!(identities.insert(device.uuid().unwrap()), "two devices with one UUID");
    }
}

#[test]
fn a_device_that_is_not_there_is_an_error_with_the_count() {
    let count = driver().device_count().unwrap();
    for ordinal in [count, usize::MAX] {
        let result = driver().device(ordinal);
        record!("one too many", &result);
        let error = result.unwrap_err();
        assert!(
            matches!(error, Error::NoSuchDevice { ordinal: asked, count: there } if (asked, there) == (ordinal, count))
        );
        assert!(error.to_string().contains(&format!("this driver has {count}")), "{error}");
    }
}

#[test]
fn an_unknown_attribute_is_refused_and_means_unsupported() {
    let device = driver().device(0).unwrap();
    let unknown = CUdevice_attribute(99_999);
    let result = device.attribute(unknown);
    record!("unknown", &result);
    assert_eq!(result.unwrap_err().code(), Some(CUresult::CUDA_ERROR_INVALID_VALUE));
    assert!(!device.supports(unknown).unwrap());
    assert!(device.supports(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING).unwrap());
}

#[test]
fn a_device_is_no_peer_of_itself() {
    let device = driver().device(0).unwrap();
    assert!(!device.can_access_peer(device).unwrap());
}

#[test]
fn memory_that_is_allocated_is_not_free() {
    let world = World::new();
    let before = world.context.memory_info().unwrap();
    let size = 256 << 20;
    let buffer = cuda_mem_core::DeviceBuffer::<u8>::uninit(&world.stream, size).unwrap();
    let during = world.context.memory_info().unwrap();
    assert_eq!(before.total, during.total);
    assert!(during.free <= before.total - size, "{during:?}");
    drop(buffer);
}

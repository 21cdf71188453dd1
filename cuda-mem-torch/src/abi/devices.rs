//! The allocator of each device.
//!
//! # Safety
//!
//! Declares functions for C without pointers. A context that is made current is a device's, which lives as long as the process.

#![allow(unsafe_code, reason = "declares functions for C")]

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::OnceLock;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Driver, Error as CoreError};

use super::error::{Failure, entry};
use super::{streams, top};
/// What there is for a device, made when it is first asked for.
pub(super) use crate::devices::PerDevice as Device;
use crate::devices::{Devices, MOST};

pub(super) static DEVICES: Devices = Devices::new();
static DRIVER: OnceLock<Driver> = OnceLock::new();

/// Has the functions for C work on a driver other than the system's; whether they do. Only before any of them has used one.
pub fn use_driver(driver: Driver) -> bool {
    DRIVER.get_or_init(|| driver) == &driver
}

pub(super) fn driver() -> Result<Driver, Failure> {
    let driver = DRIVER.get().copied().map_or_else(Driver::system, Ok)?;
    Ok(*DRIVER.get_or_init(|| driver))
}

/// What there is for a device.
#[inline]
pub(super) fn device(ordinal: c_int) -> Result<&'static Device, Failure> {
    match DEVICES.get(ordinal) {
        Some(device) => Ok(device),
        None => make(ordinal),
    }
}

#[cold]
fn make(ordinal: c_int) -> Result<&'static Device, Failure> {
    let (device, _) = made_in(&DEVICES, ordinal)?;
    // Seen before anything captures, if that can be.
    let _ = streams::with(device, std::ptr::null_mut(), |_| Ok(()));
    top::publish();
    Ok(device)
}

/// What there is for a device among others of its kind, and its number.
pub(super) fn made_in(
    devices: &'static Devices,
    ordinal: c_int,
) -> Result<(&'static Device, usize), Failure> {
    let number = number_of(ordinal)?;
    Ok((devices.make::<Failure>(driver()?, number)?, number))
}

thread_local! {
    /// Whether the thread was seen to have a current context.
    static BOUND: Cell<bool> = const { Cell::new(false) };
}

/// Has a device's context be current in the calling thread if none is when it first allocates, as CUDA's runtime does: libraries that
/// ask the driver rely on it.
pub(super) fn bind(device: &'static Device) -> Result<(), Failure> {
    if BOUND.try_with(|bound| bound.replace(true)).unwrap_or(true) {
        return Ok(());
    }
    let driver = device.context.driver();
    if driver.current_device()?.is_none() {
        let set = driver.table().cuCtxSetCurrent().map_err(CoreError::from)?;
        // SAFETY: a context that lives as long as the process.
        Failure::of_driver("cuCtxSetCurrent", unsafe { set(device.context.as_raw().cast()) })?;
    }
    Ok(())
}

/// The number of a device that there is.
pub(super) fn number_of(ordinal: c_int) -> Result<usize, Failure> {
    let count = driver()?.device_count()?;
    let number = usize::try_from(ordinal).ok().filter(|number| *number < count.min(MOST));
    number.ok_or_else(|| {
        Failure::argument(format!(
            "the device is {ordinal}; there are {count}, numbered from 0, and at the most {MOST} are used"
        ))
    })
}

/// What there is for a device, if it was used: a call that only asks makes no context.
pub(super) fn if_made(ordinal: c_int) -> Result<Option<&'static Device>, Failure> {
    match DEVICES.get(ordinal) {
        None => number_of(ordinal).map(|_| None),
        found => Ok(found),
    }
}

/// The number of a device that there is, for a share of its memory that can be.
pub(super) fn check_fraction(ordinal: c_int, fraction: f64) -> Result<usize, Failure> {
    if !(0.0..=1.0).contains(&fraction) {
        return Err(Failure::argument(format!("the fraction is {fraction}; accepted: from 0 to 1")));
    }
    number_of(ordinal)
}

/// Adds a device to some, once.
pub(super) fn add(devices: &mut Vec<&'static Device>, device: &'static Device) {
    if devices.iter().all(|other| other.ordinal != device.ordinal) {
        devices.push(device);
    }
}

/// One device, or all, of those that were used.
pub(super) fn some(ordinal: c_int) -> Result<Vec<&'static Device>, Failure> {
    if ordinal == super::CUDA_MEM_TORCH_ALL_DEVICES {
        return Ok(DEVICES.all().collect());
    }
    Ok(if_made(ordinal)?.into_iter().collect())
}

/// Refuses more devices than the driver has. Nothing is made on them yet, and it may be called again.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_init(device_count: c_int) -> c_int {
    entry(|| {
        let there = driver()?.device_count()?;
        if usize::try_from(device_count).map_or(true, |count| count > there) {
            return Err(Failure::argument(format!("device_count is {device_count}; there are {there}")));
        }
        Ok(())
    })
}

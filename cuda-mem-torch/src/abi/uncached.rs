//! Memory straight from the driver, while caching is off.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::ipc::DeviceAllocation;

use super::devices::{self, Device};
use super::error::Failure;
use super::{out_of_memory, streams};
use crate::uncached::Uncached;

static OFF: AtomicBool = AtomicBool::new(false);
/// With their own devices first, and those of which streams were recorded: handles of streams may end before the memory does.
static BOOKS: Uncached<Vec<&'static Device>> = Uncached::new();

pub(super) fn is_caching() -> bool {
    !OFF.load(Ordering::Relaxed)
}

pub(super) fn set_caching(caching: bool) {
    OFF.store(!caching, Ordering::Relaxed);
    streams::forget_all();
}

pub(super) fn allocate(device: &'static Device, bytes: usize) -> Result<u64, Failure> {
    let made = DeviceAllocation::new(&device.context, bytes);
    let made = made.map_err(|error| out_of_memory::failure(device, bytes, error.into()))?;
    Ok(BOOKS.insert(made, vec![device]))
}

/// Frees a block that was made here, once the devices that use it have done all that they were given; whether there is one.
#[inline]
pub(super) fn free(address: u64) -> Result<bool, Failure> {
    BOOKS.free(address, |devices| devices.into_iter().try_for_each(streams::quiesce))
}

/// A stream of a device uses a block, if it was made here: its free waits for the device. Whether it was.
pub(super) fn record(address: u64, user: &'static Device) -> bool {
    BOOKS.look(address, |block| devices::add(&mut block.users, user)).is_some()
}

pub(super) fn device_of(address: u64) -> Option<c_int> {
    BOOKS.look(address, |block| block.users.first().map(|device| device.ordinal)).flatten()
}

pub(super) fn base(address: u64) -> Option<(u64, usize)> {
    BOOKS.base(address)
}

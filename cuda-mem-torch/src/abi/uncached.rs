//! Memory straight from the driver, while caching is off.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::ipc::DeviceAllocation;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Error as CoreError, Stream};

use super::devices::{self, Device};
use super::error::Failure;
use super::{leaving, out_of_memory};
use crate::uncached::Uncached;

pub(super) static OFF: AtomicBool = AtomicBool::new(false);
/// With their own devices first, and those of which streams were recorded: handles of streams may end before the memory does.
static BOOKS: Uncached<(DeviceAllocation, Vec<&'static Device>)> = Uncached::new();
/// How many blocks there are, with those that were freed and had to stay.
pub(super) static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Memory for a stream. One that captures gets none: a graph would outlive it.
pub(super) fn allocate(device: &'static Device, bytes: usize, stream: &Stream) -> Result<u64, Failure> {
    if stream.is_capturing()? {
        return Err(CoreError::Capturing { call: "an allocation while caching is off" }.into());
    }
    leaving::settle();
    let made = DeviceAllocation::new(&device.context, bytes);
    let made = made.map_err(|error| out_of_memory::failure(device.ordinal, bytes, error.into()))?;
    let address = made.as_raw();
    BOOKS.insert(address, (made, vec![device]));
    COUNT.fetch_add(1, Ordering::Relaxed);
    Ok(address)
}

/// Frees a block that was made here, once the devices that use it have done all that they were given; whether there is one. After an error a
/// later call frees it.
#[inline]
pub(super) fn free(address: u64) -> Result<bool, Failure> {
    let Some((allocation, users)) = BOOKS.remove(address) else { return Ok(false) };
    let freed = leaving::wait_and(users, move || {
        drop(allocation);
        COUNT.fetch_sub(1, Ordering::Relaxed);
    });
    freed.map(|()| true)
}

/// A stream of a device uses a block, if it was made here: its free waits for the device. Whether it was.
pub(super) fn record(address: u64, user: &'static Device) -> bool {
    BOOKS.look(address, |(_, users)| devices::add(users, user)).is_some()
}

pub(super) fn device_of(address: u64) -> Option<&'static Device> {
    BOOKS.look(address, |(_, users)| users.first().copied()).flatten()
}

pub(super) fn base(address: u64) -> Option<(u64, usize)> {
    BOOKS.look(address, |(allocation, _)| (address, allocation.bytes()))
}

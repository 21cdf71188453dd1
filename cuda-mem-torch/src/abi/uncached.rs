//! Memory straight from the driver, while caching is off.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::ipc::DeviceAllocation;

use super::devices::{self, Device};
use super::error::Failure;
use super::{out_of_memory, streams};

type Books = HashMap<u64, Block>;

struct Block {
    allocation: DeviceAllocation,
    /// Its own, and those of which streams were recorded.
    devices: Vec<&'static Device>,
}

static OFF: AtomicBool = AtomicBool::new(false);
/// How many there are, so that the usual free costs one load.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static BOOKS: Mutex<Option<Books>> = Mutex::new(None);

fn books() -> MutexGuard<'static, Option<Books>> {
    BOOKS.lock().unwrap_or_else(PoisonError::into_inner)
}

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
    let address = made.as_raw();
    books().get_or_insert_default().insert(address, Block { allocation: made, devices: vec![device] });
    COUNT.fetch_add(1, Ordering::Release);
    Ok(address)
}

/// Frees a block that was made here, once the devices that use it have done all that they were given; whether there is one.
#[inline]
pub(super) fn free(address: u64) -> Result<bool, Failure> {
    if COUNT.load(Ordering::Acquire) == 0 { Ok(false) } else { free_of_these(address) }
}

#[cold]
fn free_of_these(address: u64) -> Result<bool, Failure> {
    // While it is in the books it is whole: a wait that fails, because a stream captures, leaves it there.
    let Some(devices) = look(address, |block| block.devices.clone()) else { return Ok(false) };
    devices.into_iter().try_for_each(streams::quiesce)?;
    let Some(block) = books().get_or_insert_default().remove(&address) else { return Ok(false) };
    COUNT.fetch_sub(1, Ordering::Release);
    drop(block);
    Ok(true)
}

/// A stream of a device uses a block, if it was made here: its free waits for the device. Whether it was.
pub(super) fn record(address: u64, user: &'static Device) -> bool {
    look(address, |block| devices::add(&mut block.devices, user)).is_some()
}

pub(super) fn device_of(address: u64) -> Option<c_int> {
    look(address, |block| block.devices.first().map(|device| device.ordinal)).flatten()
}

pub(super) fn base(address: u64) -> Option<(u64, usize)> {
    look(address, |block| (block.allocation.as_raw(), block.allocation.bytes()))
}

fn look<R>(address: u64, at: impl FnOnce(&mut Block) -> R) -> Option<R> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    books().as_mut()?.get_mut(&address).map(at)
}

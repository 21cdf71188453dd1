//! Memory straight from the driver, while caching is off.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::ipc::DeviceAllocation;

use super::devices::Device;
use super::error::Failure;
use super::{out_of_memory, streams};

type Books = HashMap<u64, (&'static Device, DeviceAllocation)>;

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
}

pub(super) fn allocate(device: &'static Device, bytes: usize) -> Result<u64, Failure> {
    let made = DeviceAllocation::new(&device.context, bytes);
    let made = made.map_err(|error| out_of_memory::failure(device, bytes, error.into()))?;
    let address = made.as_raw();
    books().get_or_insert_default().insert(address, (device, made));
    COUNT.fetch_add(1, Ordering::Release);
    Ok(address)
}

/// Frees a block that was made here, once the device has done all that it was given; whether there is one.
pub(super) fn free(address: u64) -> Result<bool, Failure> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return Ok(false);
    }
    // While it is in the books it is whole: a wait that fails, because a stream captures, leaves it there.
    let Some(device) = look(address, |(device, _)| *device) else { return Ok(false) };
    streams::quiesce(device)?;
    let Some((_, allocation)) = books().get_or_insert_default().remove(&address) else { return Ok(false) };
    COUNT.fetch_sub(1, Ordering::Release);
    drop(allocation);
    Ok(true)
}

pub(super) fn device_of(address: u64) -> Option<c_int> {
    look(address, |(device, _)| device.ordinal)
}

pub(super) fn base(address: u64) -> Option<(u64, usize)> {
    look(address, |(_, allocation)| (allocation.as_raw(), allocation.bytes()))
}

fn look<R>(address: u64, at: impl FnOnce(&(&'static Device, DeviceAllocation)) -> R) -> Option<R> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return None;
    }
    books().as_ref()?.get(&address).map(at)
}

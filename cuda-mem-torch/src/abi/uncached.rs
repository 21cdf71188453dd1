//! Memory straight from the driver, while caching is off.

use std::ffi::c_int;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::ipc::DeviceAllocation;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUresult;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Error as CoreError, Stream};

use super::devices::{self, Device};
use super::error::{CUDA_MEM_TORCH_CAPTURING, Failure};
use super::{out_of_memory, streams};
use crate::lock::lock;
use crate::uncached::{Block, Uncached};

const ENDED: c_int = CUresult::CUDA_ERROR_DEINITIALIZED.0.cast_signed();

pub(super) static OFF: AtomicBool = AtomicBool::new(false);
/// With their own devices first, and those of which streams were recorded: handles of streams may end before the memory does.
static BOOKS: Uncached<Vec<&'static Device>> = Uncached::new();
/// What was freed while a stream captured, so that it could not be waited for: nobody would free it again.
static LEAVING: Mutex<Vec<Block<Vec<&'static Device>>>> = Mutex::new(Vec::new());

pub(super) fn is_caching() -> bool {
    !OFF.load(Ordering::Relaxed)
}

/// Memory for a stream. One that captures gets none: a graph would outlive it.
pub(super) fn allocate(device: &'static Device, bytes: usize, stream: &Stream) -> Result<u64, Failure> {
    if stream.is_capturing()? {
        return Err(CoreError::Capturing { call: "an allocation while caching is off" }.into());
    }
    free_leaving();
    let made = DeviceAllocation::new(&device.context, bytes);
    let made = made.map_err(|error| out_of_memory::failure(device, bytes, error.into()))?;
    Ok(BOOKS.insert(made, vec![device]))
}

/// Frees a block that was made here, once the devices that use it have done all that they were given; whether there is one. While
/// a stream captures it is nobody's any more, and freed by a later call: see [`free_leaving`].
#[inline]
pub(super) fn free(address: u64) -> Result<bool, Failure> {
    let freed = BOOKS.free(address, |devices| {
        free_leaving();
        wait_for(&devices)
    });
    match freed {
        // As the process ends, too: the driver gave it back before, and nobody is left to be told.
        Err(failure) if failure.code == CUDA_MEM_TORCH_CAPTURING || failure.driver == ENDED => {
            let removed = BOOKS.remove(address);
            let is_one = removed.is_some();
            lock(&LEAVING).extend(removed);
            Ok(is_one)
        }
        freed => freed,
    }
}

/// Frees what could not be when it was given back. What cannot be now either waits for the next call.
pub(super) fn free_leaving() {
    let leaving = std::mem::take(&mut *lock(&LEAVING));
    for Block { allocation, users } in leaving {
        let kept = match wait_for(&users) {
            Ok(()) => allocation.close().err().map(|refused| refused.owner),
            Err(_) => Some(allocation),
        };
        lock(&LEAVING).extend(kept.map(|allocation| Block { allocation, users }));
    }
}

fn wait_for(devices: &[&'static Device]) -> Result<(), Failure> {
    devices.iter().try_for_each(|device| streams::quiesce(device))
}

/// A stream of a device uses a block, if it was made here: its free waits for the device. Whether it was.
pub(super) fn record(address: u64, user: &'static Device) -> bool {
    BOOKS.look(address, |block| devices::add(&mut block.users, user)).is_some()
}

pub(super) fn device_of(address: u64) -> Option<c_int> {
    BOOKS.look(address, |block| block.users.first().map(|device| device.ordinal)).flatten()
}

/// How many blocks there are, with those that were freed and had to stay.
pub(super) fn count() -> usize {
    BOOKS.count() + lock(&LEAVING).len()
}

pub(super) fn base(address: u64) -> Option<(u64, usize)> {
    BOOKS.base(address)
}

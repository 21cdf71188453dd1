//! Symmetric memory: the same buffer on every rank of a group, over the native backend of [`cuda_mem_ipc::symmetric`].
//!
//! What is given back is used again once everything is done that its device was given by then. While a stream of the device captures that was
//! seen here ([`cuda_mem_torch_see_stream`](super::cuda_mem_torch_see_stream), an allocation, a barrier or a signal on it), it waits for a
//! later call.
//!
//! # Safety
//!
//! Declares functions for C, whose callers answer for the pointers, addresses and streams that they pass.

#![allow(unsafe_code, reason = "takes pointers of C")]

mod groups;
mod handle;

pub use handle::*;

use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::time::Duration;

use cuda_mem_ipc::symmetric::{Error, Group, GroupOptions, NativeBackend, SymmetricBackend};

use super::devices::{self, Device};
use super::error::{
    CUDA_MEM_TORCH_INVALID_ARGUMENT, CUDA_MEM_TORCH_NOT_OURS, CUDA_MEM_TORCH_OK, CUDA_MEM_TORCH_SYSTEM,
    Failure, entry,
};
use super::leaving;
use super::pointers::{expect, optional, pointer, text, write};

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error {
            Error::Core(error) => return error.into(),
            Error::UnknownAddress { .. } => CUDA_MEM_TORCH_NOT_OURS,
            Error::NotAccepted { .. }
            | Error::UnknownGroup { .. }
            | Error::GroupExists { .. }
            | Error::GroupNeeded { .. }
            | Error::WrongGroup { .. }
            | Error::WrongDevice { .. } => CUDA_MEM_TORCH_INVALID_ARGUMENT,
            _ => CUDA_MEM_TORCH_SYSTEM,
        };
        Self::new(code, error.to_string())
    }
}

/// Forgets a group that has ended, once its device is done: nobody else gets its name before.
fn leave(device: &'static Device, name: String) {
    leaving::push(vec![device], move || {
        // It is known until here, so this does not fail.
        // SAFETY: all of its allocations were deleted, and the device is quiet.
        drop(unsafe { NativeBackend::global().remove_group(&name) });
        groups::forget(&name);
    });
}

/// Joins the group `name` of `world_size` ranks, processes of this host with a device each, as rank `rank`, and returns when all are
/// there: `Group::join`. `directory` is the same for all. A rank is waited for `timeout_ms` milliseconds, here and later; 0 is a
/// minute. The name of a group that was left is refused until that has ended.
///
/// # Safety
///
/// `name` and `directory` are text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_symm_join(
    device: c_int,
    name: *const c_char,
    rank: usize,
    world_size: usize,
    directory: *const c_char,
    timeout_ms: u64,
) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        let name = unsafe { text(name, "name") }?;
        // SAFETY: the caller's promise.
        let directory = Path::new(unsafe { text(directory, "directory") }?);
        let device = devices::device(device)?;
        leaving::settle();
        groups::refuse_left(name)?;
        let mut options = GroupOptions::default();
        if timeout_ms != 0 {
            options.timeout = Duration::from_millis(timeout_ms);
        }
        let group = Group::join(&device.context, name, rank, world_size, directory, &options)?;
        NativeBackend::global().add_group(&group)?;
        groups::add(device, name);
        Ok(())
    })
}

/// Leaves a group: nothing is allocated for it any more. What was allocated stays until it is deleted, and the group ends with that and
/// its last handles, after a wait for its device. While a stream of the device captures, that is left to a later call.
///
/// # Safety
///
/// `name` is text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_symm_leave(name: *const c_char) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        groups::leave(unsafe { text(name, "name") }?)?;
        leaving::settle();
        Ok(())
    })
}

/// Memory of `bytes` bytes for a group, of which every rank allocates the same sizes in the same order. Without a name it is for the
/// group that this process joined first with this device.
///
/// # Safety
///
/// `name` is null or text, `address` a place for one address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_symm_malloc(
    device: c_int,
    bytes: usize,
    name: *const c_char,
    address: *mut *mut c_void,
) -> c_int {
    entry(|| {
        expect(address, "address")?;
        // SAFETY: the caller's promise.
        let name = optional(name, || unsafe { text(name, "name") })?;
        let found = allocate(device, bytes, name)?;
        // SAFETY: the caller's promise.
        unsafe { write(address, pointer(found), "address") }
    })
}

fn allocate(ordinal: c_int, bytes: usize, name: Option<&str>) -> Result<u64, Failure> {
    let device = devices::device(ordinal)?;
    leaving::settle();
    let name = groups::take(ordinal, name)?;
    let allocated = NativeBackend::global().alloc(bytes, device.context.device(), Some(&name));
    allocated.map(|allocated| allocated.address).map_err(|error| {
        groups::give_back(&name);
        error.into()
    })
}

/// Takes memory back, by the address that [`cuda_mem_torch_symm_malloc`] gave: one that is not allocated, or lies inside an
/// allocation, is [`CUDA_MEM_TORCH_NOT_OURS`]. Handles keep the memory.
///
/// # Safety
///
/// What uses it was given to its device before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_symm_delete(device: c_int, address: *mut c_void) -> c_int {
    entry(|| {
        devices::device(device)?;
        // SAFETY: the caller's promise.
        let freed = unsafe { NativeBackend::global().take(address.addr() as u64) }?;
        // Its own, whichever was named: that one's work may use it.
        let own = devices::device(freed.group().device().as_raw())?;
        groups::give_back(freed.group().name());
        // What a device's failure keeps is in nobody's way.
        let _ = leaving::wait_and(vec![own], move || drop(freed));
        Ok(())
    })
}

/// `alloc` for `CUDAPluggableAllocator`, behind a pool of symmetric memory: as [`cuda_mem_torch_symm_malloc`] without a name; null if
/// there is none.
///
/// # Safety
///
/// None but the caller's for the result; the stream is not used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_symm_alloc(
    size: usize,
    device: c_int,
    _stream: *mut c_void,
) -> *mut c_void {
    let mut found = 0;
    let code = entry(|| {
        if size != 0 {
            found = allocate(device, size, None)?;
        }
        Ok(())
    });
    if code == CUDA_MEM_TORCH_OK { pointer(found) } else { std::ptr::null_mut() }
}

/// `free` for `CUDAPluggableAllocator`.
///
/// # Safety
///
/// As [`cuda_mem_torch_symm_delete`], for memory of [`cuda_mem_torch_symm_alloc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_symm_free(
    address: *mut c_void,
    _size: usize,
    device: c_int,
    _stream: *mut c_void,
) {
    if !address.is_null() {
        // SAFETY: the caller's promise.
        let _ = unsafe { cuda_mem_torch_symm_delete(device, address) };
    }
}

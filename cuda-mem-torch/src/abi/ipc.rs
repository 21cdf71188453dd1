//! Blocks for other processes.
//!
//! # Safety
//!
//! Declares functions for C, whose callers answer for what they pass.

#![allow(unsafe_code, reason = "takes pointers of C")]

use std::ffi::{c_int, c_void};
use std::sync::{Mutex, PoisonError};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::ipc::ImportedMapping;

use super::devices::{Device, device};
use super::error::{
    CUDA_MEM_TORCH_CAPTURING, CUDA_MEM_TORCH_NOT_OURS, CUDA_MEM_TORCH_UNSUPPORTED, Failure, entry,
};
use super::memory::block;
use super::pointers::{list, pointer, write};
use super::streams;
use crate::ipc::{Exports, Named, sized, take};

/// Memory of another process, mapped once however often it is opened.
#[derive(Debug)]
struct Opened {
    key: (c_int, Vec<u8>),
    mapping: ImportedMapping,
    device: &'static Device,
    users: usize,
}

static EXPORTS: Exports = Exports::new();
static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());
/// What nobody uses any more and could not be unmapped yet. Whoever opens the same bytes again gets a mapping of its own: by then
/// they may name other memory.
static LEAVING: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

/// A block is freed: nobody opens it any more. Who has it open keeps its memory.
#[inline]
pub(super) fn forget(address: u64) {
    EXPORTS.end(address);
}

/// Tells of a block in PyTorch's format for other processes: `handle` gets up to `capacity` bytes of it, `length` how many there
/// are, `offset` where in it the block begins. Whoever opens it keeps the memory, but not the block: this process does not free
/// it before the others are done.
///
/// # Safety
///
/// `handle` is null or has room for `capacity` bytes; `length` and `offset` are places for their values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_ipc_share(
    address: *mut c_void,
    handle: *mut u8,
    capacity: usize,
    length: *mut usize,
    offset: *mut usize,
) -> c_int {
    entry(|| {
        let address = address.addr() as u64;
        let told =
            EXPORTS.share(address, || block(address, |device| device.caching.export_block(address)))?;
        let begins = usize::try_from(told.offset).unwrap_or(0);
        let bytes = told.handle;
        // SAFETY: the caller's promise.
        unsafe { write(length, bytes.len(), "length") }?;
        // SAFETY: the caller's promise.
        unsafe { write(offset, begins, "offset") }?;
        if !handle.is_null() {
            // SAFETY: the caller's promise; the bytes are ours, so they do not overlap.
            unsafe { handle.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len().min(capacity)) };
        }
        Ok(())
    })
}

/// Maps what another process told of, for a device. The same bytes give the same address, until all have closed it.
///
/// # Safety
///
/// `handle` has `length` bytes; `address` is a place for one address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_ipc_open(
    device: c_int,
    handle: *const u8,
    length: usize,
    address: *mut *mut c_void,
) -> c_int {
    entry(|| {
        if address.is_null() {
            return Err(Failure::argument("address is null"));
        }
        // SAFETY: the caller's promise.
        let bytes = unsafe { list(handle, length, "handle") }?;
        let found = open(self::device(device)?, bytes)?;
        // SAFETY: the caller's promise.
        unsafe { write(address, pointer(found), "address") }
    })
}

fn open(device: &'static Device, bytes: &[u8]) -> Result<u64, Failure> {
    let Named::Mapped { pid, pieces } = Named::read(bytes)? else {
        return Err(Failure::new(
            CUDA_MEM_TORCH_UNSUPPORTED,
            "the handle is of memory of cuMemAlloc, which the native allocator opens",
        ));
    };
    unmap_leaving();
    let key = (device.ordinal, bytes.to_vec());
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = opened.iter_mut().find(|opened| opened.key == key) {
        known.users += 1;
        return Ok(known.mapping.as_raw());
    }
    let descriptors = take(pid, &pieces)?;
    let pieces = descriptors.iter().zip(&pieces).map(sized).collect::<Result<Vec<_>, _>>()?;
    let owner = device.context.device();
    let mapping = ImportedMapping::import_posix_fds(owner, &pieces, &[owner])?;
    let address = mapping.as_raw();
    opened.push(Opened { key, mapping, device, users: 1 });
    Ok(address)
}

/// Unmaps what could not be when it was closed. What cannot be now either waits for the next call.
pub(super) fn unmap_leaving() {
    let leaving = std::mem::take(&mut *LEAVING.lock().unwrap_or_else(PoisonError::into_inner));
    for last in leaving {
        let _ = last.unmap();
    }
}

impl Opened {
    /// Waits for the device and unmaps it; refused, it is left to [`unmap_leaving`].
    fn unmap(self) -> Result<(), Failure> {
        let keep = |kept| LEAVING.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
        if let Err(failure) = streams::quiesce(self.device) {
            keep(self);
            return Err(failure);
        }
        let Self { key, mapping, device, users } = self;
        mapping.close().map_err(|refused| {
            keep(Self { key, mapping: refused.owner, device, users });
            refused.error.into()
        })
    }
}

/// Ends one use of what [`cuda_mem_torch_ipc_open`] gave; the last one waits for the device and unmaps it. Whatever is returned,
/// the use has ended: what cannot be unmapped yet, because a stream captures, is by a later call that opens or closes memory or
/// empties the cache.
///
/// # Safety
///
/// No work uses it that is given to the device later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_ipc_close(address: *mut c_void) -> c_int {
    entry(|| {
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        let address = address.addr() as u64;
        let Some(place) = opened.iter().position(|opened| opened.mapping.as_raw() == address) else {
            return Err(Failure::new(
                CUDA_MEM_TORCH_NOT_OURS,
                format!("{address:#x} is not what was opened of another process"),
            ));
        };
        if opened[place].users > 1 {
            opened[place].users -= 1;
            return Ok(());
        }
        // Before anything can fail: nobody may find it any more.
        let last = opened.swap_remove(place);
        drop(opened);
        unmap_leaving();
        match last.unmap() {
            Err(failure) if failure.code == CUDA_MEM_TORCH_CAPTURING => Ok(()),
            unmapped => unmapped,
        }
    })
}

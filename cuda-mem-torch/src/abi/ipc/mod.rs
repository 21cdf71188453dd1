//! Blocks for other processes.
//!
//! # Safety
//!
//! Declares functions for C, whose callers answer for what they pass.

#![allow(unsafe_code, reason = "takes pointers of C")]

mod blob;

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::ipc::ImportedMapping;
use rustix::process::{ForeignRawFd, Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use self::blob::Blob;
use super::devices::{Device, device};
use super::error::{
    CUDA_MEM_TORCH_CAPTURING, CUDA_MEM_TORCH_NOT_OURS, CUDA_MEM_TORCH_SYSTEM, Failure, entry,
};
use super::memory::block;
use super::pointers::{list, pointer, write};
use super::streams;

/// A block that others may open, as long as it is not freed.
#[derive(Debug)]
struct Shared {
    bytes: Vec<u8>,
    offset: usize,
    /// The others take them from this process.
    _descriptors: Vec<OwnedFd>,
}

/// Memory of another process, mapped once however often it is opened.
#[derive(Debug)]
struct Opened {
    key: (c_int, Vec<u8>),
    mapping: ImportedMapping,
    device: &'static Device,
    users: usize,
}

/// How many blocks are shared, so that the usual free costs one load.
static SHARED_COUNT: AtomicUsize = AtomicUsize::new(0);
static SHARED: Mutex<Option<HashMap<u64, Shared>>> = Mutex::new(None);
static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());
/// What nobody uses any more and could not be unmapped yet. Whoever opens the same bytes again gets a mapping of its own: by then
/// they may name other memory.
static LEAVING: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

/// A block is freed: nobody opens it any more. Who has it open keeps its memory.
#[inline]
pub(super) fn forget(address: u64) {
    if SHARED_COUNT.load(Ordering::Relaxed) != 0 {
        let gone =
            SHARED.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().remove(&address);
        if gone.is_some() {
            SHARED_COUNT.fetch_sub(1, Ordering::Relaxed);
        }
    }
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
        let (bytes, begins) = share(address.addr() as u64)?;
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

fn share(address: u64) -> Result<(Vec<u8>, usize), Failure> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let shared = shared.get_or_insert_default();
    if let Some(known) = shared.get(&address) {
        return Ok((known.bytes.clone(), known.offset));
    }
    let export = block(address, |device| device.caching.export_block(address))?;
    let process = i32::try_from(std::process::id()).unwrap_or(0);
    let pieces =
        export.pieces.iter().map(|(bytes, descriptor)| (*bytes as u64, descriptor.as_raw_fd())).collect();
    let bytes = Blob { process, pieces }.to_bytes();
    let offset = usize::try_from(address.saturating_sub(export.base)).unwrap_or(0);
    let descriptors = export.pieces.into_iter().map(|(_, descriptor)| descriptor).collect();
    shared.insert(address, Shared { bytes: bytes.clone(), offset, _descriptors: descriptors });
    SHARED_COUNT.fetch_add(1, Ordering::Relaxed);
    Ok((bytes, offset))
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
    let blob = Blob::parse(bytes)?;
    unmap_leaving();
    let key = (device.ordinal, bytes.to_vec());
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = opened.iter_mut().find(|opened| opened.key == key) {
        known.users += 1;
        return Ok(known.mapping.as_raw());
    }
    let descriptors = fetch(&blob)?;
    let pieces: Vec<_> = descriptors
        .iter()
        .zip(&blob.pieces)
        .map(|(descriptor, (bytes, _))| (descriptor.as_fd(), usize::try_from(*bytes).unwrap_or(usize::MAX)))
        .collect();
    let owner = device.context.device();
    let mapping = ImportedMapping::import_posix_fds(owner, &pieces, &[owner])?;
    let address = mapping.as_raw();
    opened.push(Opened { key, mapping, device, users: 1 });
    Ok(address)
}

/// The other process's descriptors, as ours.
fn fetch(blob: &Blob) -> Result<Vec<OwnedFd>, Failure> {
    let refused = |call: &str, errno: rustix::io::Errno| {
        let hint = match errno {
            rustix::io::Errno::NOSYS => ": the kernel is too old for sharing expandable memory (5.6 has it)",
            rustix::io::Errno::PERM => {
                ": the system forbids taking descriptors from that process (same user, ptrace_scope, container)"
            }
            _ => "",
        };
        Failure::new(CUDA_MEM_TORCH_SYSTEM, format!("{call} of process {}: {errno}{hint}", blob.process))
    };
    let process =
        Pid::from_raw(blob.process).ok_or_else(|| Failure::argument("the handle names no process"))?;
    let process = pidfd_open(process, PidfdFlags::empty()).map_err(|errno| refused("pidfd_open", errno))?;
    let take = |(_, descriptor): &(u64, i32)| {
        let foreign: ForeignRawFd = *descriptor;
        pidfd_getfd(&process, foreign, PidfdGetfdFlags::empty())
            .map_err(|errno| refused("pidfd_getfd", errno))
    };
    blob.pieces.iter().map(take).collect()
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

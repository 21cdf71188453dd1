//! Blocks: handed out, taken back and recorded.
//!
//! # Safety
//!
//! Declares functions for C, whose callers answer for the addresses and streams that they pass.

#![allow(unsafe_code, reason = "takes addresses")]

use std::ffi::{c_int, c_void};

use cuda_mem_ipc::cuda_mem_pool::Error;

use super::devices::{self, DEVICES, Device, device};
use super::error::{CUDA_MEM_TORCH_NOT_OURS, CUDA_MEM_TORCH_OK, Failure, entry, entry_of_code, kept};
use super::pointers::{expect, pointer, write};
use super::{ipc, out_of_memory, streams, uncached};

/// Memory of `bytes` bytes for work of a stream of the device, at a multiple of 512, or of 256 where a pool's source gives such; null for no bytes.
///
/// `CUDA_MEM_TORCH_OUT_OF_MEMORY` after all that can be done; the message is then PyTorch's, with what would help.
/// `CUDA_MEM_TORCH_CAPTURING` for a stream that captures while caching is off.
///
/// # Safety
///
/// `stream` is a stream of the device, `address` a place for one address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_malloc(
    device: c_int,
    bytes: usize,
    stream: *mut c_void,
    address: *mut *mut c_void,
) -> c_int {
    entry_of_code(|| {
        let is_usual = bytes != 0 && !address.is_null();
        let recently = if is_usual { streams::allocate(device, stream, bytes) } else { None };
        let Some(Ok(found)) = recently else {
            let refused = recently.and_then(Result::err);
            // SAFETY: the caller's promise.
            return kept(unsafe { allocate_anew(device, bytes, stream, address, refused) });
        };
        // SAFETY: the caller's promise.
        unsafe { address.write(pointer(found)) };
        CUDA_MEM_TORCH_OK
    })
}

/// Allocates where the thread had not allocated on the stream, or was refused.
///
/// # Safety
///
/// As [`cuda_mem_torch_malloc`].
#[cold]
#[inline(never)]
unsafe fn allocate_anew(
    device: c_int,
    bytes: usize,
    stream: *mut c_void,
    address: *mut *mut c_void,
    refused: Option<Box<Error>>,
) -> Result<(), Failure> {
    expect(address, "address")?;
    let found = match refused {
        Some(error) if !matches!(*error, Error::StreamEnded) => {
            return Err(out_of_memory::failure(device, bytes, *error));
        }
        _ => look_up_and_allocate(device, bytes, stream)?,
    };
    // SAFETY: the caller's promise.
    unsafe { write(address, pointer(found), "address") }
}

/// As [`cuda_mem_torch_malloc`], exactly the memory from `address` on, out of what is cached for that stream in the default pool; none
/// for no bytes.
///
/// `CUDA_MEM_TORCH_NOT_OURS` if not all of it is free there, and while caching is off or the stream's requests go to a private pool.
///
/// # Safety
///
/// `stream` is a stream of the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_malloc_at(
    device: c_int,
    bytes: usize,
    stream: *mut c_void,
    address: *mut c_void,
) -> c_int {
    entry(|| {
        let (device, address) = (self::device(device)?, address.expose_provenance() as u64);
        if bytes == 0 {
            return Ok(());
        }
        devices::bind(device)?;
        streams::with_allocator(device, stream, |_, allocator| {
            let allocator = allocator.ok_or(Error::UnknownAddress { address })?;
            allocator.allocate_at(bytes, address)?;
            Ok(())
        })
    })
}

#[cold]
fn look_up_and_allocate(ordinal: c_int, bytes: usize, raw: *mut c_void) -> Result<u64, Failure> {
    let device = device(ordinal)?;
    if bytes == 0 {
        return Ok(0);
    }
    devices::bind(device)?;
    streams::with_allocator(device, raw, |stream, allocator| match allocator {
        Some(allocator) => allocator
            .allocate_by_address(bytes)
            .map_err(|error| out_of_memory::failure(ordinal, bytes, error)),
        None => uncached::allocate(device, bytes, stream),
    })
}

/// Takes a block back, ordered on the stream that it was allocated for. Null is nothing.
///
/// `CUDA_MEM_TORCH_NOT_OURS` leaves no message: the caller may ask another allocator.
///
/// # Safety
///
/// What uses the block is ordered before this point of its stream, or on streams that [`cuda_mem_torch_record_stream`] was told.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_delete(address: *mut c_void) -> c_int {
    let address = address.expose_provenance() as u64;
    if address == 0 {
        return CUDA_MEM_TORCH_OK;
    }
    entry_of_code(|| {
        // Most programs have one for each process.
        let freed = match DEVICES.only() {
            // SAFETY: the caller's promise.
            Some(device) => unsafe { device.caching.free_by_address(address) },
            // SAFETY: as above.
            None => unsafe { free_of_any(address) },
        };
        freed.map_or_else(|error| free_elsewhere(address, error), |()| CUDA_MEM_TORCH_OK)
    })
}

/// # Safety
///
/// As [`cuda_mem_torch_delete`].
#[inline(never)]
unsafe fn free_of_any(address: u64) -> Result<(), Error> {
    // SAFETY: the caller's promise.
    let found = DEVICES.search(|device| unsafe { device.caching.free_by_address(address) })?;
    found.ok_or(Error::UnknownAddress { address })
}

/// Frees what was made while caching was off, if no allocator has it.
#[cold]
#[inline(never)]
fn free_elsewhere(address: u64, error: Error) -> c_int {
    if !matches!(error, Error::UnknownAddress { .. }) {
        return kept(Err(error.into()));
    }
    match uncached::free(address) {
        Ok(false) => CUDA_MEM_TORCH_NOT_OURS,
        freed => kept(freed.map(drop)),
    }
}

/// As [`Devices::search`](crate::devices::Devices::search), for a block that there must be.
pub(super) fn block<R>(
    address: u64,
    ask: impl FnMut(&'static Device) -> Result<R, Error>,
) -> Result<R, Failure> {
    DEVICES.search(ask)?.ok_or_else(|| Error::UnknownAddress { address }.into())
}

/// The device of the block that begins at an address; -1 if there is none of this library.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_device_of(address: *const c_void) -> c_int {
    let address = address.addr() as u64;
    let mut found = -1;
    let code = entry(|| {
        found = match uncached::device_of(address) {
            Some(device) => device.ordinal,
            None => block(address, |device| device.caching.base_allocation(address).map(|_| device.ordinal))?,
        };
        Ok(())
    });
    if code == CUDA_MEM_TORCH_OK { found } else { -1 }
}

/// The bytes of a block, which it counts with in `allocated_bytes`; 0 for one that was made while caching was off, which does not count.
/// `CUDA_MEM_TORCH_NOT_OURS` if none begins there.
///
/// # Safety
///
/// `bytes` is a place for a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_block_bytes(address: *const c_void, bytes: *mut usize) -> c_int {
    entry(|| {
        let address = address.addr() as u64;
        let found = match uncached::device_of(address) {
            Some(_) => 0,
            None => block(address, |device| device.caching.block_bytes(address))?,
        };
        // SAFETY: the caller's promise.
        unsafe { write(bytes, found, "bytes") }
    })
}

/// Enters a stream, of whichever device, as a user of a block: freed, the block is not reused until the stream is past
/// the work that it was given by then.
///
/// # Safety
///
/// `stream` is a stream of `stream_device`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_record_stream(
    address: *mut c_void,
    stream_device: c_int,
    stream: *mut c_void,
) -> c_int {
    entry(|| {
        let address = address.addr() as u64;
        let user = device(stream_device)?;
        if uncached::record(address, user) {
            return Ok(());
        }
        streams::with(user, stream, |stream| {
            block(address, |device| device.caching.record_stream(address, stream))
        })
    })
}

/// What a block lies in: the segment, for a block of a private pool, else the whole pages of 2 MiB.
///
/// # Safety
///
/// `base` and `bytes` are places for their values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_base_allocation(
    address: *mut c_void,
    base: *mut *mut c_void,
    bytes: *mut usize,
) -> c_int {
    entry(|| {
        let address = address.addr() as u64;
        let (begin, size) = match uncached::base(address) {
            Some(found) => found,
            None => block(address, |device| device.caching.base_allocation(address))?,
        };
        // SAFETY: the caller's promise.
        unsafe { write(base, pointer(begin), "base") }?;
        // SAFETY: the caller's promise.
        unsafe { write(bytes, size, "bytes") }
    })
}

/// Raises `largest` to the largest free block of the device's allocator; a 0 there stands for what the device has free.
///
/// # Safety
///
/// `largest` points to a size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_cache_info(device: c_int, largest: *mut usize) -> c_int {
    entry(|| {
        let device = devices::device(device)?;
        // SAFETY: the caller's promise.
        let found = device.largest(*unsafe { super::pointers::read(largest, "largest") }?)?;
        // SAFETY: the caller's promise.
        unsafe { write(largest, found, "largest") }
    })
}

/// Sets the share of the device's memory that may be held, from 0 to 1; 1 is no limit. A device that is made later finds it.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_set_memory_fraction(device: c_int, fraction: f64) -> c_int {
    entry(|| {
        let number = devices::check_fraction(device, fraction)?;
        Ok(DEVICES.set_memory_fraction(number, fraction)?)
    })
}

/// The share of the device's memory that may be held.
///
/// # Safety
///
/// `fraction` is a place for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_memory_fraction(device: c_int, fraction: *mut f64) -> c_int {
    entry(|| {
        let number = devices::number_of(device)?;
        let is = DEVICES.set_up(|setup| setup.fraction(number));
        // SAFETY: the caller's promise.
        unsafe { write(fraction, is, "fraction") }
    })
}

/// Lets `device` reach the memory of `peer`: what it has and what it gets, also of other processes.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_enable_peer_access(device: c_int, peer: c_int) -> c_int {
    entry(|| {
        let (reaching, owner) = (devices::device(device)?, devices::device(peer)?);
        owner.caching.enable_peer_access(reaching.context.device())?;
        ipc::add_peer(owner, reaching)
    })
}

//! The layout of a private pool, kept and made again.
//!
//! # Safety
//!
//! Declares functions for C, whose callers answer for what they pass.

#![allow(unsafe_code, reason = "takes pointers and functions of C")]

use std::ffi::{c_int, c_void};

use cuda_mem_ipc::cuda_mem_pool::MempoolId;
use cuda_mem_ipc::cuda_mem_pool::segments::Checkpoint;

use super::cuda_mem_torch_pool_id;
use super::devices::device;
use super::error::entry;
use super::pointers::{expect, pointer, read, write};

/// The layout of a pool at one moment.
#[derive(Debug)]
pub struct cuda_mem_torch_checkpoint {
    pool: MempoolId,
    layout: Checkpoint,
}

/// The layout of a pool as it is, which the caller has until it is given to [`cuda_mem_torch_free_checkpoint`].
///
/// # Safety
///
/// `checkpoint` is a place for its address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_checkpoint_pool(
    device: c_int,
    pool: cuda_mem_torch_pool_id,
    checkpoint: *mut *mut cuda_mem_torch_checkpoint,
) -> c_int {
    entry(|| {
        expect(checkpoint, "checkpoint")?;
        let pool = MempoolId::from(pool);
        let layout = self::device(device)?.caching.checkpoint_pool(pool)?;
        let made = Box::into_raw(Box::new(cuda_mem_torch_checkpoint { pool, layout }));
        // SAFETY: the caller's promise.
        unsafe { write(checkpoint, made, "checkpoint") }
    })
}

/// Makes a pool's layout what it was: `freed` is told of each block that there was, `allocated` of each that there is.
///
/// # Safety
///
/// `checkpoint` came from [`cuda_mem_torch_checkpoint_pool`] for this device; what is told as freed is not used any more, also not on
/// recorded streams, and not freed by anybody else. The functions may be called with `data`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_restore_pool(
    device: c_int,
    checkpoint: *const cuda_mem_torch_checkpoint,
    data: *mut c_void,
    freed: Option<unsafe extern "C" fn(data: *mut c_void, address: *mut c_void)>,
    allocated: Option<unsafe extern "C" fn(data: *mut c_void, address: *mut c_void)>,
) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise.
        let checkpoint = unsafe { read(checkpoint, "checkpoint") }?;
        let caching = &self::device(device)?.caching;
        // SAFETY: the caller's promise.
        let restored = unsafe { caching.restore_pool(checkpoint.pool, &checkpoint.layout) }?;
        for (tell, blocks) in [(freed, restored.freed), (allocated, restored.allocated)] {
            let Some(tell) = tell else { continue };
            for address in blocks {
                // SAFETY: the caller's promise.
                unsafe { tell(data, pointer(address)) };
            }
        }
        Ok(())
    })
}

/// Frees a checkpoint; the pool stays as it is. Null is nothing.
///
/// # Safety
///
/// It came from [`cuda_mem_torch_checkpoint_pool`] and is given back once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_free_checkpoint(checkpoint: *mut cuda_mem_torch_checkpoint) {
    if !checkpoint.is_null() {
        // SAFETY: the caller's promise: the box that was made there.
        drop(unsafe { Box::from_raw(checkpoint) });
    }
}

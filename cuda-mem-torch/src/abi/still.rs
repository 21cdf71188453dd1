//! Memory that stays where it is, for those who register it by address.
//!
//! # Safety
//!
//! Declares functions for C, whose callers answer for the pointers that they pass.

#![allow(unsafe_code, reason = "takes pointers of C")]

use std::ffi::{c_int, c_void};

use cuda_mem_ipc::cuda_mem_pool::Error;
use cuda_mem_ipc::cuda_mem_pool::caching::{CachingAllocator, Pin, Pinned};

use super::devices::search;
use super::error::entry;
use super::pointers;

/// Has the memory of a block stay behind its addresses, also when the block is freed, until [`cuda_mem_torch_let_move`]. It is not moved, not
/// unmapped and not given back. `still` gets null for memory that never moves, of a private pool.
///
/// `CUDA_MEM_TORCH_NOT_OURS` for memory of somebody else.
///
/// # Safety
///
/// `still` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_hold_still(address: *const c_void, still: *mut *mut c_void) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise. Before anything is held.
        unsafe { pointers::write(still, std::ptr::null_mut(), "still") }?;
        let address = address.addr() as u64;
        let pinned = search(|device| pin(&device.caching, address))?;
        let pinned = pinned.ok_or(Error::UnknownAddress { address })?;
        let held = pinned.map_or(std::ptr::null_mut(), |pinned| Box::into_raw(Box::new(pinned)).cast());
        // SAFETY: the caller's promise.
        unsafe { pointers::write(still, held, "still") }
    })
}

/// None for memory of a private pool.
fn pin(caching: &CachingAllocator, address: u64) -> Result<Option<Pinned>, Error> {
    let (base, bytes) = caching.base_allocation(address)?;
    match caching.pin(base, bytes, Pin::Registered) {
        Err(Error::UnknownAddress { .. }) => Ok(None),
        pinned => pinned.map(Some),
    }
}

/// Lets memory move again. Null is nothing.
///
/// # Safety
///
/// `still` is of [`cuda_mem_torch_hold_still`], and passed here once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_let_move(still: *mut c_void) -> c_int {
    entry(|| {
        if !still.is_null() {
            // SAFETY: the caller's promise: it was made by a box, and is let go once.
            drop(unsafe { Box::from_raw(still.cast::<Pinned>()) });
        }
        Ok(())
    })
}

//! Memory that stays where it is, for code that registers it by address.
//!
//! # Safety
//!
//! Declares functions for C, whose callers answer for the pointers that they pass.

#![allow(unsafe_code, reason = "takes pointers of C")]

use std::ffi::{c_int, c_void};

use cuda_mem_ipc::cuda_mem_pool::Error;
use cuda_mem_ipc::cuda_mem_pool::caching::{CachingAllocator, Pin};

use super::error::entry;
use super::memory::block;
use super::pointers::write;

/// Has the memory of a block, or of a part of one, stay behind its addresses, also when the block is freed, until
/// [`cuda_mem_torch_let_move`]. It is not moved, not unmapped and not given back; a part of a tag stays awake when the tag is put to sleep.
/// `still` gets null for memory that never moves, of a block of another private pool, or made while segments were not expandable. It is not
/// held: it stays until the block is freed.
///
/// `CUDA_MEM_TORCH_NOT_OURS` for memory of somebody else.
///
/// # Safety
///
/// `still` can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_hold_still(
    address: *const c_void,
    bytes: usize,
    still: *mut *mut c_void,
) -> c_int {
    entry(|| {
        // SAFETY: the caller's promise. Before anything is held.
        unsafe { write(still, std::ptr::null_mut(), "still") }?;
        let address = address.addr() as u64;
        let pinned = block(address, |device| pin(&device.caching, address, bytes))?;
        // SAFETY: the caller's promise.
        unsafe { write(still, pinned.map_or(std::ptr::null_mut(), raw), "still") }
    })
}

/// What holds memory still, or awake, until it is dropped.
type Still = Box<dyn Send>;

/// It is the caller's from here on, until [`cuda_mem_torch_let_move`].
pub(super) fn raw(still: Still) -> *mut c_void {
    Box::into_raw(Box::new(still)).cast()
}

/// None for memory that never moves.
fn pin(caching: &CachingAllocator, address: u64, bytes: usize) -> Result<Option<Still>, Error> {
    match caching.pin(address, bytes, Pin::Registered) {
        Err(Error::UnknownAddress { .. }) => {
            let tags = caching.tags();
            let Some(tag) = tags.iter().find(|tag| tag.has(address)) else {
                let (base, there) = caching.base_allocation(address)?;
                // A block of the default pool moves, and of another one there is no more than its segment.
                let moves = caching.segment(address).is_ok() || address - base + bytes as u64 > there as u64;
                return if moves { Err(Error::UnknownAddress { address }) } else { Ok(None) };
            };
            Ok(Some(Box::new(tag.keep(address, bytes, "held still")?)))
        }
        pinned => Ok(Some(Box::new(pinned?))),
    }
}

/// Lets memory move, or sleep, again. Null is nothing.
///
/// # Safety
///
/// `still` is of [`cuda_mem_torch_hold_still`] or [`cuda_mem_torch_keep`](super::cuda_mem_torch_keep), and passed here once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_let_move(still: *mut c_void) -> c_int {
    entry(|| {
        if !still.is_null() {
            // SAFETY: the caller's promise: it was made by a box, and is let go once.
            drop(unsafe { Box::from_raw(still.cast::<Still>()) });
        }
        Ok(())
    })
}

//! Host memory that is pinned where it is, by its address.
//!
//! # Safety
//!
//! Declares functions for C, whose callers answer for the addresses that they pass.

#![allow(unsafe_code, reason = "takes addresses")]

use std::ffi::{c_int, c_void};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::host::raw::{pin_memory_with, unpin_memory_with};

use super::devices::driver;
use super::entry;

/// Pins `bytes` bytes, for all devices: `torch.cuda`'s `pin_memory(ptr, size)`.
///
/// # Safety
///
/// The memory stays mapped until it is unpinned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_pin_memory(address: *mut c_void, bytes: usize) -> c_int {
    entry(|| {
        let driver = driver()?;
        // SAFETY: the caller's promise.
        Ok(unsafe { pin_memory_with(driver, address, bytes) }?)
    })
}

/// Unpins what begins there.
///
/// # Safety
///
/// No device uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_unpin_memory(address: *mut c_void) -> c_int {
    entry(|| {
        let driver = driver()?;
        // SAFETY: the caller's promise.
        Ok(unsafe { unpin_memory_with(driver, address) }?)
    })
}

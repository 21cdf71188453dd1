//! Copies by address.
//!
//! # Safety
//!
//! The functions are `unsafe`: they take addresses.

#![allow(unsafe_code, reason = "copies by address")]

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Device, Stream, copy};

use super::caches::Caches;
use crate::error::Result;

impl Caches {
    /// # Safety
    ///
    /// As [`copy::memcpy_async`].
    pub(super) unsafe fn memcpy_async(
        &self,
        (target, target_device): (CUdeviceptr, Device),
        (source, source_device): (CUdeviceptr, Device),
        bytes: usize,
        stream: &Stream,
        p2p_enabled: bool,
    ) -> Result<()> {
        if p2p_enabled || target_device == source_device {
            // SAFETY: the caller's promise.
            return Ok(unsafe { copy::memcpy_async(stream, target, source, bytes) }?);
        }
        let (to, from) = (self.of(target_device)?, self.of(source_device)?);
        let (target, source) = ((target, &to.context), (source, &from.context));
        // SAFETY: the caller's promise.
        Ok(unsafe { copy::memcpy_peer_async(stream, target, source, bytes) }?)
    }
}

/// # Safety
///
/// As [`copy::memcpy_async`], until this returns.
pub(crate) unsafe fn copy_data(
    stream: &Stream,
    target: CUdeviceptr,
    source: CUdeviceptr,
    bytes: usize,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { copy::memcpy_async(stream, target, source, bytes) }?;
    Ok(stream.synchronize()?)
}

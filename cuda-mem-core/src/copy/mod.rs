//! Copies with means of their own: through a pinned ring ([`Stager`]), and between addresses for callers that answer for what
//! lies there ([`memcpy_async`], [`memset_async`]): these become part of the graph if the stream captures.
//!
//! # Safety
//!
//! [`memcpy_async`] and those like it are `unsafe`: they take addresses.

#![allow(unsafe_code, reason = "calls driver functions")]

mod scope;
mod stager;
mod transfer;

pub use scope::{Scope, scope};
pub use stager::{Stager, StagerBuilder};
pub use transfer::Transfer;

use cuda_mem_sys::{CUcontext, CUdeviceptr};

use crate::driver::Context;
use crate::error::{Result, WithBytes, call};
use crate::stream::Stream;

/// Puts a copy of `bytes` bytes between any two addresses that the driver knows, or pageable host memory, into `stream`.
///
/// Wraps [`cuMemcpyAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html). Ordered on `stream`. Whether it
/// returns before the copy is done depends on the memory: with pageable host memory on one side it may not.
///
/// # Safety
///
/// Until the stream has passed the copy, `bytes` bytes must stay readable at `source` and writable at `target`, no code may
/// write the former or touch the latter, and neither may be freed, unmapped or, if it is registered, unregistered.
pub unsafe fn memcpy_async(
    stream: &Stream,
    target: CUdeviceptr,
    source: CUdeviceptr,
    bytes: usize,
) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let entered = stream.enter_context()?;
    // SAFETY: the caller's promise; a live stream.
    unsafe { call!(stream.driver(), cuMemcpyAsync(target, source, bytes, entered.raw())) }.with_bytes(bytes)
}

/// Puts a copy of `bytes` bytes from the memory of one context into that of another into `stream`, whether or not the devices
/// reach each other's memory.
///
/// Wraps [`cuMemcpyPeerAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html). Ordered on `stream`, which may
/// be of either.
///
/// # Errors
///
/// As [`memcpy_async`].
///
/// # Safety
///
/// As [`memcpy_async`]; `target` and `source` are memory of their contexts' devices.
pub unsafe fn memcpy_peer_async(
    stream: &Stream,
    target: (CUdeviceptr, &Context),
    source: (CUdeviceptr, &Context),
    bytes: usize,
) -> Result<()> {
    let ((target, target_context), (source, source_context)) = (target, source);
    stream.driver().expect_same(target_context.driver(), "the memory")?;
    stream.driver().expect_same(source_context.driver(), "the memory")?;
    if bytes == 0 {
        return Ok(());
    }
    let entered = stream.enter_context()?;
    let raw = |context: &Context| -> CUcontext { context.as_raw().cast() };
    let (to, from) = (raw(target_context), raw(source_context));
    // SAFETY: the caller's promise; two live contexts and a live stream.
    unsafe { call!(stream.driver(), cuMemcpyPeerAsync(target, to, source, from, bytes, entered.raw())) }
        .with_bytes(bytes)
}

/// Sets `bytes` bytes from an address on to `value`, in the order of `stream`.
///
/// Wraps [`cuMemsetD8Async`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html). Ordered on `stream`; the host
/// waits for nothing.
///
/// # Safety
///
/// Until the stream has passed it, `bytes` bytes must stay writable at `target`, which no code may touch, free, unmap or, if it is
/// registered, unregister.
pub unsafe fn memset_async(stream: &Stream, target: CUdeviceptr, value: u8, bytes: usize) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let entered = stream.enter_context()?;
    // SAFETY: the caller's promise; a live stream.
    unsafe { call!(stream.driver(), cuMemsetD8Async(target, value, bytes, entered.raw())) }.with_bytes(bytes)
}

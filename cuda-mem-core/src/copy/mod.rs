//! Copies with means of their own: through a pinned ring ([`Stager`]), and between addresses for callers that answer for what
//! lies there ([`memcpy_async`]).
//!
//! # Safety
//!
//! [`memcpy_async`] is `unsafe`: it takes addresses.

#![allow(unsafe_code, reason = "calls driver functions")]

mod stager;

pub use stager::{Stager, StagerBuilder};

use cuda_mem_sys::CUdeviceptr;

use crate::error::{Result, WithBytes, call};
use crate::stream::Stream;

/// Puts a copy of `bytes` bytes between any two addresses that the driver knows, or pageable host memory, into `stream`.
///
/// Wraps [`cuMemcpyAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html). Ordered on `stream`. Whether it
/// returns before the copy is done depends on the memory: with pageable host memory on one side it may not.
///
/// # Capture
///
/// Becomes part of the graph if the stream captures.
///
/// # Errors
///
/// [`Error::Driver`](crate::Error::Driver), [`Error::WrongThread`](crate::Error::WrongThread),
/// [`Error::Forked`](crate::Error::Forked).
///
/// # Safety
///
/// Until the stream has passed the copy, `bytes` bytes must stay readable at `source` and writable at `target`, nobody may
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

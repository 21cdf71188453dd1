//! The consumer's stream, by the number that Python passes.
//!
//! # Safety
//!
//! [`consumer_stream`] is `unsafe`: it takes a handle.

#![allow(unsafe_code, reason = "takes the handle of a stream")]

use std::ptr;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Context, Stream};

use super::DlpackError;

/// The stream that a consumer names in `__dlpack__(stream=...)`: none or 1 is the legacy default stream, -1 is
/// none at all, for which nothing is ordered, and numbers above 2 are handles.
///
/// # Errors
///
/// [`DlpackError::Stream`] for 0, which could be either default stream, and for other negative numbers; [`DlpackError::PerThread`] for 2,
/// the calling thread's default stream; [`DlpackError::Core`] of the driver, also for a stream that captures.
///
/// # Safety
///
/// A handle is of a live stream of the context, which lives until what is lent to it has been given back.
pub unsafe fn consumer_stream(context: &Context, stream: Option<i64>) -> Result<Option<Stream>, DlpackError> {
    match stream {
        None | Some(1) => Ok(Some(Stream::legacy(context)?)),
        Some(2) => Err(DlpackError::PerThread),
        Some(-1) => Ok(None),
        Some(stream) => {
            let handle = usize::try_from(stream).ok().filter(|handle| *handle > 2);
            let handle = handle.ok_or(DlpackError::Stream { stream })?;
            // SAFETY: the caller's promise.
            Ok(Some(unsafe { Stream::borrow_raw(context, ptr::with_exposed_provenance_mut(handle)) }?))
        }
    }
}

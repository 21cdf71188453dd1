//! Where a stream stands in the capture that it takes part in.
//!
//! # Safety
//!
//! Relies on the callers' word that nobody else works at the capture: the driver's list of a stream's nodes is its own, until
//! the stream is given something or the capture ends.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::ptr;

use cuda_mem_sys::{CUgraphNode, CUgraphNode_st, CUstreamCaptureStatus};

use super::{Entered, Stream};
use crate::context::Context;
use crate::error::{Result, call};
use crate::handle::Handle;

/// What names a capture for the life of the process.
///
/// ```
/// use cuda_mem_core::{Driver, Stream};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let stream = Stream::new(&driver.device(0)?.primary_context()?)?;
/// assert_eq!(stream.capture_id()?, None); // it captures nothing
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CaptureId(u64);

impl CaptureId {
    /// The number that `cuStreamGetCaptureInfo` gives.
    #[must_use]
    pub fn as_raw(self) -> u64 {
        self.0
    }
}

/// A place in a capture: behind all that a stream had been given there. [`CapturePast`](crate::CapturePast) compares places, and has an example.
#[derive(Debug, Clone)]
pub struct CapturePoint {
    pub(super) context: Context,
    pub(super) capture: CaptureId,
    /// What the stream's next node would come after; none at the beginning of a capture.
    pub(super) nodes: Vec<Handle<CUgraphNode_st>>,
}

impl CapturePoint {
    /// The capture.
    #[must_use]
    pub fn capture(&self) -> CaptureId {
        self.capture
    }
}

impl Stream {
    /// The capture that the stream takes part in; None if it captures nothing, or the capture was invalidated.
    ///
    /// Wraps [`cuStreamGetCaptureInfo`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html).
    ///
    /// # Errors
    ///
    /// [`Error::WrongThread`](crate::Error::WrongThread), [`Error::Driver`](crate::Error::Driver), for the legacy stream also while a blocking stream of its
    /// context captures; [`Error::Forked`](crate::Error::Forked).
    pub fn capture_id(&self) -> Result<Option<CaptureId>> {
        let entered = self.enter()?;
        let (mut status, mut id) = (CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, 0);
        let (graph, nodes, count) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        // SAFETY: a live stream; a status and a number to write, and nothing else.
        unsafe {
            call!(
                self.driver(),
                cuStreamGetCaptureInfo(entered.raw(), &mut status, &mut id, graph, nodes, count)
            )
        }?;
        Ok((status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE).then_some(CaptureId(id)))
    }

    /// Where the stream stands in its capture, behind all that it was given; None as for [`Stream::capture_id`].
    ///
    /// Wraps [`cuStreamGetCaptureInfo`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html).
    ///
    /// # Errors
    ///
    /// As [`Stream::capture_id`], and [`Error::Driver`](crate::Error::Driver) with `CUDA_ERROR_LOSSY_QUERY` where the next node would not come wholly
    /// after what the stream was given.
    ///
    /// # Safety
    ///
    /// Until this returns, no other thread gives the stream anything, changes what it comes after, or ends its capture.
    pub unsafe fn capture_point(&self) -> Result<Option<CapturePoint>> {
        let entered = self.enter()?;
        self.driver().when_idle().streams.alone(&self.inner, || {
            // SAFETY: the caller's promise for other threads; of this crate's own nobody names the stream meanwhile.
            unsafe { self.read_point(&entered) }
        })
    }

    /// # Safety
    ///
    /// As [`Stream::capture_point`], also of threads of this crate.
    unsafe fn read_point(&self, entered: &Entered<'_>) -> Result<Option<CapturePoint>> {
        let (mut status, mut id) = (CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE, 0);
        let (mut nodes, mut count) = (ptr::null::<CUgraphNode>(), 0);
        let graph = ptr::null_mut();
        // SAFETY: a live stream; each place to write to is of its type, and the graph is not asked for.
        unsafe {
            call!(
                self.driver(),
                cuStreamGetCaptureInfo(entered.raw(), &mut status, &mut id, graph, &mut nodes, &mut count)
            )
        }?;
        if status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE {
            return Ok(None);
        }
        let nodes: &[CUgraphNode] = match count {
            0 => &[],
            // SAFETY: the driver's list of so many nodes, which stays as it is until "the next API call which operates on the
            // stream or until end of capture" (its documentation); by the caller's promise both come after the copy below.
            _ => unsafe { std::slice::from_raw_parts(nodes, count) },
        };
        let nodes = nodes.iter().map(|&node| Handle::new(node)).collect();
        Ok(Some(CapturePoint { context: self.context().clone(), capture: CaptureId(id), nodes }))
    }
}

//! Leaving other threads' captures alone.
//!
//! While any thread captures in the global mode, calls that the driver counts as unsafe for captures fail in every thread,
//! and the capture with them. A thread in the relaxed mode may make them: whoever is here does not depend on the capture.
//!
//! # Safety
//!
//! Relies on the capture mode being a property of the calling thread: the guard cannot leave it, so it always restores the
//! mode of the thread that it changed.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::marker::PhantomData;

use cuda_mem_sys::CUstreamCaptureMode;

use crate::driver::{Driver, refuse_forked};
use crate::error::{Result, call};
use crate::fork;

/// The calling thread is in the relaxed capture mode while this lives.
#[derive(Debug)]
pub(crate) struct Relaxed {
    driver: Driver,
    previous: CUstreamCaptureMode,
    /// The mode belongs to this thread.
    _not_send: PhantomData<*mut ()>,
}

impl Relaxed {
    pub(crate) fn enter(driver: Driver) -> Result<Self> {
        refuse_forked()?;
        let previous = exchange(driver, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        Ok(Self { driver, previous, _not_send: PhantomData })
    }
}

impl Driver {
    /// Runs `body` in the thread's relaxed capture mode, for calls that the driver else refuses beside captures, and that end those: an
    /// allocation by `cuMemAlloc`, say, that has nothing to do with any capture. The mode is what it was afterwards, also after a panic.
    ///
    /// ```
    /// use cuda_mem_core::Driver;
    ///
    /// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
    /// let sum = driver.in_relaxed_capture_mode(|| 1 + 1)?;
    /// assert_eq!(sum, 2);
    /// # Ok::<(), cuda_mem_core::Error>(())
    /// ```
    ///
    /// Wraps [`cuThreadExchangeStreamCaptureMode`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html), twice.
    ///
    /// # Capture
    ///
    /// May be called while streams capture, and `body` may make any call but on a stream that captures.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`](crate::Error::Driver), [`Error::Forked`](crate::Error::Forked); `body` was not called then.
    pub fn in_relaxed_capture_mode<R>(self, body: impl FnOnce() -> R) -> Result<R> {
        let _relaxed = Relaxed::enter(self)?;
        Ok(body())
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if !fork::forked() {
            self.driver.release(|| exchange(self.driver, self.previous).map(drop));
        }
    }
}

fn exchange(driver: Driver, mode: CUstreamCaptureMode) -> Result<CUstreamCaptureMode> {
    let mut mode = mode;
    // SAFETY: one mode, read and written.
    unsafe { call!(driver, cuThreadExchangeStreamCaptureMode(&mut mode)) }?;
    Ok(mode)
}

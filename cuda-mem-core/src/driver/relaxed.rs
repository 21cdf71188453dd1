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

use crate::driver::{Driver, fork, refuse_forked};
use crate::error::{Result, call};

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

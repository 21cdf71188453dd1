//! Points behind what a legacy default stream was given, made without naming it: beside a blocking stream's capture that would end the
//! capture.
//!
//! # Safety
//!
//! Relies on the blocking stream that is made here being nobody else's, so that it never captures, and on its context living until
//! [`BesideLegacy::destroy`].

#![allow(unsafe_code, reason = "calls driver functions")]

use std::ptr;
use std::sync::{Mutex, PoisonError};

use cuda_mem_sys::{CUstream, CUstream_flags, CUstream_st};

use super::destroy;
use crate::context::Context;
use crate::driver::Driver;
use crate::error::{Result, call};
use crate::event::Event;
use crate::handle::Handle;

/// A blocking stream of a context's own, which waits for the context's legacy stream as all of them do, once it was needed. It has no work
/// but these points.
#[derive(Debug, Default)]
pub(crate) struct BesideLegacy {
    blocking: Mutex<Option<Handle<CUstream_st>>>,
}

impl BesideLegacy {
    /// Records `event` behind all work of the legacy stream of `context`, whose this is.
    pub(super) fn record(&self, context: &Context, event: &Event) -> Result<()> {
        let _bound = context.bind()?;
        let blocking = self.stream(context.driver())?;
        // SAFETY: a live event and a live stream of the same context.
        unsafe { call!(context.driver(), cuEventRecord(event.handle(), blocking)) }
    }

    /// The stream, which is made at the first call, in the current context.
    fn stream(&self, driver: Driver) -> Result<CUstream> {
        let mut blocking = self.blocking.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(blocking) = &*blocking {
            return Ok(blocking.raw());
        }
        let mut raw: CUstream = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_DEFAULT.0;
        // SAFETY: one handle to write; the context is current.
        unsafe { call!(driver, cuStreamCreateWithPriority(&mut raw, flags, 0)) }?;
        Ok(blocking.insert(Handle::new(raw)).raw())
    }

    /// The context is about to go.
    pub(crate) fn destroy(&self, driver: Driver) {
        let blocking = self.blocking.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(blocking) = blocking {
            destroy(driver, blocking.raw());
        }
    }
}

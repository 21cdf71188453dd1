//! The streams that exist.
//!
//! # Safety
//!
//! Relies on a stream leaving the list before it is destroyed, or before its owner may destroy it, and on nobody asking about
//! one but under the list's lock.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_mem_sys::CUstream_st;

use super::{Inner, Kind, is_capturing};
use crate::capture::Relaxed;
use crate::context::Context;
use crate::driver::Driver;
use crate::error::{Error, Result, query};
use crate::handle::Handle;

/// All streams of a driver that are known here, but for the default streams of threads, which no other thread can ask about.
#[derive(Debug, Default)]
pub(crate) struct KnownStreams {
    /// By where their values are.
    streams: Mutex<HashMap<usize, Known>>,
}

#[derive(Debug)]
struct Known {
    context: Context,
    raw: Handle<CUstream_st>,
}

impl KnownStreams {
    pub(super) fn enter(&self, stream: &Inner) {
        if !matches!(stream.kind, Kind::PerThread(_)) {
            let known = Known { context: stream.context.clone(), raw: stream.raw };
            self.lock().insert(place(stream), known);
        }
    }

    pub(super) fn leave(&self, stream: &Inner) {
        let left = self.lock().remove(&place(stream));
        // Outside the lock: it may hold the last handle to a context, though the stream has one as a rule.
        drop(left);
    }

    /// Whether none has work. One that captures counts as busy, and its capture stays.
    pub(crate) fn are_idle(&self, driver: Driver) -> bool {
        let Ok(_relaxed) = Relaxed::enter(driver) else { return false };
        self.lock().values().all(|stream| match stream.is_idle() {
            Err(Error::Driver(error)) => error.context_is_lost(),
            is_idle => is_idle.unwrap_or(false),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Known>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn is_idle(&self) -> Result<bool> {
        let driver = self.context.driver();
        let _bound = self.context.bind()?;
        // Asked for its work, the driver would end the capture.
        if is_capturing(driver, self.raw.raw())? {
            return Ok(false);
        }
        // SAFETY: a stream that exists: it is in the list.
        unsafe { query!(driver, cuStreamQuery(self.raw.raw())) }
    }
}

fn place(stream: &Inner) -> usize {
    std::ptr::from_ref(stream).addr()
}

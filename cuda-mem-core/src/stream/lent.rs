//! Streams that somebody else may have capture at any moment, and how they are asked nonetheless.
//!
//! What is asked of a stream itself ends a capture that has just begun. What is asked of an event does not, if no capture has the
//! event.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::idle::WhenIdle;
use super::{Stream, StreamId};
use crate::driver::{Event, LateReports, fork, refuse_forked};
use crate::error::{Error, Result};

impl Stream {
    /// From here on somebody else may have the stream capture: by its handle, or by an event of a capture.
    #[inline]
    pub(super) fn lend(&self) {
        if !self.is_lent() {
            self.lend_first();
        }
    }

    #[inline]
    pub(super) fn is_lent(&self) -> bool {
        self.inner.is_lent.load(Ordering::Acquire)
    }

    /// Whether somebody else may have the stream capture what it is given. The legacy default stream never captures.
    #[inline]
    pub(super) fn may_capture(&self) -> bool {
        self.is_lent() && !self.is_legacy()
    }

    #[cold]
    fn lend_first(&self) {
        if !fork::forked() {
            self.driver().service::<WhenIdle>().streams.lend(&self.inner);
            self.inner.is_lent.store(true, Ordering::Release);
        }
    }

    /// An event behind everything that it was given so far, which no capture has, and the making of which ends none that is known here. Of a
    /// [guest](Self::guest) that nobody visits it is [behind all](crate::Context::point) that the context was given.
    ///
    /// Wraps [`cuEventRecord`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html); for the legacy stream on a
    /// blocking stream of the context's own, which waits for it.
    ///
    /// # Errors
    ///
    /// [`Capturing`](Error::Capturing) for `call` if it captures.
    pub fn point(&self, call: &'static str) -> Result<Event> {
        match self.own_point(call) {
            Err(Error::Disowned) if self.is_guest() => self.context().point(),
            point => point,
        }
    }

    fn own_point(&self, call: &'static str) -> Result<Event> {
        self.refuse_capturing(call)?;
        let event = Event::pooled(self.context())?;
        if self.is_legacy() {
            // Every mention of it ends a capture that a blocking stream has begun in the meantime.
            self.context().record_beside_legacy(&event)?;
        } else {
            self.record(&event)?;
        }
        if self.may_capture() {
            // A capture that began before the record has the event: asked for, it would end the capture, and waited for, draw the
            // other stream into it. Once the capture has ended the driver refuses both (seen on hardware).
            self.refuse_capturing(call)?;
        }
        Ok(event)
    }

    /// Whether it has no work; None if somebody else may have it capture, so that it cannot be asked.
    pub(crate) fn is_idle_unlent(&self) -> Result<Option<bool>> {
        refuse_forked()?;
        self.driver().service::<WhenIdle>().streams.is_idle(&self.inner)
    }
}

/// The owner has said that it ends. The rest counts calls.
const DISOWNED: usize = 1;
const CALL: usize = 2;

/// Who names a stream right now.
#[derive(Debug, Default)]
pub(super) struct Naming(AtomicUsize);

/// A call that names it. The program's hook, which may disown the stream, hears behind it of what the call fails to leave.
#[derive(Debug)]
pub(crate) struct Named<'n> {
    naming: &'n Naming,
    _reports: LateReports,
}

impl Naming {
    /// None once the stream was disowned.
    #[inline]
    pub(super) fn begin(&self) -> Option<Named<'_>> {
        let before = self.0.fetch_add(CALL, Ordering::Acquire);
        let named = Named { naming: self, _reports: LateReports::new() };
        (before & DISOWNED == 0).then_some(named)
    }

    /// No call begins from here on. Waits for those that have begun, which may themselves wait for what the stream was given.
    pub(super) fn end(&self) {
        self.0.fetch_or(DISOWNED, Ordering::AcqRel);
        let mut pause = Duration::from_micros(1);
        // Acquire: the calls come before whatever their stream's owner does next.
        while self.0.load(Ordering::Acquire) != DISOWNED {
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(1));
        }
    }
}

impl Drop for Named<'_> {
    #[inline]
    fn drop(&mut self) {
        self.naming.0.fetch_sub(CALL, Ordering::Release);
    }
}

thread_local! {
    /// The guest that this thread visits.
    static VISITED: Cell<Option<StreamId>> = const { Cell::new(None) };
}

/// Calls `body`, in which this thread may name a guest.
#[inline]
pub(super) fn visiting<R>(stream: StreamId, body: impl FnOnce() -> R) -> R {
    /// The one that it visited before, and visits again.
    struct Before(Option<StreamId>);
    impl Drop for Before {
        fn drop(&mut self) {
            VISITED.set(self.0);
        }
    }
    let _before = Before(VISITED.replace(Some(stream)));
    body()
}

#[inline]
pub(super) fn is_visited(stream: StreamId) -> bool {
    VISITED.get() == Some(stream)
}

//! Streams that somebody else may have capture at any moment, and how they are asked nonetheless.
//!
//! What is asked of a stream itself ends a capture that has just begun. What is asked of an event does not, if no capture has the
//! event.

use std::sync::atomic::Ordering;

use super::known::record_behind_legacy;
use super::{Kind, Stream};
use crate::driver::refuse_forked;
use crate::error::Result;
use crate::event::Event;
use crate::fork;

impl Stream {
    /// From here on somebody else may have the stream capture: by its handle, or by an event of a capture.
    #[inline]
    pub(super) fn lend(&self) {
        if !self.is_lent() {
            self.lend_first();
        }
    }

    #[inline]
    fn is_lent(&self) -> bool {
        self.inner.is_lent.load(Ordering::Acquire)
    }

    #[cold]
    fn lend_first(&self) {
        if !fork::forked() {
            self.driver().when_idle().streams.lend(&self.inner);
            self.inner.is_lent.store(true, Ordering::Release);
        }
    }

    /// An event behind everything that it was given so far, which no capture has. [`Capturing`](crate::Error::Capturing) for `call`
    /// if it captures.
    pub(crate) fn point(&self, call: &'static str) -> Result<Event> {
        self.refuse_capturing(call)?;
        let event = Event::pooled(self.context())?;
        self.record(&event)?;
        if self.is_lent() {
            // A capture that began before the record has the event: asked for, it would end the capture, and waited for, draw the
            // other stream into it. Once the capture has ended the driver refuses both (seen on hardware).
            self.refuse_capturing(call)?;
        }
        Ok(event)
    }

    /// As [`Stream::point`], for callers who are not expected at the stream: nor does it end a capture of a blocking stream, which
    /// every mention of the legacy stream does.
    pub(crate) fn point_unnoticed(&self, call: &'static str) -> Result<Event> {
        if self.inner.kind != Kind::Legacy {
            return self.point(call);
        }
        self.refuse_capturing(call)?;
        let _bound = self.context().bind()?;
        let event = Event::pooled(self.context())?;
        record_behind_legacy(self.driver(), event.handle())?;
        Ok(event)
    }

    /// Whether it has no work; None if somebody else may have it capture, so that it cannot be asked.
    pub(crate) fn is_idle_unlent(&self) -> Result<Option<bool>> {
        refuse_forked()?;
        self.driver().when_idle().streams.is_idle(&self.inner)
    }
}

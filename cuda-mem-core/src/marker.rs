//! A point directly behind a copy of host memory: what the copy's owner waits for.

use crate::capture::Relaxed;
use crate::error::Result;
use crate::event::Event;
use crate::stream::{Quiet, Stream, until_quiet};

/// A point in a stream. Unlike the stream it can be waited for from any thread, and while the stream captures.
#[derive(Debug)]
pub(crate) struct Marker {
    stream: Stream,
    event: Event,
}

impl Marker {
    /// Made before the copy, so that nothing but the record can fail after it.
    pub(crate) fn new(stream: &Stream) -> Result<Self> {
        Ok(Self { stream: stream.clone(), event: Event::pooled(stream.context())? })
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Puts the point behind what the stream was given by now. If the driver does not take it, waits for the stream at once.
    pub(crate) fn set(&self) -> Quiet {
        match self.stream.record(&self.event) {
            Ok(()) => Quiet::Yes(Ok(())),
            Err(error) => self.stream.drain().behind(error),
        }
    }

    /// Whether the point was reached.
    pub(crate) fn is_reached(&self) -> Result<bool> {
        self.event.is_complete()
    }

    /// Waits until nothing before the point runs any more.
    pub(crate) fn wait(&self) -> Quiet {
        let _relaxed = Relaxed::enter(self.stream.driver()).ok();
        until_quiet(&self.stream, || self.event.synchronize())
    }
}

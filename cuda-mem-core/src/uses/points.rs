//! Uses that outlive their owner: as points in streams, and handed to the owner of a larger piece of memory.

use std::sync::Arc;

use cuda_mem_sys::CUdeviceptr;

use super::{Access, Use, Uses};
use crate::buffer::StreamUse;
use crate::capture::Relaxed;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::stream::{Stream, until_quiet};

/// A point in a stream behind the uses of a piece of memory: who has all of them knows when the memory is quiet.
///
/// It can be asked and waited for from any thread, and while the stream captures.
#[derive(Debug, Clone)]
pub struct UsePoint {
    stream: Stream,
    event: Arc<Event>,
}

impl Uses {
    /// No uses.
    #[inline]
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether no use was ever recorded. Makes no call and takes no lock.
    #[inline]
    #[must_use]
    pub fn is_empty(&mut self) -> bool {
        let entries = self.entries.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        entries.writer.is_none() && entries.readers.is_empty()
    }

    /// Orders `stream` behind the uses so far and enters it as a user of the memory at `address`, until the result is dropped.
    ///
    /// # Capture
    ///
    /// A stream that is ordered behind others must not capture, nor they: [`Error::Capturing`].
    ///
    /// # Errors
    ///
    /// [`Error::Capturing`], [`Error::WrongThread`], [`Error::Driver`], [`Error::Forked`].
    pub fn on<'u>(&'u self, address: CUdeviceptr, stream: &'u Stream) -> Result<StreamUse<'u>> {
        StreamUse::begin(address, self, stream, Access::Write)
    }

    /// Enters `stream` as a user for what it was given so far, without ordering it behind anything.
    ///
    /// # Errors
    ///
    /// [`Error::WrongThread`], [`Error::Driver`], [`Error::Forked`].
    pub fn record_stream(&self, stream: &Stream) -> Result<()> {
        self.note(stream)?.end()
    }

    /// Orders `stream` behind all uses.
    ///
    /// # Errors
    ///
    /// As [`Uses::on`].
    pub fn order(&self, stream: &Stream) -> Result<()> {
        self.hold_up(stream)
    }

    /// Waits until no use runs any more. Without uses no call is made.
    ///
    /// # Errors
    ///
    /// [`Error::Capturing`] if one of the streams captures, which leaves the capture alone; [`Error::Driver`], also for work
    /// that failed; [`Error::Forked`].
    pub fn wait(&self) -> Result<()> {
        self.synchronize()
    }

    /// A point behind the uses for each of their streams: a pooled event, recorded now.
    ///
    /// # Capture
    ///
    /// [`Error::Capturing`] if a stream captures: its event would be a node of the graph.
    ///
    /// # Errors
    ///
    /// [`Error::Capturing`], [`Error::WrongThread`] for a per-thread stream whose use was never ended, [`Error::Driver`],
    /// [`Error::Forked`]. The uses stay as they were.
    pub fn points(&mut self) -> Result<Vec<UsePoint>> {
        let entries = self.entries.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        entries.iter().map(Use::point).collect()
    }

    /// Adds all of `other`: the uses of a part are uses of the whole.
    pub(crate) fn absorb(&self, other: Self) {
        let other = other.entries.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut entries = self.lock();
        entries
            .readers
            .extend(other.writer.into_iter().chain(other.readers).map(|entry| Use { open: 0, ..entry }));
    }
}

impl Use {
    fn point(&self) -> Result<UsePoint> {
        let event = match &self.event {
            Some(event) => Arc::clone(event),
            None => {
                self.stream.refuse_capturing("recording the end of a use")?;
                let event = Event::pooled(self.stream.context())?;
                self.stream.record(&event)?;
                Arc::new(event)
            }
        };
        Ok(UsePoint { stream: self.stream.clone(), event })
    }
}

impl UsePoint {
    /// The stream.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Whether nothing before the point runs any more: it was reached, or its context is lost with all that ran there.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], after which nothing is known; [`Error::Forked`].
    pub fn is_reached(&self) -> Result<bool> {
        match self.event.is_complete() {
            Err(Error::Driver(error)) if error.context_is_lost() => Ok(true),
            answer => answer,
        }
    }

    /// Waits until nothing before the point runs any more, whatever the result says. Blocks the calling thread.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] if a wait failed or the context was lost; [`Error::Forked`], without a wait.
    pub fn wait(&self) -> Result<()> {
        crate::driver::refuse_forked()?;
        let _relaxed = Relaxed::enter(self.stream.driver()).ok();
        until_quiet(&self.stream, || self.event.synchronize())
    }
}

//! The fence that a received buffer's bytes are behind.

use cuda_mem_pool::cuda_mem_core::Stream;
use cuda_mem_pool::cuda_mem_core::ipc::OpenedEvent;

use super::words::{Point, Words};
use crate::error::Result;

#[derive(Debug)]
pub(super) enum Arrival {
    /// Of the connection that the buffer came by.
    Word(Point),
    Event(OpenedEvent),
}

impl Arrival {
    /// Has `stream` wait until the bytes are there.
    pub(super) fn hold_up(&self, words: &Words, stream: &Stream) -> Result<()> {
        match self {
            Self::Word(point) => words.hold_up(*point, stream),
            Self::Event(event) => Ok(stream.wait(event.event())?),
        }
    }

    pub(super) fn is_reached(&self, words: &Words) -> Result<bool> {
        match self {
            Self::Word(point) => words.is_reached(*point),
            Self::Event(event) => Ok(event.event().is_complete()?),
        }
    }
}

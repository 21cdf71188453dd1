//! The fence that a received buffer's bytes are behind.

use std::sync::Arc;

use cuda_mem_pool::cuda_mem_core::Stream;
use cuda_mem_pool::cuda_mem_core::ipc::OpenedEvent;

use super::words::{Point, Words};
use crate::error::Result;

#[derive(Debug)]
pub(super) enum Arrival {
    Word { words: Arc<Words>, point: Point },
    Event(OpenedEvent),
}

impl Arrival {
    /// Has `stream` wait until the bytes are there.
    pub(super) fn hold_up(&self, stream: &Stream) -> Result<()> {
        match self {
            Self::Word { words, point } if words.is_reached(*point)? => Ok(()),
            Self::Word { words, point } => words.hold_up(*point, stream),
            Self::Event(event) => Ok(stream.wait(event.event())?),
        }
    }

    pub(super) fn is_reached(&self) -> Result<bool> {
        match self {
            Self::Word { words, point } => words.is_reached(*point),
            Self::Event(event) => Ok(event.event().is_complete()?),
        }
    }
}

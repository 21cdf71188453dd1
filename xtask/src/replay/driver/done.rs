//! Which freed blocks a real device is done with, for the log of `--calls`.

use std::collections::VecDeque;

use anyhow::Result;
use cuda_mem_core::{Context, Event, Stream};

use super::super::calls::{Call, CallLog};

/// Freed blocks with the points of their streams, in the order of their frees.
#[derive(Debug, Default)]
pub(super) struct Freed {
    blocks: VecDeque<(u64, Vec<Event>)>,
}

impl Freed {
    /// A block is freed that these streams have work with.
    pub(super) fn add<'s>(
        &mut self,
        id: u64,
        context: &Context,
        streams: impl Iterator<Item = &'s Stream>,
    ) -> Result<()> {
        let record = |stream: &Stream| {
            let event = Event::new(context)?;
            stream.record(&event)?;
            Ok(event)
        };
        self.blocks.push_back((id, streams.map(record).collect::<Result<_>>()?));
        Ok(())
    }

    /// Tells which are done by now, once each.
    pub(super) fn tell(&mut self, log: &CallLog) -> Result<()> {
        let mut left = VecDeque::new();
        for (id, mut events) in self.blocks.drain(..) {
            while let Some(event) = events.last()
                && event.is_complete()?
            {
                events.pop();
            }
            if events.is_empty() {
                log.note(&Call::Done { id });
            } else {
                left.push_back((id, events));
            }
        }
        self.blocks = left;
        Ok(())
    }
}

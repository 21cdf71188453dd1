//! A whole trace, checked.

use std::collections::HashMap;
use std::io::BufRead;

use super::MAX_EVENTS;
use super::error::{TraceError, TraceErrorKind};
use super::event::{Action, Event};
use super::header::Header;
use super::reader::TraceReader;

/// A whole trace whose events make sense together: no id is allocated twice, only live blocks are freed, only freed ones
/// complete, and each stays with its stream.
///
/// ```
/// use cuda_mem_pool::trace::Trace;
///
/// let trace = Trace::read("op,id,size,stream\na,0,1000,7\nf,0,,7\n".as_bytes())?;
/// assert_eq!(trace.events().len(), 2);
/// let wrong = Trace::read("op,id,size,stream\nf,7,,0\n".as_bytes()).unwrap_err();
/// assert_eq!(wrong.to_string(), "line 2: the block 7 is freed and is not live");
/// # Ok::<(), cuda_mem_pool::trace::TraceError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    header: Header,
    events: Vec<Event>,
}

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    ///
    /// [`TraceError`] with the first line that is wrong.
    pub fn read(source: impl BufRead) -> Result<Self, TraceError> {
        let mut reader = TraceReader::new(source)?;
        let mut events = Vec::new();
        let mut blocks = Blocks::default();
        while let Some(event) = reader.next() {
            let event = event?;
            let checked = match events.len() {
                MAX_EVENTS.. => Err(TraceErrorKind::TooMany),
                _ => blocks.follow(&event),
            };
            checked.map_err(|kind| TraceError::new(reader.line(), kind))?;
            events.push(event);
        }
        Ok(Self { header: reader.header().clone(), events })
    }

    /// What the first line tells of the run.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The events, in their order.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }
}

/// What has become of each block so far.
#[derive(Debug, Default)]
struct Blocks {
    by_id: HashMap<u64, (u64, State)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Live,
    Freed,
    Completed,
}

impl Blocks {
    fn follow(&mut self, event: &Event) -> Result<(), TraceErrorKind> {
        let id = event.id;
        let (before, after, refusal) = match event.action {
            Action::Allocate { .. } => {
                return match self.by_id.insert(id, (event.stream, State::Live)) {
                    None => Ok(()),
                    Some(_) => Err(TraceErrorKind::AllocatedTwice { id }),
                };
            }
            Action::Free => (State::Live, State::Freed, TraceErrorKind::NotLive { id }),
            Action::Complete => (State::Freed, State::Completed, TraceErrorKind::NotPending { id }),
        };
        let Some((allocated_on, state)) = self.by_id.get_mut(&id).filter(|(_, state)| *state == before)
        else {
            return Err(refusal);
        };
        if *allocated_on != event.stream {
            let (stream, allocated_on) = (event.stream, *allocated_on);
            return Err(TraceErrorKind::OtherStream { id, stream, allocated_on });
        }
        *state = after;
        Ok(())
    }
}

//! Writes what an allocator does as a trace, while it does it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, Write};
use std::time::Instant;

use super::{Action, Event, MAX_SIZE, write_header};
use crate::primitive::{Mutex, lock, thread_number};
use crate::snapshot;

/// Writes what an allocator does as a trace: addresses become ids, streams small numbers. Blocks that were allocated before the
/// recording began are left out.
///
/// A caller has the block from before it calls [`allocated`](Self::allocated) until after [`completed`](Self::completed).
pub(crate) struct TraceRecorder {
    began: Instant,
    state: Mutex<State>,
}

struct State {
    /// None once it is finished.
    target: Option<io::Result<Box<dyn Write + Send>>>,
    /// By address.
    live: HashMap<u64, Block>,
    /// Those that are freed and may still be used by a stream, by address.
    pending: HashMap<u64, Block>,
    /// Numbers by handle.
    streams: HashMap<u64, u64>,
    allocated: u64,
    /// The block of the last event, if that freed it.
    just_freed: Option<u64>,
}

#[derive(Clone, Copy)]
struct Block {
    id: u64,
    stream: u64,
}

impl TraceRecorder {
    /// Begins a recording. Refuses a header that fits no line.
    pub(crate) fn new(
        mut target: impl Write + Send + 'static,
        header: &BTreeMap<String, String>,
    ) -> io::Result<Self> {
        write_header(&mut target, header)?;
        let state = State {
            target: Some(Ok(Box::new(target))),
            live: HashMap::new(),
            pending: HashMap::new(),
            streams: HashMap::new(),
            allocated: 0,
            just_freed: None,
        };
        Ok(Self { began: Instant::now(), state: Mutex::new(state) })
    }

    /// A block of `size` bytes, as they were asked for, was allocated on a stream, which is known by its handle.
    pub(crate) fn allocated(&self, address: u64, size: u64, stream: u64) {
        let mut state = lock(&self.state);
        let next = state.streams.len() as u64;
        let stream = *state.streams.entry(stream).or_insert(next);
        let block = Block { id: state.allocated, stream };
        state.allocated = state.allocated.saturating_add(1);
        state.live.insert(address, block);
        state.write(self.began, Action::Allocate { size }, block);
    }

    /// The program let go of a block.
    pub(crate) fn freed(&self, address: u64) {
        let mut state = lock(&self.state);
        if let Some(block) = state.live.remove(&address) {
            state.pending.insert(address, block);
            state.write(self.began, Action::Free, block);
            state.just_freed = Some(block.id);
        }
    }

    /// A block that was freed may be used again. If nothing happened in between, it always could: the trace does not say so.
    pub(crate) fn completed(&self, address: u64) {
        let mut state = lock(&self.state);
        if let Some(block) = state.pending.remove(&address)
            && state.just_freed != Some(block.id)
        {
            state.write(self.began, Action::Complete, block);
        }
    }

    /// Ends the recording: what happens afterwards is left out. Gives the error that ended it before, if any.
    pub(crate) fn finish(&self) -> io::Result<()> {
        let target = lock(&self.state).target.take();
        target.map_or(Ok(()), |target| target?.flush())
    }
}

impl State {
    fn write(&mut self, began: Instant, action: Action, block: Block) {
        self.just_freed = None;
        let event = Event {
            action,
            id: block.id,
            stream: block.stream,
            time_us: u64::try_from(began.elapsed().as_micros()).ok(),
            thread: u64::try_from(thread_number()).ok(),
        };
        let Some(Ok(target)) = &mut self.target else { return };
        let written = match action {
            Action::Allocate { size } if size > MAX_SIZE => {
                let problem = format!("{size} bytes are more than an event may allocate, {MAX_SIZE}");
                Err(io::Error::new(io::ErrorKind::InvalidInput, problem))
            }
            _ => writeln!(target, "{event}"),
        };
        if let Err(error) = written {
            self.target = Some(Err(error));
        }
    }
}

impl TraceRecorder {
    /// As the allocator's history has it.
    pub(crate) fn track(&self, entry: &snapshot::TraceEntry) {
        match entry.action {
            snapshot::Action::Alloc => self.allocated(entry.address, entry.size, entry.stream),
            snapshot::Action::FreeRequested => self.freed(entry.address),
            snapshot::Action::FreeCompleted => self.completed(entry.address),
            _ => {}
        }
    }
}

impl fmt::Debug for TraceRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceRecorder").finish_non_exhaustive()
    }
}

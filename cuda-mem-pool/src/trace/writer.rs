//! Writes traces: events that the caller has, or what an allocator does while it does it.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::time::Instant;

use super::format::{Action, COLUMNS, Event, Header, LONGEST, MAX_SIZE, TraceErrorKind};
use crate::history::TraceTracker;
use crate::primitive::{Mutex, lock, thread_number};
use crate::snapshot;

/// Writes a trace, with all six columns. Time and thread stay empty where an event has none.
///
/// ```
/// use cuda_mem_pool::trace::{Action, Event, Header, Trace, TraceWriter};
///
/// let mut writer = TraceWriter::new(Vec::new(), &Header::default())?;
/// let event =
///     Event { action: Action::Allocate { size: 1000 }, id: 0, stream: 7, time_us: Some(12), thread: None };
/// writer.write(&event)?;
/// let text = writer.finish()?;
/// assert_eq!(Trace::read(&*text)?.events(), [event]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TraceWriter<W> {
    target: W,
}

impl<W: Write> TraceWriter<W> {
    /// Writes what stands before the events. Each event is written by itself: a file wants a
    /// [`BufWriter`](std::io::BufWriter) around it.
    ///
    /// # Errors
    ///
    /// The target's; [`io::ErrorKind::InvalidInput`] with a [`TraceErrorKind::TooLong`] for pairs that fit no line.
    pub fn new(mut target: W, header: &Header) -> io::Result<Self> {
        let pairs = header.to_string();
        if pairs.len() > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, TraceErrorKind::TooLong(LONGEST)));
        }
        writeln!(target, "{pairs}\n{}", COLUMNS.join(","))?;
        Ok(Self { target })
    }

    /// Writes an event.
    ///
    /// # Errors
    ///
    /// The target's; [`io::ErrorKind::InvalidInput`] with a [`TraceErrorKind::TooLarge`] for a size that no reader takes.
    pub fn write(&mut self, event: &Event) -> io::Result<()> {
        let Event { action, id, stream, time_us, thread } = event;
        let size = match *action {
            Action::Allocate { size } if size > MAX_SIZE => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, TraceErrorKind::TooLarge(size)));
            }
            Action::Allocate { size } => Some(size),
            Action::Free | Action::Complete => None,
        };
        let (size, time, thread) = (Cell(size), Cell(*time_us), Cell(*thread));
        writeln!(self.target, "{},{id},{size},{stream},{time},{thread}", action.letter())
    }

    /// Flushes the target and returns it.
    ///
    /// # Errors
    ///
    /// The target's.
    pub fn finish(mut self) -> io::Result<W> {
        self.target.flush()?;
        Ok(self.target)
    }
}

impl<W> fmt::Debug for TraceWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceWriter").finish_non_exhaustive()
    }
}

/// A number, or nothing.
struct Cell(Option<u64>);

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |number| write!(f, "{number}"))
    }
}

/// Writes what an allocator does as a trace: addresses become ids, streams small numbers.
///
/// It is a [`TraceTracker`]: attached to a [`History`](crate::history::History) it is told of all that happens, in order.
/// Whoever calls [`allocated`](TraceRecorder::allocated) and the others instead still has the block when it says that it is
/// freed or done, and has it already when it says that it is allocated.
///
/// Blocks that were allocated before the recording began are left out.
///
/// ```
/// use cuda_mem_pool::trace::{Action, Header, Trace, TraceRecorder};
///
/// let path = std::env::temp_dir().join(format!("recorder-{}.csv", std::process::id()));
/// let file = std::io::BufWriter::new(std::fs::File::create(&path)?);
/// let recorder = TraceRecorder::new(file, &Header::default())?;
/// recorder.allocated(0x7f00_0000_0000, 1000, 0x55d0_c8a3_b2f0);
/// recorder.freed(0x7f00_0000_0000);
/// recorder.finish()?;
///
/// let trace = Trace::read(std::io::BufReader::new(std::fs::File::open(&path)?))?;
/// assert_eq!(trace.events()[1].action, Action::Free);
/// assert_eq!((trace.events()[1].id, trace.events()[1].stream), (0, 0));
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TraceRecorder {
    began: Instant,
    state: Mutex<State>,
}

struct State {
    writer: Result<TraceWriter<Box<dyn Write + Send>>, Ended>,
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

/// Why nothing is written any more.
enum Ended {
    Finished,
    Failed(io::Error),
}

#[derive(Clone, Copy)]
struct Block {
    id: u64,
    stream: u64,
}

impl TraceRecorder {
    /// Begins a recording. Each event is written by itself: a file wants a [`BufWriter`](io::BufWriter) around it.
    ///
    /// # Errors
    ///
    /// As [`TraceWriter::new`].
    pub fn new(target: impl Write + Send + 'static, header: &Header) -> io::Result<Self> {
        let target: Box<dyn Write + Send> = Box::new(target);
        let state = State {
            writer: Ok(TraceWriter::new(target, header)?),
            live: HashMap::new(),
            pending: HashMap::new(),
            streams: HashMap::new(),
            allocated: 0,
            just_freed: None,
        };
        Ok(Self { began: Instant::now(), state: Mutex::new(state) })
    }

    /// A block of `size` bytes, as they were asked for, was allocated on a stream, which is known by its handle.
    pub fn allocated(&self, address: u64, size: u64, stream: u64) {
        let mut state = lock(&self.state);
        let next = state.streams.len() as u64;
        let stream = *state.streams.entry(stream).or_insert(next);
        let block = Block { id: state.allocated, stream };
        state.allocated = state.allocated.saturating_add(1);
        state.live.insert(address, block);
        state.write(self.began, Action::Allocate { size }, block);
    }

    /// The program let go of a block.
    pub fn freed(&self, address: u64) {
        let mut state = lock(&self.state);
        if let Some(block) = state.live.remove(&address) {
            state.pending.insert(address, block);
            state.write(self.began, Action::Free, block);
            state.just_freed = Some(block.id);
        }
    }

    /// A block that was freed may be used again. If nothing happened in between, it always could: the trace does not say so.
    pub fn completed(&self, address: u64) {
        let mut state = lock(&self.state);
        if let Some(block) = state.pending.remove(&address)
            && state.just_freed != Some(block.id)
        {
            state.write(self.began, Action::Complete, block);
        }
    }

    /// Ends the recording: what happens afterwards is left out.
    ///
    /// # Errors
    ///
    /// The target's, or the first one of it during the recording, which ended it; [`io::ErrorKind::InvalidInput`] for a block
    /// larger than [`MAX_SIZE`](super::MAX_SIZE).
    pub fn finish(&self) -> io::Result<()> {
        let writer = std::mem::replace(&mut lock(&self.state).writer, Err(Ended::Finished));
        match writer {
            Ok(writer) => writer.finish().map(drop),
            Err(Ended::Finished) => Ok(()),
            Err(Ended::Failed(error)) => Err(error),
        }
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
        if let Ok(writer) = &mut self.writer
            && let Err(error) = writer.write(&event)
        {
            self.writer = Err(Ended::Failed(error));
        }
    }
}

impl TraceTracker for TraceRecorder {
    fn track(&self, entry: &snapshot::TraceEntry) {
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

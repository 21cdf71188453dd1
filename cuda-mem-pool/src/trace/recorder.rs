//! Records a trace while it happens.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::time::Instant;

use super::event::{Action, Event};
use super::header::Header;
use super::writer::TraceWriter;
use crate::history::TraceTracker;
use crate::primitive::{Mutex, lock, thread_number};
use crate::snapshot;

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

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::history::{self, History};
    use crate::mempool_id::MempoolId;
    use crate::trace::Trace;

    /// What was written, for the test to read while the recorder has it too.
    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            lock(&self.0).write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Shared {
        /// Kind, id and stream of each event.
        fn events(&self) -> Vec<(&'static str, u64, u64)> {
            let trace = Trace::read(&**lock(&self.0)).unwrap();
            trace.events().iter().map(|event| (event.action.letter(), event.id, event.stream)).collect()
        }
    }

    fn recorder() -> (TraceRecorder, Shared) {
        let shared = Shared::default();
        (TraceRecorder::new(shared.clone(), &Header::default()).unwrap(), shared)
    }

    #[test]
    fn addresses_become_ids_and_streams_small_numbers() {
        let (recorder, written) = recorder();
        recorder.freed(0x100);
        recorder.completed(0x100);
        recorder.allocated(0x100, 1, 0xdead);
        recorder.allocated(0x200, 2, 0xbeef);
        recorder.freed(0x100);
        recorder.completed(0x100);
        recorder.allocated(0x100, 3, 0xdead);
        recorder.freed(0x200);
        recorder.freed(0x100);
        recorder.completed(0x200);
        recorder.completed(0x200);
        recorder.finish().unwrap();
        recorder.allocated(0x300, 4, 0xdead);
        let events =
            [("a", 0, 0), ("a", 1, 1), ("f", 0, 0), ("a", 2, 0), ("f", 1, 1), ("f", 2, 0), ("c", 1, 1)];
        assert_eq!(written.events(), events);
        recorder.finish().unwrap();
    }

    #[test]
    fn a_history_tells_the_recorder() {
        use snapshot::Action::{Alloc, FreeCompleted, FreeRequested, SegmentAlloc};

        let (recorder, written) = recorder();
        let history = History::new();
        history.attach(Arc::new(recorder));
        for (action, address) in [
            (SegmentAlloc, 0),
            (Alloc, 0),
            (Alloc, 512),
            (FreeRequested, 0),
            (FreeRequested, 512),
            (FreeCompleted, 0),
        ] {
            history.record(
                history::Event { action, address, size: 100, stream: 3, pool: MempoolId::NONE },
                None,
            );
        }
        assert_eq!(written.events(), [("a", 0, 0), ("a", 1, 0), ("f", 0, 0), ("f", 1, 0), ("c", 0, 0)]);
        let trace = Trace::read(&**lock(&written.0)).unwrap();
        let times: Vec<_> = trace.events().iter().map(|event| event.time_us).collect();
        assert!(times.is_sorted() && times[0].is_some());
        let thread = u64::try_from(thread_number()).unwrap();
        assert!(trace.events().iter().all(|event| event.thread == Some(thread)));
    }

    /// What threads do at the same time stands in an order that can be replayed: the reader checks that.
    #[test]
    fn threads_make_one_trace() {
        let (recorder, written) = recorder();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let recorder = &recorder;
                scope.spawn(move || {
                    for step in 0..500 {
                        let address = thread * 0x1000 + step % 7;
                        recorder.allocated(address, 8, thread);
                        recorder.freed(address);
                        recorder.completed(address);
                    }
                });
            }
        });
        recorder.finish().unwrap();
        let events = written.events();
        let count = |kind: &str| events.iter().filter(|event| event.0 == kind).count();
        assert_eq!((count("a"), count("f")), (2000, 2000));
    }

    #[test]
    fn a_failure_ends_the_recording_and_is_told() {
        struct Full;

        impl Write for Full {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                if bytes.starts_with(b"a") { Err(io::ErrorKind::StorageFull.into()) } else { Ok(bytes.len()) }
            }

            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }

        let recorder = TraceRecorder::new(Full, &Header::default()).unwrap();
        recorder.allocated(0, 1, 0);
        recorder.freed(0);
        assert_eq!(recorder.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
        let recorder = TraceRecorder::new(Vec::new(), &Header::default()).unwrap();
        recorder.allocated(0, u64::MAX, 0);
        assert_eq!(recorder.finish().unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}

//! What happened lately, as PyTorch records it: a ring of the last entries, and trackers that are told of each.

mod options;
mod tracker;

#[cfg(all(test, not(loom)))]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use cuda_mem_core::forked;
pub use options::{HistoryOptions, RecordContext, backtrace};
pub use tracker::{TraceTracker, TrackerId};

use self::tracker::Trackers;
use crate::mempool_id::MempoolId;
use crate::primitive::{Mutex, lock};
use crate::snapshot::{Action, Frames, TraceEntry};

/// The ring records.
const RECORDING: u8 = 1;
/// There are trackers.
const TRACKED: u8 = 2;
/// Blocks in use have stacks.
const STACKS: u8 = 4;

/// The history of one device.
///
/// In a forked child it does nothing and takes no lock, which a thread of the parent may have held.
///
/// A block is recorded as allocated before it is handed out, and as freed before anybody else may have it: entries are in an order
/// in which they can have happened.
///
/// ```
/// use cuda_mem_pool::MempoolId;
/// use cuda_mem_pool::history::{Event, History, HistoryOptions, RecordContext, backtrace};
/// use cuda_mem_pool::snapshot::Action;
///
/// let history = History::new();
/// let (address, pool) = (0x7f00_0000_0000, MempoolId::NONE);
/// let alloc = Event { action: Action::Alloc, address, size: 500, stream: 0, pool };
/// history.record(alloc, None); // Nobody listens.
/// let options = HistoryOptions::default().with_max_entries(2).with_frames(RecordContext::State, backtrace);
/// history.start(&options);
/// for action in [Action::Alloc, Action::FreeRequested, Action::FreeCompleted] {
///     history.record(Event { action, ..alloc }, None);
/// }
/// let actions: Vec<Action> = history.entries().iter().map(|entry| entry.action).collect();
/// assert_eq!(actions, [Action::FreeRequested, Action::FreeCompleted]);
/// ```
#[derive(Default)]
pub struct History {
    /// `RECORDING`, `TRACKED`, `STACKS`, or none: all that is read when nobody listens.
    listeners: AtomicU8,
    state: Mutex<State>,
    trackers: Trackers,
}

#[derive(Default)]
struct State {
    /// The newest entries.
    ring: VecDeque<TraceEntry>,
    options: HistoryOptions,
}

thread_local! {
    static USER_METADATA: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
    static COMPILE_CONTEXTS: RefCell<Vec<Arc<str>>> = const { RefCell::new(Vec::new()) };
    /// The thread is in what tells stacks.
    static IN_PROVIDER: Cell<bool> = const { Cell::new(false) };
}

/// Sets the text that new entries of the calling thread carry, on any device; `None` for none. PyTorch's `_set_memory_metadata`.
pub fn set_user_metadata(metadata: Option<&str>) {
    // A thread that is ending has nothing more to say.
    let _ = USER_METADATA.try_with(|current| current.replace(metadata.map(Arc::from)));
}

/// Begins a compilation in the calling thread: new entries carry its name until [`pop_compile_context`]. PyTorch's
/// `pushCompileContext`.
pub fn push_compile_context(context: &str) {
    let _ = COMPILE_CONTEXTS.try_with(|contexts| contexts.borrow_mut().push(Arc::from(context)));
}

/// Ends what [`push_compile_context`] began last in the calling thread, if anything.
pub fn pop_compile_context() {
    let _ = COMPILE_CONTEXTS.try_with(|contexts| contexts.borrow_mut().pop());
}

/// Something that happened. [`History`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub action: Action,
    /// As [`TraceEntry::address`].
    pub address: u64,
    /// As [`TraceEntry::size`].
    pub size: u64,
    /// The stream, by its handle.
    pub stream: u64,
    /// The private pool that it is of; [`MempoolId::NONE`] of the default one.
    pub pool: MempoolId,
}

impl History {
    /// A history that records nothing and has no trackers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records from now on. If it does already, the options change, and the newest entries that fit stay.
    pub fn start(&self, options: &HistoryOptions) {
        if forked() {
            return;
        }
        let mut state = lock(&self.state);
        if options.clear_history {
            state.ring.clear();
        }
        let before = std::mem::replace(&mut state.options, options.clone());
        state.drop_oldest();
        state.ring.shrink_to_fit();
        self.listeners.fetch_or(RECORDING, Ordering::Relaxed);
        drop(state);
        // With the last of it goes a closure of others.
        drop(before);
    }

    /// Records no more, and forgets all entries. Trackers stay, and so do the stacks of blocks in use, for snapshots.
    pub fn stop(&self) {
        if forked() {
            return;
        }
        let mut state = lock(&self.state);
        self.listeners.fetch_and(!RECORDING, Ordering::Relaxed);
        state.ring = VecDeque::new();
        let before = std::mem::take(&mut state.options);
        drop(state);
        drop(before);
    }

    /// Whether it records.
    #[must_use]
    pub fn is_recording(&self) -> bool {
        self.listeners.load(Ordering::Relaxed) & RECORDING != 0
    }

    /// Whether anybody wants to know of entries: if not, [`History::record`] does nothing, after one load.
    #[inline]
    #[must_use]
    pub fn is_listening(&self) -> bool {
        self.listeners.load(Ordering::Relaxed) & (RECORDING | TRACKED) != 0
    }

    /// Whether a free is of interest: to listeners, or because the block may have a stack, which goes with it.
    #[inline]
    pub(crate) fn awaits_frees(&self) -> bool {
        self.listeners.load(Ordering::Relaxed) != 0
    }

    /// Blocks in use have stacks, or have none any more.
    pub(crate) fn set_has_stacks(&self, has_stacks: bool) {
        if has_stacks {
            self.listeners.fetch_or(STACKS, Ordering::Relaxed);
        } else {
            self.listeners.fetch_and(!STACKS, Ordering::Relaxed);
        }
    }

    /// Whether entries of this level are told with their stack.
    pub(crate) fn has_context(&self, level: RecordContext) -> bool {
        lock(&self.state).options.context >= level
    }

    /// Whether the calling thread is in a tracker.
    pub(crate) fn is_telling() -> bool {
        tracker::is_telling()
    }

    /// The calling stack, if it is recorded at this level. For a block that is handed out, [`RecordContext::State`]: the block
    /// keeps it, for snapshots.
    #[inline]
    #[must_use]
    pub fn frames(&self, level: RecordContext) -> Option<Frames> {
        if !self.is_recording() || forked() {
            return None;
        }
        let provider = {
            let state = lock(&self.state);
            if state.options.context < level {
                return None;
            }
            state.options.frames.clone()
        };
        // Not under the lock: it may take long, or allocate.
        let provider = provider?;
        // What it allocates itself has no stack, for which it would be asked within itself without end. A thread at its end asks nobody.
        if IN_PROVIDER.try_with(|inside| inside.replace(true)).unwrap_or(true) {
            return None;
        }
        let frames = self.trackers.run(move || provider());
        let _ = IN_PROVIDER.try_with(|inside| inside.set(false));
        frames
    }

    /// Something happened. With listeners, waits for other threads that record, and for trackers, which are told before this
    /// returns.
    #[inline]
    pub fn record(&self, event: Event, frames: Option<&Frames>) {
        if self.is_listening() && !forked() {
            self.trackers.call_all(|| self.keep(event, frames));
        }
    }

    #[cold]
    fn keep(&self, event: Event, frames: Option<&Frames>) -> TraceEntry {
        let mut state = lock(&self.state);
        let recorded = state.options.context >= RecordContext::Alloc;
        let entry = TraceEntry {
            action: event.action,
            address: event.address,
            size: event.size,
            stream: event.stream,
            pool: event.pool,
            time_us: now_us(),
            frames: frames.filter(|_| recorded).cloned(),
            compile_context: COMPILE_CONTEXTS.try_with(|all| all.borrow().last().cloned()).ok().flatten(),
            user_metadata: USER_METADATA.try_with(|metadata| metadata.borrow().clone()).ok().flatten(),
        };
        if self.is_recording() && !state.options.skip_actions.contains(&event.action) {
            state.ring.push_back(entry.clone());
            state.drop_oldest();
        }
        entry
    }

    /// What was recorded, oldest first.
    #[must_use]
    pub fn entries(&self) -> Vec<TraceEntry> {
        if forked() { Vec::new() } else { lock(&self.state).ring.iter().cloned().collect() }
    }

    /// Tells `tracker` of every entry from now on, also while nothing is recorded and of actions that are skipped.
    pub fn attach(&self, tracker: Arc<dyn TraceTracker>) -> TrackerId {
        let id = self.trackers.attach(tracker);
        if !forked() {
            self.listeners.fetch_or(TRACKED, Ordering::Relaxed);
        }
        id
    }

    /// Tells a tracker no more. It may still be told of what other threads record right now. False if it was not attached.
    pub fn detach(&self, id: TrackerId) -> bool {
        let emptied = || {
            self.listeners.fetch_and(!TRACKED, Ordering::Relaxed);
        };
        !forked() && self.trackers.detach(id, emptied)
    }

    /// How often a tracker has panicked, or what tells stacks, which then are not recorded. The panic ends there: memory must not be lost
    /// over it.
    #[must_use]
    pub fn tracker_panics(&self) -> u64 {
        self.trackers.panics()
    }
}

fn now_us() -> u64 {
    // A clock before 1970 is set wrongly, and any time will do.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").field("recording", &self.is_recording()).finish_non_exhaustive()
    }
}

impl State {
    /// Drops the oldest entries, so that no more than the options allow stay: at least one.
    fn drop_oldest(&mut self) {
        let surplus = self.ring.len().saturating_sub(self.options.max_entries.max(1));
        self.ring.drain(..surplus);
    }
}

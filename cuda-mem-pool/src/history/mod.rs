//! What happened lately, as PyTorch records it: a ring of the last entries, and trackers that are told of each.

mod options;

#[cfg(all(test, not(loom)))]
mod tests;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use cuda_mem_core::{catch_panic, forked};
pub use options::{HistoryOptions, RecordContext, backtrace};

use crate::mempool_id::MempoolId;
use crate::primitive::{IN_PROVIDER, Inside, Mutex, TELLING, is_set, lock, unique};
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
/// A block is recorded as allocated before it is handed out, and as freed before another thread may have it: entries are in an order
/// in which they can have happened.
///
/// ```
/// use cuda_mem_pool::MempoolId;
/// use cuda_mem_pool::history::{History, HistoryOptions, RecordContext, backtrace};
/// use cuda_mem_pool::snapshot::Action;
///
/// let history = History::new();
/// let tell = |action| history.tell(action, 0x7f00_0000_0000, 500, 0, MempoolId::NONE, None);
/// tell(Action::Alloc); // not recorded: there is no listener yet
/// let options = HistoryOptions::default().with_max_entries(2).with_frames(RecordContext::State, backtrace);
/// history.start(&options);
/// let tracker = history.attach(|entry| println!("{:?} of {} bytes", entry.action, entry.size));
/// for action in [Action::Alloc, Action::FreeRequested, Action::FreeCompleted] {
///     tell(action);
/// }
/// assert!(history.detach(tracker));
/// let actions: Vec<Action> = history.entries().iter().map(|entry| entry.action).collect();
/// assert_eq!(actions, [Action::FreeRequested, Action::FreeCompleted]);
/// ```
#[derive(Default)]
pub struct History {
    /// `RECORDING`, `TRACKED`, `STACKS`, or none: all that is read when there is no listener.
    listeners: AtomicU8,
    state: Mutex<State>,
    trackers: List<dyn Fn(&TraceEntry) + Send + Sync>,
    /// Whoever has it calls them.
    turn: Mutex<()>,
}

#[derive(Default)]
struct State {
    ring: VecDeque<TraceEntry>,
    options: HistoryOptions,
}

thread_local! {
    static USER_METADATA: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
    static COMPILE_CONTEXTS: RefCell<Vec<Arc<str>>> = const { RefCell::new(Vec::new()) };
}

/// Sets the text that new entries of the calling thread carry, on any device; `None` for none. PyTorch's `_set_memory_metadata`.
pub fn set_user_metadata(metadata: Option<&str>) {
    // A thread that is ending has nothing more to say.
    let _ = USER_METADATA.try_with(|current| current.replace(metadata.map(Arc::from)));
}

/// Begins a compilation: the calling thread's new entries carry its name until [`pop_compile_context`]. PyTorch's `pushCompileContext`.
pub fn push_compile_context(context: &str) {
    let _ = COMPILE_CONTEXTS.try_with(|contexts| contexts.borrow_mut().push(Arc::from(context)));
}

/// Ends what [`push_compile_context`] began last in the calling thread, if anything.
pub fn pop_compile_context() {
    let _ = COMPILE_CONTEXTS.try_with(|contexts| contexts.borrow_mut().pop());
}

/// Something that happened, as [`TraceEntry`] has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) action: Action,
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) stream: u64,
    pub(crate) pool: MempoolId,
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

    /// Whether there are listeners, a recording or trackers: if not, [`History::tell`] does nothing, after one load.
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

    pub(crate) fn is_in_tracker() -> bool {
        is_set(&TELLING)
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
        let frames = catch_panic(move || provider());
        let _ = IN_PROVIDER.try_with(|inside| inside.set(false));
        frames
    }

    /// Something happened, for which the arguments are as in [`TraceEntry`]. With listeners, waits for other threads that record, and for
    /// trackers, which are told before this returns.
    pub fn tell(
        &self,
        action: Action,
        address: u64,
        size: u64,
        stream: u64,
        pool: MempoolId,
        frames: Option<&Frames>,
    ) {
        self.record(Event { action, address, size, stream, pool }, frames);
    }

    #[inline]
    pub(crate) fn record(&self, event: Event, frames: Option<&Frames>) {
        if self.is_listening() && !forked() {
            self.record_and_call(event, frames);
        }
    }

    /// Calls every tracker, in the order in which entries are made; none if a tracker is the caller.
    #[cold]
    fn record_and_call(&self, event: Event, frames: Option<&Frames>) {
        if Self::is_in_tracker() || self.trackers.is_empty() {
            self.keep(event, frames);
            return;
        }
        // Held until all were called.
        let turn = lock(&self.turn);
        let entry = self.keep(event, frames);
        let trackers = self.trackers.all();
        let _inside = Inside::new(&TELLING);
        for (_, tracker) in trackers.iter() {
            let _ = catch_panic(|| tracker(&entry));
        }
        drop(turn);
        // One may have been detached meanwhile, and ends here.
        let _ = catch_panic(|| drop(trackers));
    }

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

    /// Tells `tracker` of every entry from now on, also while nothing is recorded and of actions that are skipped: in the order of the
    /// entries, by the thread that did what the entry says, before that call returns.
    ///
    /// What a watcher of [backing changes](crate::caching::CachingAllocator::attach_backing_watcher) does is told after it has returned, by
    /// the next thread that records something. What a tracker itself does to the allocator is recorded, but no tracker is told of it. Other threads that record
    /// wait meanwhile, so a tracker must not wait for them, nor take the GIL, which they may have. A panic ends in it, so that no memory is lost.
    pub fn attach(&self, tracker: impl Fn(&TraceEntry) + Send + Sync + 'static) -> CallbackId {
        let id = self.trackers.add(Arc::new(tracker));
        if !forked() {
            self.listeners.fetch_or(TRACKED, Ordering::Relaxed);
        }
        id
    }

    /// Tells a tracker no more. It may still be told of what other threads record right now. False if it was not attached.
    pub fn detach(&self, id: CallbackId) -> bool {
        if forked() || !self.trackers.remove(id) {
            return false;
        }
        if self.trackers.is_empty() {
            self.listeners.fetch_and(!TRACKED, Ordering::Relaxed);
            // Another one may have come in between.
            if !self.trackers.is_empty() {
                self.listeners.fetch_or(TRACKED, Ordering::Relaxed);
            }
        }
        true
    }
}

fn now_us() -> u64 {
    // A clock before 1970 is set wrongly, and any time will do.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

crate::impl_debug!(History, |it| recording: it.is_recording());

impl State {
    /// Drops the oldest entries, so that no more than the options allow stay: at least one.
    fn drop_oldest(&mut self) {
        let surplus = self.ring.len().saturating_sub(self.options.max_entries.max(1));
        self.ring.drain(..surplus);
    }
}

/// Names a callback of an allocator or a tracker of a [`History`]; no two in a process have the same.
/// [`CachingAllocator::attach_oom_reclaimer`](crate::caching::CachingAllocator::attach_oom_reclaimer) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CallbackId(u64);

/// Callbacks of one kind, in the order in which they came.
pub(crate) struct List<F: ?Sized>(Mutex<Vec<(CallbackId, Arc<F>)>>);

impl<F: ?Sized> Default for List<F> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<F: ?Sized> List<F> {
    pub(crate) fn add(&self, callback: Arc<F>) -> CallbackId {
        let id = CallbackId(unique());
        // In a forked child nothing is ever called.
        if !forked() {
            lock(&self.0).push((id, callback));
        }
        id
    }

    pub(crate) fn remove(&self, id: CallbackId) -> bool {
        // What a callback does when it is dropped, it does without our lock.
        let removed: Vec<_> = lock(&self.0).extract_if(.., |(known, _)| *known == id).collect();
        !removed.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    pub(crate) fn all(&self) -> Vec<(CallbackId, Arc<F>)> {
        lock(&self.0).clone()
    }
}

crate::impl_debug!([F: ?Sized] List<F>, |it| callbacks: it.all().len());

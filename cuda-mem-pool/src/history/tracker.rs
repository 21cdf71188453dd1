//! Who is told of each entry.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_mem_core::{catch_panic, forked};

use crate::primitive::{Mutex, lock};
use crate::snapshot::TraceEntry;

/// Is told of each entry of a [`History`](super::History), in the order of the entries, by the thread that did what the entry
/// says, before that call returns.
///
/// What a watcher of [backing changes](crate::caching::CachingAllocator::attach_backing_watcher) does is told after it has returned, by
/// whoever tells next. What a tracker itself does to the allocator is recorded, but no tracker is told of it. Other threads that record
/// wait meanwhile, so a tracker must not wait for them; and it must not take the GIL, which they may have.
///
/// ```
/// use std::sync::{Arc, Mutex};
///
/// use cuda_mem_pool::MempoolId;
/// use cuda_mem_pool::history::{Event, History, TraceTracker};
/// use cuda_mem_pool::snapshot::{Action, TraceEntry};
///
/// #[derive(Default)]
/// struct Sizes(Mutex<Vec<u64>>);
///
/// impl TraceTracker for Sizes {
///     fn track(&self, entry: &TraceEntry) {
///         self.0.lock().unwrap().push(entry.size);
///     }
/// }
///
/// let (history, sizes) = (History::new(), Arc::new(Sizes::default()));
/// let id = history.attach(sizes.clone());
/// history.record(Event { action: Action::SegmentMap, address: 0, size: 2 << 20, stream: 0, pool: MempoolId::NONE }, None);
/// assert!(history.detach(id));
/// assert_eq!(*sizes.0.lock().unwrap(), [2 << 20]);
/// ```
pub trait TraceTracker: Send + Sync {
    /// Something happened.
    fn track(&self, entry: &TraceEntry);
}

/// Names a tracker of a [`History`](super::History). [`TraceTracker`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TrackerId(u64);

type List = Vec<(TrackerId, Arc<dyn TraceTracker>)>;

#[derive(Default)]
pub(super) struct Trackers {
    /// Whoever has it calls them.
    turn: Mutex<()>,
    list: Mutex<Arc<List>>,
    attached: AtomicU64,
    panics: AtomicU64,
}

thread_local! {
    /// The thread is in a tracker.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is in a tracker.
pub(super) fn is_telling() -> bool {
    // A thread at its end is in none.
    INSIDE.try_with(Cell::get).unwrap_or(false)
}

impl Trackers {
    /// Calls every tracker with what `entry` makes, in the order in which entries are made. None if a tracker is the caller.
    pub(super) fn call_all(&self, entry: impl FnOnce() -> TraceEntry) {
        if INSIDE.get() || lock(&self.list).is_empty() {
            entry();
            return;
        }
        // Held until all were called.
        let _turn = lock(&self.turn);
        let entry = entry();
        let list = Arc::clone(&lock(&self.list));
        INSIDE.set(true);
        for (_, tracker) in list.iter() {
            self.run(|| tracker.track(&entry));
        }
        // One may have been detached meanwhile, and ends here.
        self.run(|| drop(list));
        INSIDE.set(false);
    }

    pub(super) fn attach(&self, tracker: Arc<dyn TraceTracker>) -> TrackerId {
        let id = TrackerId(self.attached.fetch_add(1, Ordering::Relaxed));
        if forked() {
            // Nobody is ever told there.
            return id;
        }
        let mut list = lock(&self.list);
        *list = Arc::new(list.iter().cloned().chain([(id, tracker)]).collect());
        id
    }

    /// `emptied` is called if there is none any more, before another can be attached.
    pub(super) fn detach(&self, id: TrackerId, emptied: impl FnOnce()) -> bool {
        let mut list = lock(&self.list);
        let (gone, left): (List, List) = list.iter().cloned().partition(|(known, _)| *known == id);
        if left.is_empty() {
            emptied();
        }
        let before = std::mem::replace(&mut *list, Arc::new(left));
        drop(list);
        // What a tracker does when it is dropped, it does without our lock.
        drop(before);
        !gone.is_empty()
    }

    /// Runs what is the program's. None if it panicked, which is counted.
    pub(super) fn run<R>(&self, body: impl FnOnce() -> R) -> Option<R> {
        let result = catch_panic(body);
        if result.is_none() {
            self.panics.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    pub(super) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }
}

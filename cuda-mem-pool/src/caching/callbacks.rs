//! What the program asked to be called for.

use std::cell::Cell;
use std::sync::Arc;

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{catch_panic, forked};

use crate::error::{Error, OutOfMemoryReport, Result};
pub use crate::history::CallbackId;
pub(super) use crate::history::List;

/// Free memory is about to leave addresses: afterwards there is none, or other memory. Memory that blocks are in, and what is
/// [pinned](super::CachingAllocator::pin), never leaves.
///
/// [`CachingAllocator::attach_oom_reclaimer`](super::CachingAllocator::attach_oom_reclaimer) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackingChange {
    /// The [`Segment`](super::Segment) whose memory it is.
    pub segment: u64,
    /// The first address.
    pub address: CUdeviceptr,
    /// How many.
    pub bytes: usize,
}

pub(super) type Reclaimer = dyn Fn(usize) -> bool + Send + Sync;
pub(super) type Observer = dyn Fn(&OutOfMemoryReport) + Send + Sync;
pub(super) type Watcher = dyn Fn(&BackingChange) + Send + Sync;

#[derive(Debug, Default)]
pub(super) struct Callbacks {
    pub(super) reclaimers: List<Reclaimer>,
    pub(super) observers: List<Observer>,
    /// The backend has them too: it is told of changes.
    pub(super) watchers: Arc<List<Watcher>>,
}

thread_local! {
    /// The thread is in a reclaimer or an observer.
    static OUT_OF_MEMORY: Cell<bool> = const { Cell::new(false) };
    /// The thread is in a watcher, and has the page source and a heap.
    static WATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Sets a flag of the thread until it is dropped, also when a panic passes.
struct Inside {
    flag: &'static std::thread::LocalKey<Cell<bool>>,
    before: bool,
}

impl Inside {
    fn new(flag: &'static std::thread::LocalKey<Cell<bool>>) -> Self {
        let before = flag.try_with(|flag| flag.replace(true)).unwrap_or(false);
        Self { flag, before }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // A thread at its end has no flag.
        let _ = self.flag.try_with(|flag| flag.set(self.before));
    }
}

fn is_set(flag: &'static std::thread::LocalKey<Cell<bool>>) -> bool {
    flag.try_with(Cell::get).unwrap_or(false)
}

/// Refuses calls in a forked child, where all is the parent's. To be asked before a lock, which a thread of the parent may have held: that
/// one does not run there.
pub(super) fn refuse_forked() -> Result<()> {
    if forked() { Err(cuda_mem_core::Error::Forked.into()) } else { Ok(()) }
}

/// Refuses what would wait for locks that the calling thread has, because it is in a watcher, and what [`refuse_forked`] does.
pub(super) fn refuse_watchers() -> Result<()> {
    refuse_forked()?;
    if is_watching() { Err(Error::InCallback) } else { Ok(()) }
}

/// Whether the calling thread is in a watcher.
pub(super) fn is_watching() -> bool {
    is_set(&WATCHING)
}

impl List<Watcher> {
    /// Tells everybody, with the page source's lock held, which a panic must not leave behind.
    pub(super) fn tell(&self, change: &BackingChange) {
        let _inside = Inside::new(&WATCHING);
        let watchers = self.all();
        for (_, watcher) in watchers.iter() {
            let _ = catch_panic(|| watcher(change));
        }
    }
}

impl Callbacks {
    pub(super) fn remove(&self, id: CallbackId) -> bool {
        !forked() && (self.reclaimers.remove(id) || self.observers.remove(id) || self.watchers.remove(id))
    }

    /// Has everybody free what they can; whether anybody did. Not when one of them asks.
    pub(super) fn reclaim(&self, requested: usize) -> bool {
        if is_set(&OUT_OF_MEMORY) {
            return false;
        }
        let _inside = Inside::new(&OUT_OF_MEMORY);
        self.reclaimers.all().iter().fold(false, |freed, (_, reclaimer)| reclaimer(requested) || freed)
    }

    /// Tells everybody of a request that failed. Not when one of them made it.
    pub(super) fn observe(&self, report: &OutOfMemoryReport) {
        if is_set(&OUT_OF_MEMORY) {
            return;
        }
        let _inside = Inside::new(&OUT_OF_MEMORY);
        self.observers.all().iter().for_each(|(_, observer)| observer(report));
    }
}

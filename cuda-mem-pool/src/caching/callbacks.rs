//! The program's callbacks, and the calls of the driver that it observes.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cuda_mem_core::{StreamId, catch_panic, forked};

use super::sleep::BackingEvent;
use crate::engine::paged::Segment;
use crate::error::{Error, OutOfMemoryReport, Result, refuse_forked};
pub use crate::history::CallbackId;
pub(super) use crate::history::List;
use crate::primitive::{AtomicU64, Inside, Ordering, WATCHING, is_set};

pub(super) type Reclaimer = dyn Fn(usize) -> bool + Send + Sync;
pub(super) type Observer = dyn Fn(&OutOfMemoryReport) + Send + Sync;
pub(super) type Watcher = dyn Fn(&Segment) + Send + Sync;
pub(super) type Registrant = dyn Fn(&BackingEvent<'_>) -> Result<(), String> + Send + Sync;

#[derive(Debug, Default)]
pub(super) struct Callbacks {
    pub(super) reclaimers: List<Reclaimer>,
    pub(super) observers: List<Observer>,
    /// Shared with the backend, which calls them before memory leaves.
    pub(super) watchers: Arc<List<Watcher>>,
    pub(super) registrants: List<Registrant>,
}

thread_local! {
    /// The thread is in a reclaimer or an observer.
    static OUT_OF_MEMORY: Cell<bool> = const { Cell::new(false) };
}

/// Refuses calls from a watcher, whose thread has locks that they would wait for; and as [`refuse_forked`].
pub(super) fn refuse_watchers() -> Result<()> {
    refuse_forked()?;
    if is_watching() { Err(Error::InCallback) } else { Ok(()) }
}

pub(super) fn is_watching() -> bool {
    is_set(&WATCHING)
}

impl List<Watcher> {
    /// Calls all watchers. The page source's lock is held, so a panic ends here.
    pub(super) fn tell(&self, segment: &Segment) {
        let _inside = Inside::new(&WATCHING);
        let watchers = self.all();
        for (_, watcher) in watchers.iter() {
            let _ = catch_panic(|| watcher(segment));
        }
        // One may have been detached meanwhile, and ends here.
        let _ = catch_panic(|| drop(watchers));
    }
}

impl Callbacks {
    pub(super) fn remove(&self, id: CallbackId) -> bool {
        let Self { reclaimers, observers, watchers, registrants } = self;
        let is_gone = || reclaimers.remove(id) || observers.remove(id) || watchers.remove(id);
        !forked() && (is_gone() || registrants.remove(id))
    }

    /// Calls all reclaimers; whether any has freed memory. Does nothing within a reclaimer or an observer.
    pub(super) fn reclaim(&self, requested: usize) -> bool {
        if is_set(&OUT_OF_MEMORY) {
            return false;
        }
        let _inside = Inside::new(&OUT_OF_MEMORY);
        self.reclaimers.all().iter().fold(false, |freed, (_, reclaimer)| reclaimer(requested) || freed)
    }

    /// Calls all observers for a request that failed. Does nothing within a reclaimer or an observer.
    pub(super) fn observe(&self, report: &OutOfMemoryReport) {
        if is_set(&OUT_OF_MEMORY) {
            return;
        }
        let _inside = Inside::new(&OUT_OF_MEMORY);
        self.observers.all().iter().for_each(|(_, observer)| observer(report));
    }
}

/// A call of the driver that an allocator made, with its arguments: addresses, handles of memory and events, sizes in bytes.
/// [`CallObserver`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are the call's arguments")]
pub enum DriverCall {
    /// `cuMemAddressReserve`.
    Reserve { address: u64, bytes: u64 },
    /// `cuMemCreate`; no memory if there was not enough.
    Create { memory: Option<u64>, bytes: u64 },
    /// `cuMemMap` of a whole handle.
    Map { address: u64, memory: u64, bytes: u64 },
    /// `cuMemSetAccess` over a mapping, or several one behind the other.
    SetAccess { address: u64, bytes: u64 },
    /// `cuMemUnmap` of a whole mapping, or of several one behind the other.
    Unmap { address: u64, bytes: u64 },
    /// `cuMemRelease`.
    Release { memory: u64, bytes: u64 },
    /// `cuEventRecord`; no event if the allocator did not make it.
    Record { stream: StreamId, event: Option<u64> },
    /// `cuEventQuery`.
    Query,
    /// `cuStreamWaitEvent`: a stream waits for another; no event if that was recorded just before.
    StreamWait { stream: StreamId, of: StreamId, event: Option<u64> },
}

/// Hears of the driver's calls for memory and mappings of the default pool and for order, right after they succeeded.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use std::time::Duration;
///
/// use cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::MemoryResource;
/// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions, CallObserver, DriverCall};
///
/// #[derive(Default)]
/// struct Created(AtomicU64);
///
/// impl CallObserver for Created {
///     fn called(&self, call: &DriverCall, _took: Duration) {
///         if let DriverCall::Create { memory: Some(_), bytes } = call {
///             self.0.fetch_add(*bytes, Ordering::Relaxed);
///         }
///     }
/// }
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let created = Arc::new(Created::default());
/// let allocator = CachingAllocator::observed(&context, &CachingOptions::default(), created.clone())?;
/// drop(allocator.allocate(100_000_000, &Stream::new(&context)?)?);
/// assert_eq!(created.0.load(Ordering::Relaxed), allocator.reserved_bytes() as u64);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
pub trait CallObserver: Send + Sync {
    /// A call was made, which took so long. The allocator's locks are held: it must not be called from here. A panic goes no further.
    fn called(&self, call: &DriverCall, took: Duration);
}

/// The observer, if there is one, and the number of calls. Without an observer no clock is read.
#[derive(Clone, Default)]
pub(super) struct CallWatch {
    pub(super) observer: Option<Arc<dyn CallObserver>>,
    pub(super) calls: Arc<AtomicU64>,
}

impl CallWatch {
    /// Makes and counts a call; one that fails is not told.
    pub(super) fn watch<R, E>(
        &self,
        call: impl FnOnce() -> Result<R, E>,
        told: impl FnOnce(&R) -> DriverCall,
    ) -> Result<R, E> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.watch_all(call, |result| vec![told(result)])
    }

    /// Does what makes several calls, which share its time.
    pub(super) fn watch_all<R, E>(
        &self,
        calls: impl FnOnce() -> Result<R, E>,
        told: impl FnOnce(&R) -> Vec<DriverCall>,
    ) -> Result<R, E> {
        let Some(observer) = &self.observer else { return calls() };
        let started = Instant::now();
        let result = calls()?;
        let took = started.elapsed();
        let told = told(&result);
        let each = took / u32::try_from(told.len()).unwrap_or(u32::MAX).max(1);
        for call in &told {
            // The books are yet to be told of what the driver has done.
            let _ = catch_panic(|| observer.called(call, each));
        }
        Ok(result)
    }
}

crate::impl_debug!(CallWatch, |it| is_observed: it.observer.is_some());

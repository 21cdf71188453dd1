//! What the allocator tells of itself, and whom it calls.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Arc;

use cuda_mem_core::{StreamId, forked};

use super::callbacks::{BackingChange, CallbackId, refuse_forked};
use super::sleep::BackingEvent;
use super::{CachingAllocator, OutOfMemoryReport};
use crate::error::Result;
use crate::history::History;
use crate::snapshot::{SegmentInfo, Snapshot};
use crate::statistics::{DeviceStatistics, PoolSize};
use crate::trace::TraceRecorder;

/// What a stream has of the default pool for blocks of one size class.
/// [`CachingAllocator::stream_segment_sizes`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamSegmentSize {
    /// The stream; or the last one, if that has ended.
    pub stream: StreamId,
    /// Its handle, as it is or was; the default streams of all threads have the same.
    pub handle: u64,
    /// The blocks that are cut from it: small for pages that are cut up.
    pub pool: PoolSize,
    /// The bytes that are mapped, in use or free.
    pub mapped: u64,
}

/// Statistics, history, snapshots and callbacks. Makes no driver call.
///
/// ```
/// use cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
/// use cuda_mem_pool::history::HistoryOptions;
/// use cuda_mem_pool::MemoryResource;
/// use cuda_mem_pool::snapshot::Action;
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
/// allocator.history().start(&HistoryOptions::default());
/// let block = allocator.allocate(1000, &stream)?;
/// let actions: Vec<Action> = allocator.history().entries().iter().map(|entry| entry.action).collect();
/// assert_eq!(actions, [Action::SegmentMap, Action::Alloc]);
/// let snapshot = allocator.snapshot();
/// assert_eq!(snapshot.segments[0].requested_size, 1000);
/// let sizes = allocator.stream_segment_sizes()?;
/// assert_eq!((sizes[0].stream, sizes[0].mapped), (stream.id(), snapshot.segments[0].total_size));
/// snapshot.write_pickle(std::io::sink())?; // a file, for PyTorch's viewers and `cargo xtask report`
/// # drop(block);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl CachingAllocator {
    /// Reads the statistics, with PyTorch's keys. Those of blocks are of one moment, and those of memory are.
    ///
    /// Memory of the default pool serves blocks of all sizes: its `segment`, which are the driver's handles, count as large, and
    /// `reserved_bytes` of small blocks are their pages. Segments of private pools count under their own kind. `inactive_split` and its
    /// bytes, free blocks beside others, are those of private pools alone, as with PyTorch's expandable segments; so is `oversize_segments`.
    /// They, `oversize_allocations` and the memory of small blocks are counted when they are asked for: their peaks are the most that any
    /// call of this has told.
    #[must_use]
    pub fn statistics(&self) -> DeviceStatistics {
        if forked() { DeviceStatistics::default() } else { self.shared().statistics() }
    }

    /// Has the peaks start anew from what there is now.
    pub fn reset_peak_statistics(&self) {
        if !forked() {
            self.shared().reset_peak_statistics();
        }
    }

    /// Has the sums and counts start anew from nothing.
    pub fn reset_accumulated_statistics(&self) {
        if !forked() {
            self.shared().reset_accumulated_statistics();
        }
    }

    /// The largest free block of all pools and streams, in bytes: what some request would get without the driver.
    ///
    /// # Errors
    ///
    /// [`Error::InCallback`](crate::Error::InCallback); `Forked` in [`Error::Core`](crate::Error::Core).
    pub fn largest_free_block(&self) -> Result<usize> {
        self.shared().largest_free_block()
    }

    /// The mapped bytes of the default pool, by stream and size class; PyTorch's expandable segments. Streams without memory are
    /// left out.
    ///
    /// # Errors
    ///
    /// As [`CachingAllocator::largest_free_block`].
    pub fn stream_segment_sizes(&self) -> Result<Vec<StreamSegmentSize>> {
        self.shared().stream_segment_sizes()
    }

    /// What happened lately, once it is recorded: blocks that come and go, requests that fail, and addresses that get and lose
    /// memory. What moves is unmapped where it was and mapped where it is, also where the driver keeps the old mapping for
    /// later: at any point of the history what is mapped is what is held.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.shared().record.history
    }

    /// Takes a snapshot of all memory and all blocks, and the history, in PyTorch's schema. A range of addresses with memory is one
    /// expandable segment; one that is cut up into pages alone is of small blocks. Segments of private pools have their pool's id, also those
    /// of released pools that are still here.
    ///
    /// No memory comes, goes or moves meanwhile, and the blocks of each stream, and of private pools, are those of one moment. Blocks that
    /// other threads take or free at this very time may be in the history and not yet in the segments, or the other way round.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        if forked() { Snapshot::default() } else { self.shared().snapshot() }
    }

    /// All memory and all blocks, as [`CachingAllocator::snapshot`] has them, but without stacks and without the history, in which this
    /// leaves nothing. For who asks again and again.
    ///
    /// ```
    /// use cuda_mem_core::{Driver, Stream};
    /// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
    /// use cuda_mem_pool::MemoryResource;
    ///
    /// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
    /// let context = driver.device(0)?.primary_context()?;
    /// let stream = Stream::new(&context)?;
    /// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
    /// let block = allocator.allocate(1000, &stream)?;
    /// let live: u64 = allocator.segments().iter().map(|segment| segment.allocated_size).sum();
    /// assert_eq!(live, allocator.statistics().allocated_bytes.all.current);
    /// # drop(block);
    /// # Ok::<(), cuda_mem_pool::Error>(())
    /// ```
    #[must_use]
    pub fn segments(&self) -> Vec<SegmentInfo> {
        if forked() { Vec::new() } else { self.shared().segments() }
    }

    /// Writes a trace of all blocks that are allocated from now on, with the time and the thread of each event, until the
    /// recording is finished or dropped. Each event is written by itself: a file wants a `BufWriter` around it.
    ///
    /// # Errors
    ///
    /// The target's; [`io::ErrorKind::InvalidInput`] for a header that fits no line.
    pub fn record_trace(
        &self,
        target: impl Write + Send + 'static,
        header: &BTreeMap<String, String>,
    ) -> io::Result<TraceRecording> {
        refuse_forked().map_err(io::Error::other)?;
        let recorder = Arc::new(TraceRecorder::new(target, header)?);
        let tracking = Arc::clone(&recorder);
        let tracker = self.history().attach(move |entry| tracking.track(entry));
        Ok(TraceRecording { allocator: self.clone(), recorder, tracker })
    }

    /// Has `reclaimer` be called when there is no memory for a request, of the default pool or a private one, after all that the
    /// allocator can do by itself. It gets the bytes that were asked for, frees what it can, in whichever allocator, and says
    /// whether it did; then everything is tried once more.
    ///
    /// Called by the thread that allocates, with no lock held: it may use this allocator. A request of its own that fails does
    /// not call it again. A panic of it is the request's. A handle of this allocator in it keeps that alive until
    /// [`CachingAllocator::detach`].
    ///
    /// ```
    /// use std::sync::Mutex;
    ///
    /// use cuda_mem_core::{Driver, Stream};
    /// use cuda_mem_pool::MemoryResource;
    /// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
    ///
    /// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
    /// let context = driver.device(0)?.primary_context()?;
    /// let stream = Stream::new(&context)?;
    /// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
    /// let most = driver.device(0)?.total_memory()? / 4 * 3;
    /// let cache = Mutex::new(Some(allocator.allocate(most, &stream)?));
    /// let reclaimer =
    ///     allocator.attach_oom_reclaimer(move |_| cache.lock().is_ok_and(|mut cache| cache.take().is_some()));
    /// let watcher = allocator.attach_backing_watcher(|change| println!("{change:?}"));
    /// drop(allocator.allocate(most, &stream)?);
    /// assert!(allocator.detach(reclaimer) && allocator.detach(watcher));
    /// # Ok::<(), cuda_mem_pool::Error>(())
    /// ```
    pub fn attach_oom_reclaimer(
        &self,
        reclaimer: impl Fn(usize) -> bool + Send + Sync + 'static,
    ) -> CallbackId {
        self.shared().callbacks.reclaimers.add(Arc::new(reclaimer))
    }

    /// Has `observer` be told of each request that fails for lack of memory, before its caller is.
    ///
    /// Called as what [`CachingAllocator::attach_oom_reclaimer`] attaches.
    pub fn attach_oom_observer(
        &self,
        observer: impl Fn(&OutOfMemoryReport) + Send + Sync + 'static,
    ) -> CallbackId {
        self.shared().callbacks.observers.add(Arc::new(observer))
    }

    /// Has `watcher` be called before memory leaves addresses, by the thread that moves it or gives it back. It may happen that
    /// it does not leave after all, because a driver call fails.
    ///
    /// The allocator's page source is locked meanwhile. The watcher may hand out and free what is cached, and ask for sizes, statistics and a
    /// snapshot. What needs the page source, such as to grow, to pin or to empty the cache, is
    /// [`Error::InCallback`](crate::Error::InCallback), in this allocator and in others. The history is told of it once the watcher has
    /// returned. The watcher must not wait for threads that allocate. A panic ends in the watcher, and the change goes on. A handle of this
    /// allocator in the watcher keeps it alive until [`CachingAllocator::detach`].
    pub fn attach_backing_watcher(
        &self,
        watcher: impl Fn(&BackingChange) + Send + Sync + 'static,
    ) -> CallbackId {
        self.shared().callbacks.watchers.add(Arc::new(watcher))
    }

    /// Has `registrant` be told before memory of a tag leaves its addresses, and after memory has come to them: who registered it
    /// elsewhere ends that, and begins it anew. All are told one after the other, in the order in which they came, by the thread that
    /// puts the tag to sleep or wakes it, which has no lock. What a registrant fails with is in [`Slept::told`](super::Slept::told) and stops nothing, and neither
    /// does a panic. [`CachingAllocator::detach`] ends it.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    /// use std::sync::Arc;
    ///
    /// use cuda_mem_core::{Driver, Stream};
    /// use cuda_mem_pool::caching::{Backup, CachingAllocator, CachingOptions, Restore, Tag};
    ///
    /// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
    /// let context = driver.device(0)?.primary_context()?;
    /// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
    /// let told = Arc::new(AtomicUsize::new(0));
    /// let count = Arc::clone(&told);
    /// allocator.on_backing_change(move |event| {
    ///     count.fetch_add(if event.is_leaving { 1 } else { 10 }, Ordering::Relaxed);
    ///     Ok(())
    /// });
    /// let tag = allocator.tag("cache")?;
    /// let scope = tag.enter()?;
    /// allocator.allocate_by_address(1 << 20, &Stream::new(&context)?)?;
    /// drop(scope);
    /// // SAFETY: nothing uses the block.
    /// unsafe { Tag::sleep(&[&tag], Backup::Discard) }?;
    /// Tag::wake(&[&tag], Restore::Filled(0))?;
    /// assert_eq!(told.load(Ordering::Relaxed), 11);
    /// # Ok::<(), cuda_mem_pool::Error>(())
    /// ```
    pub fn on_backing_change(
        &self,
        registrant: impl Fn(&BackingEvent<'_>) -> Result<(), String> + Send + Sync + 'static,
    ) -> CallbackId {
        self.shared().tags.registrants.add(Arc::new(registrant))
    }

    /// Calls a callback no more, of whichever kind; false if it is not one of this allocator. Another thread may be in it yet.
    pub fn detach(&self, id: CallbackId) -> bool {
        let shared = self.shared();
        shared.callbacks.remove(id) || (!forked() && shared.tags.detach(id))
    }
}

/// A trace that is being recorded by [`CachingAllocator::record_trace`]. Dropped, it ends, and what its target refused stays
/// untold.
///
/// ```
/// use cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
/// use cuda_mem_pool::MemoryResource;
/// use cuda_mem_pool::trace::Trace;
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
/// let path = std::env::temp_dir().join(format!("recording-{}.csv", std::process::id()));
/// let file = std::io::BufWriter::new(std::fs::File::create(&path)?);
/// let recording = allocator.record_trace(file, &Default::default())?;
/// drop(allocator.allocate(1000, &stream)?);
/// recording.finish()?;
/// let trace = Trace::read(std::io::BufReader::new(std::fs::File::open(&path)?))?;
/// assert_eq!(trace.events.len(), 2);
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a recording ends when it is dropped"]
pub struct TraceRecording {
    allocator: CachingAllocator,
    recorder: Arc<TraceRecorder>,
    tracker: CallbackId,
}

impl TraceRecording {
    /// Ends the recording.
    ///
    /// # Errors
    ///
    /// The target's, or the first one of it during the recording, which ended it; [`io::ErrorKind::InvalidInput`] for a block
    /// larger than [`MAX_SIZE`](crate::trace::MAX_SIZE).
    pub fn finish(self) -> io::Result<()> {
        refuse_forked().map_err(io::Error::other)?;
        self.allocator.history().detach(self.tracker);
        self.recorder.finish()
    }
}

impl Drop for TraceRecording {
    fn drop(&mut self) {
        if forked() {
            // The parent goes on with it.
            return;
        }
        self.allocator.history().detach(self.tracker);
        // Told by `finish` to those who ask.
        let _ = self.recorder.finish();
    }
}

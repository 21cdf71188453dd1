//! What the allocator tells of itself.

use std::io::{self, Write};
use std::sync::Arc;

use cuda_mem_core::forked;

use super::CachingAllocator;
use super::shared::refuse_forked;
use crate::history::{History, TrackerId};
use crate::snapshot::Snapshot;
use crate::statistics::DeviceStatistics;
use crate::trace::{Header, TraceRecorder};

impl CachingAllocator {
    /// The statistics, with PyTorch's keys. Those of blocks are of one moment, and those of memory are.
    ///
    /// Memory of the default pool serves blocks of all sizes: its `segment`, which are the driver's handles, count under the pool of the
    /// block that needed them, and `reserved_bytes` of small blocks are their pages and what was made for those as long as nothing else is
    /// in it. Segments of private pools count under their own kind. `inactive_split` and its bytes, free blocks beside others, are those of private pools alone, as with
    /// PyTorch's expandable segments; so is `oversize_segments`. They, `oversize_allocations` and the memory of small blocks are counted
    /// when they are asked for, so their peaks are the most that any call of this has told, and what small blocks have is in the peak of large ones too.
    ///
    /// Makes no driver call, and takes each stream's heap for a moment.
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

    /// What happened lately, once it is recorded: blocks that come and go, requests that fail, and addresses that get and lose
    /// memory. What moves is unmapped where it was and mapped where it is, also where the driver keeps the old mapping for
    /// later: at any point of the history what is mapped is what is held.
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
    /// drop(allocator.allocate(4_000_000, &stream)?);
    /// let actions: Vec<Action> = allocator.history().entries().iter().map(|entry| entry.action).collect();
    /// assert_eq!(actions[0], Action::SegmentMap);
    /// assert!(actions.ends_with(&[Action::Alloc, Action::FreeRequested, Action::FreeCompleted]));
    /// # Ok::<(), cuda_mem_pool::Error>(())
    /// ```
    #[must_use]
    pub fn history(&self) -> &History {
        &self.shared().history
    }

    /// All memory and all blocks, and the history, in PyTorch's schema. A range of addresses with memory is one expandable
    /// segment; one that is cut up into pages alone is of small blocks. Segments of private pools have their pool's id, also those
    /// of released pools that are still here.
    ///
    /// No memory comes, goes or moves meanwhile, and each stream's blocks are those of one moment. Blocks that other threads
    /// take or free at this very time may be in the history and not yet in the segments, or the other way round. The private
    /// pools' blocks are of one moment too. Makes no driver call.
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
    /// let snapshot = allocator.snapshot();
    /// assert_eq!(snapshot.segments[0].requested_size, 1000);
    /// snapshot.write_pickle(std::io::sink())?; // a file, for PyTorch's viewers and `cargo xtask report`
    /// # drop(block);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        if forked() { Snapshot::default() } else { self.shared().snapshot() }
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
        header: &Header,
    ) -> io::Result<TraceRecording> {
        refuse_forked().map_err(io::Error::other)?;
        let recorder = Arc::new(TraceRecorder::new(target, header)?);
        let tracker = self.history().attach(recorder.clone());
        Ok(TraceRecording { allocator: self.clone(), recorder, tracker })
    }
}

/// A trace that is being recorded by [`CachingAllocator::record_trace`]. Dropped, it ends, and what its target refused stays
/// untold.
///
/// ```
/// use cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
/// use cuda_mem_pool::MemoryResource;
/// use cuda_mem_pool::trace::{Header, Trace};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
/// let path = std::env::temp_dir().join(format!("recording-{}.csv", std::process::id()));
/// let file = std::io::BufWriter::new(std::fs::File::create(&path)?);
/// let recording = allocator.record_trace(file, &Header::default())?;
/// drop(allocator.allocate(1000, &stream)?);
/// recording.finish()?;
/// let trace = Trace::read(std::io::BufReader::new(std::fs::File::open(&path)?))?;
/// assert_eq!(trace.events().len(), 2);
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "a recording ends when it is dropped"]
pub struct TraceRecording {
    allocator: CachingAllocator,
    recorder: Arc<TraceRecorder>,
    tracker: TrackerId,
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

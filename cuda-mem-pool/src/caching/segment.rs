//! The pieces of memory that blocks lie in, for those who share or register them.

use cuda_mem_core::sys::CUdeviceptr;

use super::allocator::CachingAllocator;
use super::callbacks::CallbackId;
use super::shared::Shared;
use crate::engine::paged::Backing;
use crate::error::{Error, Result};

/// One handle of physical memory, where it is mapped. Blocks lie in segments without regard to their ends: a block may have
/// parts of several, and a segment parts of several blocks.
///
/// ```
/// use cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::MemoryResource;
/// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
/// let block = allocator.allocate(10 << 20, &stream)?;
/// let segment = allocator.segment(block.address())?;
/// assert!(segment.address <= block.address() && segment.pins == 0);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Segment {
    /// Its name in its allocator, which no other segment ever has.
    pub id: u64,
    /// The number of the last change behind its addresses; see [`CachingAllocator::generation`].
    pub generation: u64,
    /// Its first address.
    pub address: CUdeviceptr,
    /// Its size.
    pub bytes: usize,
    /// What it is doing.
    pub state: SegmentState,
    /// How often it is pinned.
    pub pins: u32,
}

/// What a [`Segment`] is doing. [`Segment`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SegmentState {
    /// It has memory, which its devices reach.
    Mapped,
}

/// Free memory is about to leave addresses: afterwards there is none, or other memory. Memory that blocks are in, and what is
/// [pinned](CachingAllocator::pin), never leaves.
///
/// [`CachingAllocator::attach_backing_watcher`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackingChange {
    /// The [`Segment`] whose memory it is.
    pub segment: u64,
    /// The first address.
    pub address: CUdeviceptr,
    /// How many.
    pub bytes: usize,
}

impl CachingAllocator {
    /// The segment that an address lies in.
    ///
    /// # Capture
    ///
    /// May be called while streams capture: it is no driver call.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAddress`] if there is no memory of this allocator; [`Error::InCallback`].
    pub fn segment(&self, address: CUdeviceptr) -> Result<Segment> {
        self.shared().backing(address).map(Segment::from)
    }

    /// The number of the last change of what is behind a range of addresses. Whoever registered the range compares: as long as
    /// the number is the same, so is the memory. It may change without that, too.
    ///
    /// # Capture
    ///
    /// May be called while streams capture: it is no driver call.
    ///
    /// # Errors
    ///
    /// As [`CachingAllocator::segment`], for the first address without memory.
    pub fn generation(&self, address: CUdeviceptr, bytes: usize) -> Result<u64> {
        let segments = self.shared().backings(address, bytes)?;
        Ok(segments.iter().map(|segment| segment.generation).max().unwrap_or(0))
    }

    /// Has `watcher` be called before memory leaves addresses, by the thread that moves it or gives it back. It may happen that
    /// it does not leave after all, because a driver call fails.
    ///
    /// The allocator's page source is locked meanwhile. The watcher may hand out and free what is cached, and ask for sizes, statistics and a
    /// snapshot. What needs the page source, such as to grow, to pin or to empty the cache, is [`Error::InCallback`], in this allocator and in
    /// others. The history is told of it once the watcher has returned. The watcher must not wait for threads that allocate. A panic ends in
    /// the watcher, and the change goes on. A handle of this allocator in the watcher keeps it alive until [`CachingAllocator::detach`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    ///
    /// use cuda_mem_core::{Driver, Stream};
    /// use cuda_mem_pool::MemoryResource;
    /// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
    ///
    /// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
    /// let context = driver.device(0)?.primary_context()?;
    /// let stream = Stream::new(&context)?;
    /// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
    /// let gone = Arc::new(AtomicUsize::new(0));
    /// let counted = Arc::clone(&gone);
    /// let id = allocator.attach_backing_watcher(move |change| {
    ///     counted.fetch_add(change.bytes, Ordering::Relaxed);
    /// });
    /// drop(allocator.allocate(10 << 20, &stream)?);
    /// stream.synchronize()?;
    /// assert_eq!(allocator.empty_cache()?, gone.load(Ordering::Relaxed));
    /// assert!(allocator.detach(id));
    /// # Ok::<(), cuda_mem_pool::Error>(())
    /// ```
    pub fn attach_backing_watcher(
        &self,
        watcher: impl Fn(&BackingChange) + Send + Sync + 'static,
    ) -> CallbackId {
        self.shared().callbacks.watchers.add(std::sync::Arc::new(watcher))
    }

    /// Calls a callback no more, of whichever kind; false if it is not one of this allocator. Another thread may be in it yet.
    pub fn detach(&self, id: CallbackId) -> bool {
        self.shared().callbacks.remove(id)
    }
}

impl Shared {
    pub(super) fn backing(&self, address: u64) -> Result<Backing> {
        self.source()?.backing(address).ok_or(Error::UnknownAddress { address })
    }

    /// The handles behind a range, of which an empty one has that of its address.
    pub(super) fn backings(&self, address: u64, bytes: usize) -> Result<Vec<Backing>> {
        let source = self.source()?;
        let end = end_of(address, bytes)?;
        let mut backings = Vec::new();
        let mut at = address;
        while at < end {
            let backing = source.backing(at).ok_or(Error::UnknownAddress { address: at })?;
            at = backing.end();
            backings.push(backing);
        }
        Ok(backings)
    }
}

/// The first address behind a range, which has at least one.
pub(super) fn end_of(address: u64, bytes: usize) -> Result<u64> {
    address.checked_add(bytes.max(1) as u64).ok_or(Error::TooLarge { bytes })
}

impl From<Backing> for Segment {
    fn from(backing: Backing) -> Self {
        Self {
            id: backing.id,
            generation: backing.generation,
            address: backing.address,
            bytes: backing.bytes,
            state: SegmentState::Mapped,
            pins: backing.pins,
        }
    }
}

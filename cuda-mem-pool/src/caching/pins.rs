//! Memory that stays where it is.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use cuda_mem_core::forked;
use cuda_mem_core::sys::CUdeviceptr;

use super::allocator::{CachingAllocator, Inner};
use super::segment::{Segment, end_of};
use super::shared::refuse_forked;
use crate::engine::paged::Backing;
use crate::error::{Error, Result};
use crate::primitive::{Mutex, lock};

/// Who needs memory to stay where it is. [`Pinned`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pin {
    /// Another process that maps it.
    Exported,
    /// A library or an adapter that it is registered with.
    Registered,
    /// A graph that has its addresses.
    Graph,
    /// A tensor of another library, handed over by DLPack.
    DlPack,
}

/// A range that is pinned. [`Pinned`] has an example of a pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinnedRange {
    /// The first address.
    pub address: CUdeviceptr,
    /// How many bytes.
    pub bytes: usize,
    /// For whom.
    pub pin: Pin,
}

/// Keeps the memory behind a range where it is until this is dropped: it is not moved, not unmapped, not given back and not
/// mapped a second time, also when the block there was freed. Free parts of it serve new blocks at their addresses.
///
/// Keeps the allocator alive. Forgotten, it pins for ever and does no other harm.
///
/// ```
/// use cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::MemoryResource;
/// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions, Pin};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
/// let block = allocator.allocate(10 << 20, &stream)?;
/// let pinned = allocator.pin(block.address(), block.len(), Pin::Exported)?;
/// let descriptors = pinned.export_posix_fds()?; // one for each segment
/// assert_eq!(descriptors.len(), pinned.segments()?.len());
///
/// drop(block);
/// stream.synchronize()?;
/// allocator.empty_cache()?;
/// assert!(allocator.reserved_bytes() >= 10 << 20); // the other process still has it
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
pub struct Pinned {
    inner: Arc<Inner>,
    id: u64,
    range: PinnedRange,
    chunks: Vec<u32>,
}

/// All pins of an allocator.
#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<Books>);

#[derive(Debug, Default)]
struct Books {
    made: u64,
    ranges: BTreeMap<u64, PinnedRange>,
    /// Handles of pins that were dropped, which the page source is yet to be told of: a drop waits for nobody.
    dropped: Vec<u32>,
}

impl Pins {
    fn add(&self, range: PinnedRange) -> u64 {
        let mut books = lock(&self.0);
        books.made += 1;
        let id = books.made;
        books.ranges.insert(id, range);
        id
    }

    /// The handles of the pins that were dropped since the last call.
    pub(super) fn take_dropped(&self) -> Vec<u32> {
        std::mem::take(&mut lock(&self.0).dropped)
    }
}

impl CachingAllocator {
    /// Has the memory behind a range, usually that of a block, stay where it is while the result lives. A range of no bytes is
    /// taken for one byte. What is pinned is whole segments.
    ///
    /// # Capture
    ///
    /// May be called while streams capture: it is no driver call.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAddress`] if a part of the range has no memory of this allocator, [`Error::TooLarge`],
    /// [`Error::InCallback`], [`Error::Core`] in a forked child. Nothing is pinned then.
    pub fn pin(&self, address: CUdeviceptr, bytes: usize, pin: Pin) -> Result<Pinned> {
        refuse_forked()?;
        let end = end_of(address, bytes)?;
        let chunks = self.shared().source()?.pin(address, end).ok_or(Error::UnknownAddress { address })?;
        let range = PinnedRange { address, bytes, pin };
        let id = self.shared().pins.add(range);
        Ok(Pinned { inner: Arc::clone(&self.inner), id, range, chunks })
    }

    /// What is pinned now, in the order in which it was.
    #[must_use]
    pub fn pins(&self) -> Vec<PinnedRange> {
        if forked() {
            return Vec::new();
        }
        lock(&self.shared().pins.0).ranges.values().copied().collect()
    }
}

impl Pinned {
    /// What was pinned, and for whom.
    #[must_use]
    pub fn range(&self) -> PinnedRange {
        self.range
    }

    /// The segments behind it, in the order of their addresses.
    ///
    /// # Errors
    ///
    /// [`Error::InCallback`].
    pub fn segments(&self) -> Result<Vec<Segment>> {
        let backings = self.inner.shared.backings(self.range.address, self.range.bytes)?;
        Ok(backings.into_iter().map(Segment::from).collect())
    }

    /// A descriptor of each segment for other processes, which see all of the segment: blocks beside the range, too.
    ///
    /// Wraps [`cuMemExportToShareableHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html). A descriptor
    /// keeps the memory, this value that it stays this range's.
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::Core`]: code 1 if memory of the device cannot be shared this way; [`Error::InCallback`].
    pub fn export_posix_fds(&self) -> Result<Vec<(Segment, OwnedFd)>> {
        let shared = &self.inner.shared;
        let backings = shared.backings(self.range.address, self.range.bytes)?;
        let source = shared.source()?;
        let export = |backing: Backing| {
            let descriptor = source.backend().export(backing.memory, backing.bytes)?;
            Ok((Segment::from(backing), descriptor))
        };
        // Pinned, they are what they were a moment ago.
        backings.into_iter().map(export).collect()
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if forked() {
            // All of it is the parent's.
            return;
        }
        let mut books = lock(&self.inner.shared.pins.0);
        books.ranges.remove(&self.id);
        books.dropped.append(&mut self.chunks);
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PinnedRange { address, bytes, pin } = self.range;
        f.debug_struct("Pinned")
            .field("address", &format_args!("{address:#x}"))
            .field("bytes", &bytes)
            .field("pin", &pin)
            .finish()
    }
}

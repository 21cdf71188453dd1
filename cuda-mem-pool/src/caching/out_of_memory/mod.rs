//! Why there was no memory, and who is told of it.

mod advice;
mod figures;
mod text;

use std::sync::Arc;

use cuda_mem_core::nvml::ProcessMemory;
use cuda_mem_core::{Device, StreamId};

pub use advice::Advice;

use super::allocator::CachingAllocator;
use super::callbacks::CallbackId;
use crate::mempool_id::MempoolId;

/// What there was when a request failed for lack of device memory, in bytes. Its text says all of it.
///
/// The figures are of about the same moment: other threads may allocate meanwhile.
///
/// ```
/// use cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
/// use cuda_mem_pool::{Error, MemoryResource};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
/// match allocator.allocate(1 << 45, &stream) {
///     Err(Error::DeviceOutOfMemory(report)) => {
///         assert_eq!((report.requested, report.live), (1 << 45, 0));
///         println!("{report}");
///     }
///     other => panic!("32 TiB: {other:?}"),
/// }
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfMemoryReport {
    /// The device.
    pub device: Device,
    /// What was asked for.
    pub requested: usize,
    /// What the device had free, if it said so.
    pub free: Option<usize>,
    /// What the device has in all.
    pub total: usize,
    /// The most that this allocator may hold, if [that is limited](CachingAllocator::set_memory_fraction).
    pub limit: Option<usize>,
    /// What it holds.
    pub reserved: usize,
    /// What of this is in blocks that somebody has.
    pub live: usize,
    /// What is in blocks that were freed while streams used them that have not come past that point.
    pub pending: usize,
    /// What is in no block, by the pool that has it; pools without any are left out.
    pub cached: Vec<CachedMemory>,
    /// What has to stay where it is because it is [pinned](CachingAllocator::pin), in use or not.
    pub pinned: usize,
    /// The largest block that this stream would have got, without anything being freed: of the private pool that was asked, or of the default
    /// pool and those that lend in need. What a private pool's own source would have given is not known, and not counted.
    pub largest: usize,
    /// The processes that have a context on the device, this one among them, as far as NVIDIA's management library is there and
    /// knows.
    pub processes: Option<Vec<ProcessMemory>>,
    /// What would help, chosen from the figures.
    pub advice: Vec<Advice>,
}

/// What a pool has free. [`OutOfMemoryReport`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CachedMemory {
    /// Which pool.
    pub pool: CachePool,
    /// The bytes that are in no block.
    pub bytes: usize,
    /// The longest piece without a gap.
    pub largest: usize,
}

/// Whose free memory it is. [`OutOfMemoryReport`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CachePool {
    /// The part of the default pool that a stream has.
    Stream(StreamId),
    /// A private pool.
    Private(MempoolId),
}

impl OutOfMemoryReport {
    /// What is in no block, of all pools.
    #[must_use]
    pub fn cached_bytes(&self) -> usize {
        self.cached.iter().map(|cached| cached.bytes).sum()
    }
}

impl CachingAllocator {
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
    /// let id = allocator
    ///     .attach_oom_reclaimer(move |_bytes| cache.lock().is_ok_and(|mut cache| cache.take().is_some()));
    /// let block = allocator.allocate(most, &stream)?;
    /// # drop(block);
    /// # allocator.detach(id);
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
}

//! How a pinned cache behaves.

use std::time::Duration;

use cuda_mem_core::Stream;

/// Options of a [`PinnedCachingAllocator`](super::PinnedCachingAllocator).
///
/// ```
/// use cuda_mem_core::Driver;
/// use cuda_mem_pool::PinnedCachingAllocator;
/// use cuda_mem_pool::pinned_cache::PinnedCacheOptions;
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let options = PinnedCacheOptions::default().with_max_cached_bytes(0).with_thread_cache_bytes(0);
/// let allocator = PinnedCachingAllocator::with_options(&context, options);
/// drop(allocator.allocate(10 << 20)?);
/// assert_eq!(allocator.statistics().allocated_bytes.current, 0); // nothing is kept
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PinnedCacheOptions {
    /// The NUMA node that blocks lie on, unless a request names another. Without one the system decides page by page.
    pub numa_id: Option<u32>,
    /// The most bytes that may be pinned at once. A request beyond it gives back everything that is free, and then fails. No limit
    /// without it.
    pub max_bytes: Option<usize>,
    /// How many bytes may be held that are in no block. Beyond it, whole segments go back to the system, largest first. No
    /// limit without it, as in PyTorch. The blocks that threads keep for themselves may come on top until a segment goes; all together they
    /// are less than as much again.
    pub max_cached_bytes: Option<usize>,
    /// How many bytes of freed blocks each thread may keep for itself. 64 MiB by default; 0 switches the thread caches off.
    pub thread_cache_bytes: usize,
    /// Whether a thread works ahead: it pins memory before requests for small blocks need it, at most one part in 256 of what
    /// is held, or 2 MiB; and it gives back large segments that fit nothing, once far more is held than was ever in use. It
    /// does by default; without it the first waits for a request and the second for a trim.
    pub grow_ahead: bool,
    /// How often that thread looks for blocks whose streams are done. Without it, the requests that miss do.
    pub poll_interval: Option<Duration>,
}

impl Default for PinnedCacheOptions {
    fn default() -> Self {
        Self {
            numa_id: None,
            max_bytes: None,
            max_cached_bytes: None,
            thread_cache_bytes: 64 << 20,
            grow_ahead: true,
            poll_interval: None,
        }
    }
}

impl PinnedCacheOptions {
    /// Sets [`numa_id`](Self::numa_id).
    #[must_use]
    pub fn with_numa_id(self, numa_id: u32) -> Self {
        Self { numa_id: Some(numa_id), ..self }
    }

    /// Sets [`max_bytes`](Self::max_bytes).
    #[must_use]
    pub fn with_max_bytes(self, max_bytes: usize) -> Self {
        Self { max_bytes: Some(max_bytes), ..self }
    }

    /// Sets [`max_cached_bytes`](Self::max_cached_bytes).
    #[must_use]
    pub fn with_max_cached_bytes(self, max_cached_bytes: usize) -> Self {
        Self { max_cached_bytes: Some(max_cached_bytes), ..self }
    }

    /// Sets [`thread_cache_bytes`](Self::thread_cache_bytes).
    #[must_use]
    pub fn with_thread_cache_bytes(self, thread_cache_bytes: usize) -> Self {
        Self { thread_cache_bytes, ..self }
    }

    /// Sets [`grow_ahead`](Self::grow_ahead).
    #[must_use]
    pub fn with_grow_ahead(self, grow_ahead: bool) -> Self {
        Self { grow_ahead, ..self }
    }

    /// Sets [`poll_interval`](Self::poll_interval).
    #[must_use]
    pub fn with_poll_interval(self, poll_interval: Duration) -> Self {
        Self { poll_interval: Some(poll_interval), ..self }
    }
}

/// Where a block is to come from.
///
/// ```
/// use cuda_mem_core::Driver;
/// use cuda_mem_pool::PinnedCachingAllocator;
/// use cuda_mem_pool::pinned_cache::Placement;
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let allocator = PinnedCachingAllocator::new(&driver.device(0)?.primary_context()?);
/// if let Ok(block) = allocator.allocate_with(4096, Placement { numa_id: Some(0), ..Default::default() }) {
///     assert_eq!(block.numa_id(), Some(0));
/// } // an error where the system has no NUMA, or a container forbids mbind
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Placement<'s> {
    /// The stream that the block is for, by which the filters of private pools choose.
    pub stream: Option<&'s Stream>,
    /// The NUMA node, if not the allocator's own.
    pub numa_id: Option<u32>,
}

//! [`PinnedCachingAllocator`]: pinned host memory without waiting for the driver.
//!
//! Requests are served by the calling thread's own cache, else by the arena of their pool and NUMA node, which cuts blocks
//! out of segments, else by a segment that is pinned for them. docs/pinned-cache.md says how, and what bounds the waste.

mod allocator;
mod arena;
mod block;
mod heap;
mod pending;
mod resource;
mod shared;
mod statistics;
mod thread_cache;
mod vec;
mod worker;

pub use allocator::PinnedCachingAllocator;
pub use block::PinnedBlock;
pub use statistics::{DurationStat, PinnedCacheStatistics};
pub use vec::PinnedVec;

use crate::primitive::setters;

#[cfg(test)]
mod tests;

/// Options of a [`PinnedCachingAllocator`], which has an example.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PinnedCacheOptions {
    /// The NUMA node that blocks lie on, unless a request names another. Without one the system decides page by page. Memory that the driver
    /// allocates ([`is_allocated_by_driver`](PinnedCachingAllocator::is_allocated_by_driver)) lies where the driver chooses.
    pub numa_id: Option<u32>,
    /// The most bytes that may be pinned at once; no limit by default. Before a request up to it fails for it, everything free is given back, and
    /// the host waits for the streams that still use freed blocks, unless a stream waits for a fence.
    pub max_bytes: Option<usize>,
    /// How many bytes may be held that are in no block; no limit by default, as in PyTorch. Beyond it, whole segments go back to the
    /// system, largest first. Blocks that threads keep may come on top until a segment goes: less than as much again.
    pub max_cached_bytes: Option<usize>,
    /// How many bytes of freed blocks each thread may keep for itself: of a size class 16 at the most, and none above 64 MiB. 64 MiB by
    /// default; 0 switches the thread caches off.
    pub thread_cache_bytes: usize,
    /// Whether a thread gives back large segments that fit nothing, once far more is held than was ever in use, as by default.
    pub returns_surplus: bool,
}

impl Default for PinnedCacheOptions {
    fn default() -> Self {
        Self {
            numa_id: None,
            max_bytes: None,
            max_cached_bytes: None,
            thread_cache_bytes: 64 << 20,
            returns_surplus: true,
        }
    }
}

impl PinnedCacheOptions {
    setters! {
        with_numa_id(numa_id: u32) => Some(numa_id);
        with_max_bytes(max_bytes: usize) => Some(max_bytes);
        with_max_cached_bytes(max_cached_bytes: usize) => Some(max_cached_bytes);
        with_thread_cache_bytes(thread_cache_bytes: usize) => thread_cache_bytes;
        with_returns_surplus(returns_surplus: bool) => returns_surplus;
    }
}

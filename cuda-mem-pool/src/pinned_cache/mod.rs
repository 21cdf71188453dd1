//! [`PinnedCachingAllocator`]: pinned host memory without waiting for the driver.
//!
//! Requests are served by the calling thread's own cache, else by the arena of their pool and NUMA node, which cuts blocks
//! out of segments, else by a segment that is pinned for them. docs/pinned-cache.md tells how, and what bounds
//! the waste.

mod allocator;
#[cfg(feature = "allocator-api2")]
mod allocator_api;
mod arena;
mod block;
mod error;
mod heap;
mod options;
mod pending;
mod pools;
mod resource;
mod segment;
mod shared;
mod statistics;
mod thread_cache;
mod vec;
mod worker;

pub use allocator::PinnedCachingAllocator;
pub use block::PinnedBlock;
pub use error::PinnedCacheError;
pub use options::{PinnedCacheOptions, Placement};
pub use resource::PinnedCachingResource;
pub use statistics::{DurationStat, PinnedCacheStatistics};
pub use vec::PinnedVec;

pub use crate::statistics::Stat;

#[cfg(test)]
mod tests;

//! [`PinnedCachingAllocator`]: pinned host memory without waiting for the driver.
//!
//! Requests are served by the calling thread's own cache, else by the arena of their pool and NUMA node, which cuts blocks
//! out of segments (the engine), else by a segment that is pinned for them. docs/pinned-cache.md tells how, and what bounds
//! the waste.

mod allocator;
mod arena;
mod block;
mod body;
mod by_address;
mod counters;
mod error;
mod free;
mod grower;
mod ledger;
mod miss;
mod options;
mod pending;
mod pools;
mod queue;
mod resource;
mod segment;
mod shared;
mod stats;
mod thread_cache;
mod try_cell;

pub use allocator::PinnedCachingAllocator;
pub use block::PinnedBlock;
pub use counters::DurationStat;
pub use error::PinnedCacheError;
pub use options::{PinnedCacheOptions, Placement};
pub use resource::PinnedCachingResource;
pub use stats::PinnedCacheStats;

pub use crate::statistics::Stat;

//! Statistics of a device's allocator, with PyTorch's keys, and the counter of their peaks.
//!
//! What changes with each block is counted by a counter of peaks, in a shard of each heap; what changes with a driver call is counted
//! where that is made, in a [`DeviceStatistics`] behind the lock that is held there anyway.

mod device;
mod figures;
mod peak;
mod shard;

pub use device::{DeviceStatistics, PoolSize, PoolStat, Stat};
pub(crate) use peak::PeakCounter;
pub(crate) use shard::{CountedCell, Counting, Shard};

#[cfg(test)]
mod tests;

//! Statistics of a device's allocator, with PyTorch's keys, and the counting that keeps their peaks exact.
//!
//! What changes with each block is counted by a [`PeakLedger`], in a shard a heap; what changes with a driver call is counted
//! where that is made, in a [`DeviceStatistics`] behind the lock that is held there anyway.

mod device;
mod ledger;
mod stat;

pub use device::DeviceStatistics;
pub(crate) use ledger::ActiveBytes;
pub use ledger::{LiveStatistics, PeakLedger, Peaks, Shard, ShardGuard};
pub use stat::{PoolSize, PoolStat, Stat};

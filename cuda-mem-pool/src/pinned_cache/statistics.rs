//! Counts blocks and segments, under the names that PyTorch gives the figures of its host allocator.

use std::fmt;
use std::time::Duration;

use crate::primitive::{Mutex, lock};
use crate::statistics::{DeviceStatistics, PeakCounter, PoolSize, Shard, Stat};

/// Blocks of all sizes are counted together.
pub(super) const ALL: PoolSize = PoolSize::Small;

/// What an allocator has and has done. All pools and nodes together; bytes are those of whole blocks and segments.
///
/// `current` is exact whenever no call is under way. So is `peak`, but where calls of many threads overlap all the time: there that of blocks
/// may be too low by 512 KiB, 128 blocks or a 2048th. It is never too high.
/// [`PinnedCachingAllocator`](super::PinnedCachingAllocator) has an example.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PinnedCacheStatistics {
    /// Pieces of memory that the driver holds pinned: segments. In PyTorch, where a piece is a block, its blocks in use and free.
    pub allocations: Stat,
    /// Their bytes.
    pub allocated_bytes: Stat,
    /// Allocated blocks. A block that is dropped counts no longer, also while streams still use it.
    pub active_requests: Stat,
    /// Their bytes, each rounded up as [`PinnedBlock::capacity`](super::PinnedBlock::capacity) says.
    pub active_bytes: Stat,
    /// Calls that pinned memory, since the accumulated figures were last reset.
    pub num_host_alloc: u64,
    /// Calls that gave it back.
    pub num_host_free: u64,
    /// How long the former took.
    pub host_alloc_time: DurationStat,
    /// How long the latter took.
    pub host_free_time: DurationStat,
}

/// How long a kind of driver call took, in microseconds. [`PinnedCachingAllocator`](super::PinnedCachingAllocator) has an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct DurationStat {
    /// All calls together.
    pub total: u64,
    /// The longest since the peaks were last reset.
    pub max: u64,
    /// The shortest since then; 0 without calls.
    pub min: u64,
    /// How many there were.
    pub count: u64,
}

impl DurationStat {
    fn add(&mut self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.min = if self.min == 0 { micros } else { self.min.min(micros) };
        self.max = self.max.max(micros);
        self.total = self.total.saturating_add(micros);
        self.count += 1;
    }
}

/// A row for each figure under its key.
impl fmt::Display for PinnedCacheStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = [
            ("allocations", self.allocations),
            ("allocated_bytes", self.allocated_bytes),
            ("active_requests", self.active_requests),
            ("active_bytes", self.active_bytes),
        ];
        stats.iter().try_for_each(|(name, stat)| writeln!(f, "{name:<19} {stat}"))?;
        writeln!(f, "{:<19} {}", "num_host_alloc", self.num_host_alloc)?;
        writeln!(f, "{:<19} {}", "num_host_free", self.num_host_free)?;
        writeln!(f, "{:<19} {}", "host_alloc_time", self.host_alloc_time)?;
        writeln!(f, "{:<19} {}", "host_free_time", self.host_free_time)
    }
}

impl fmt::Display for DurationStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { total, max, min, count } = self;
        write!(f, "{count} calls, {total} us in all, {min} to {max} us each")
    }
}

#[derive(Debug)]
pub(super) struct Figures {
    /// Blocks that somebody has.
    pub(super) blocks: PeakCounter,
    /// For blocks that go past the thread caches.
    past_caches: Shard,
    segments: Mutex<Segments>,
}

#[derive(Debug, Default)]
struct Segments {
    statistics: PinnedCacheStatistics,
    /// The bytes that are pinned or about to be.
    claimed: usize,
}

impl Figures {
    pub(super) fn new() -> Self {
        let blocks = PeakCounter::default();
        Self { past_caches: blocks.shard(), blocks, segments: Mutex::default() }
    }

    /// Counts a block that is handed out past the thread caches, or taken back.
    pub(super) fn count(&self, bytes: usize, is_out: bool) {
        let shard = self.past_caches.hold();
        if is_out { shard.allocate(ALL, bytes, 0) } else { shard.free(ALL, bytes, 0) }
    }

    /// Claims bytes that are about to be pinned, unless more than `most` would be; whether it did.
    pub(super) fn claim(&self, bytes: usize, most: Option<usize>) -> bool {
        let mut segments = lock(&self.segments);
        let claimed = segments.claimed.saturating_add(bytes);
        let fits = most.is_none_or(|most| claimed <= most);
        if fits {
            segments.claimed = claimed;
        }
        fits
    }

    pub(super) fn unclaim(&self, bytes: usize) {
        lock(&self.segments).claimed -= bytes;
    }

    pub(super) fn pinned(&self, bytes: usize, took: Duration) {
        let statistics = &mut lock(&self.segments).statistics;
        statistics.allocations.increase(1);
        statistics.allocated_bytes.increase(bytes as u64);
        statistics.num_host_alloc += 1;
        statistics.host_alloc_time.add(took);
    }

    pub(super) fn unpinned(&self, bytes: usize, took: Duration) {
        let mut segments = lock(&self.segments);
        segments.claimed -= bytes;
        let statistics = &mut segments.statistics;
        statistics.allocations.decrease(1);
        statistics.allocated_bytes.decrease(bytes as u64);
        statistics.num_host_free += 1;
        statistics.host_free_time.add(took);
    }

    pub(super) fn held(&self) -> usize {
        usize::try_from(lock(&self.segments).statistics.allocated_bytes.current).unwrap_or(usize::MAX)
    }

    pub(super) fn read(&self) -> PinnedCacheStatistics {
        let mut blocks = DeviceStatistics::default();
        self.blocks.read(&mut blocks);
        PinnedCacheStatistics {
            active_requests: blocks.allocation.all,
            active_bytes: blocks.allocated_bytes.all,
            ..lock(&self.segments).statistics
        }
    }

    pub(super) fn reset_peak(&self) {
        self.blocks.reset_peak();
        let statistics = &mut lock(&self.segments).statistics;
        statistics.allocations.reset_peak();
        statistics.allocated_bytes.reset_peak();
        for time in [&mut statistics.host_alloc_time, &mut statistics.host_free_time] {
            (time.max, time.min) = (0, 0);
        }
    }

    pub(super) fn reset_accumulated(&self) {
        self.blocks.reset_accumulated();
        let statistics = &mut lock(&self.segments).statistics;
        statistics.allocations.reset_accumulated();
        statistics.allocated_bytes.reset_accumulated();
        (statistics.num_host_alloc, statistics.num_host_free) = (0, 0);
        for time in [&mut statistics.host_alloc_time, &mut statistics.host_free_time] {
            (time.total, time.count) = (0, 0);
        }
    }
}

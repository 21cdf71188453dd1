//! All figures of a device's allocator, under PyTorch's keys.

use super::stat::{PoolStat, Stat};

/// The statistics of a device's caching allocator, as `torch.cuda.memory_stats()` names them.
///
/// ```
/// use cuda_mem_pool::statistics::{DeviceStatistics, PoolSize};
///
/// let mut statistics = DeviceStatistics::default();
/// statistics.segment.increase(PoolSize::Small, 1);
/// statistics.reserved_bytes.increase(PoolSize::Small, 2 << 20);
/// statistics.num_device_alloc += 1;
/// let entries = statistics.entries();
/// assert!(entries.contains(&("reserved_bytes.all.current".to_owned(), 2 << 20)));
/// assert!(entries.is_sorted());
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceStatistics {
    /// Blocks that somebody has: handed out and not given back.
    pub allocation: PoolStat,
    /// Segments: pieces of memory that the driver gave.
    pub segment: PoolStat,
    /// Blocks that somebody has or that a stream still uses.
    pub active: PoolStat,
    /// Free blocks in segments that are cut up.
    pub inactive_split: PoolStat,
    /// Bytes of the blocks of `allocation`, each rounded up to its block.
    pub allocated_bytes: PoolStat,
    /// Bytes of the segments.
    pub reserved_bytes: PoolStat,
    /// Bytes of the blocks of `active`.
    pub active_bytes: PoolStat,
    /// Bytes of the blocks of `inactive_split`.
    pub inactive_split_bytes: PoolStat,
    /// Bytes of the blocks of `active`, as they were asked for.
    pub requested_bytes: PoolStat,
    /// Blocks that somebody has of `max_split_size` bytes and more.
    pub oversize_allocations: Stat,
    /// Segments of as many.
    pub oversize_segments: Stat,
    /// Requests for which cached memory was given back to the driver and the driver asked again.
    pub num_alloc_retries: u64,
    /// Requests that failed for lack of memory.
    pub num_ooms: u64,
    /// Waits for all streams, to have memory that is still in use by one.
    pub num_sync_all_streams: u64,
    /// Driver calls that got memory.
    pub num_device_alloc: u64,
    /// Driver calls that gave memory back.
    pub num_device_free: u64,
    /// Blocks larger than this are not cut up, in bytes; without, all are. It is an option and no count: resets leave it.
    pub max_split_size: Option<u64>,
}

impl DeviceStatistics {
    /// Has the peaks start anew from what there is now.
    pub fn reset_peak(&mut self) {
        self.pool_stats_mut().into_iter().for_each(PoolStat::reset_peak);
        self.oversize_mut().into_iter().for_each(Stat::reset_peak);
    }

    /// Has the sums and counts start anew from nothing.
    pub fn reset_accumulated(&mut self) {
        self.pool_stats_mut().into_iter().for_each(PoolStat::reset_accumulated);
        self.oversize_mut().into_iter().for_each(Stat::reset_accumulated);
        self.num_alloc_retries = 0;
        self.num_ooms = 0;
        self.num_sync_all_streams = 0;
        self.num_device_alloc = 0;
        self.num_device_free = 0;
    }

    /// All figures under PyTorch's keys, sorted by key. A `max_split_size` without a limit is -1, as there; a figure that does
    /// not fit is the largest that does.
    #[must_use]
    pub fn entries(&self) -> Vec<(String, i64)> {
        let mut entries = Vec::new();
        for (name, stat) in self.pool_stats() {
            for (pool, stat) in
                [("all", stat.all), ("small_pool", stat.small_pool), ("large_pool", stat.large_pool)]
            {
                push_stat(&mut entries, &format!("{name}.{pool}"), stat);
            }
        }
        push_stat(&mut entries, "oversize_allocations", self.oversize_allocations);
        push_stat(&mut entries, "oversize_segments", self.oversize_segments);
        let counts = [
            ("num_alloc_retries", self.num_alloc_retries),
            ("num_ooms", self.num_ooms),
            ("num_sync_all_streams", self.num_sync_all_streams),
            ("num_device_alloc", self.num_device_alloc),
            ("num_device_free", self.num_device_free),
        ];
        entries.extend(counts.map(|(name, count)| (name.to_owned(), signed(count))));
        entries.push(("max_split_size".to_owned(), self.max_split_size.map_or(-1, signed)));
        entries.sort_unstable();
        entries
    }

    fn pool_stats(&self) -> [(&'static str, PoolStat); 9] {
        [
            ("allocation", self.allocation),
            ("segment", self.segment),
            ("active", self.active),
            ("inactive_split", self.inactive_split),
            ("allocated_bytes", self.allocated_bytes),
            ("reserved_bytes", self.reserved_bytes),
            ("active_bytes", self.active_bytes),
            ("inactive_split_bytes", self.inactive_split_bytes),
            ("requested_bytes", self.requested_bytes),
        ]
    }

    fn pool_stats_mut(&mut self) -> [&mut PoolStat; 9] {
        [
            &mut self.allocation,
            &mut self.segment,
            &mut self.active,
            &mut self.inactive_split,
            &mut self.allocated_bytes,
            &mut self.reserved_bytes,
            &mut self.active_bytes,
            &mut self.inactive_split_bytes,
            &mut self.requested_bytes,
        ]
    }

    fn oversize_mut(&mut self) -> [&mut Stat; 2] {
        [&mut self.oversize_allocations, &mut self.oversize_segments]
    }
}

fn push_stat(entries: &mut Vec<(String, i64)>, name: &str, stat: Stat) {
    let figures = [
        ("current", stat.current),
        ("peak", stat.peak),
        ("allocated", stat.allocated),
        ("freed", stat.freed),
    ];
    entries.extend(figures.map(|(figure, value)| (format!("{name}.{figure}"), signed(value))));
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::statistics::PoolSize;

    /// The keys of torch 2.11, in its order.
    #[test]
    fn keys_are_those_of_pytorch() {
        let entries = DeviceStatistics::default().entries();
        let keys: Vec<&str> = entries.iter().map(|(key, _)| key.as_str()).collect();
        assert!(keys.is_sorted());
        assert_eq!(keys.len(), 9 * 3 * 4 + 2 * 4 + 6);
        assert_eq!(
            keys[..4],
            ["active.all.allocated", "active.all.current", "active.all.freed", "active.all.peak"]
        );
        assert_eq!(keys[keys.len() - 1], "segment.small_pool.peak");
        for key in [
            "allocation.large_pool.current",
            "allocated_bytes.all.current",
            "inactive_split_bytes.small_pool.freed",
            "max_split_size",
            "num_alloc_retries",
            "num_device_alloc",
            "num_device_free",
            "num_ooms",
            "num_sync_all_streams",
            "oversize_allocations.peak",
            "oversize_segments.current",
            "requested_bytes.all.allocated",
            "reserved_bytes.all.peak",
        ] {
            assert!(keys.binary_search(&key).is_ok(), "{key}");
        }
    }

    #[test]
    fn resets_leave_what_is_there() {
        let mut statistics = DeviceStatistics { max_split_size: Some(7), num_ooms: 2, ..Default::default() };
        statistics.reserved_bytes.increase(PoolSize::Large, 10);
        statistics.reserved_bytes.decrease(PoolSize::Large, 4);
        statistics.oversize_segments.increase(3);
        statistics.oversize_segments.decrease(1);
        statistics.reset_peak();
        let left = Stat { current: 6, peak: 6, allocated: 10, freed: 4 };
        assert_eq!(
            statistics.reserved_bytes,
            PoolStat { all: left, small_pool: Stat::default(), large_pool: left }
        );
        assert_eq!(statistics.oversize_segments.peak, 2);
        statistics.reset_accumulated();
        assert_eq!(statistics.reserved_bytes.all, Stat { current: 6, peak: 6, allocated: 0, freed: 0 });
        assert_eq!(statistics.oversize_segments, Stat { current: 2, peak: 2, allocated: 0, freed: 0 });
        assert_eq!((statistics.num_ooms, statistics.max_split_size), (0, Some(7)));
    }

    #[test]
    fn figures_that_do_not_fit_are_the_largest_that_do() {
        let statistics = DeviceStatistics { num_ooms: u64::MAX, ..Default::default() };
        let entries = statistics.entries();
        assert!(entries.contains(&("num_ooms".to_owned(), i64::MAX)));
        assert!(entries.contains(&("max_split_size".to_owned(), -1)));
    }
}

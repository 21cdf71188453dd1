//! The figures of a device's allocator under PyTorch's keys: each is now, at most, and in all.

use std::fmt;

use crate::error::Bytes;

/// The statistics of a device's caching allocator, as `torch.cuda.memory_stats()` names them.
///
/// ```
/// use cuda_mem_pool::statistics::{DeviceStatistics, PoolSize};
///
/// let mut statistics = DeviceStatistics::default();
/// statistics.segment.increase(PoolSize::Small, 1);
/// statistics.reserved_bytes.increase(PoolSize::Small, 2 << 20);
/// statistics.num_device_alloc += 1;
/// println!("{statistics}"); // a table
/// # let table = statistics.to_string();
/// assert!(table.contains("reserved_bytes                 2.00 MiB     2.00 MiB     2.00 MiB      0 bytes"));
/// ```
///
/// With the feature `serde` it is serialised as `torch.cuda.memory_stats_as_nested_dict()` is; no `max_split_size` is null.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct DeviceStatistics {
    /// Allocated blocks: handed out and not given back.
    pub allocation: PoolStat,
    /// Segments: pieces of memory that the driver gave.
    pub segment: PoolStat,
    /// Allocated blocks, and freed ones that a stream still uses.
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
    /// Allocated blocks of `max_split_size` bytes and more.
    pub oversize_allocations: Stat,
    /// Segments of as many.
    pub oversize_segments: Stat,
    /// Requests for which cached memory was given back to the driver and the driver asked again.
    pub num_alloc_retries: u64,
    /// Requests that failed for lack of memory.
    pub num_ooms: u64,
    /// The bytes of tags that sleep: they are not reserved, and blocks in them stay allocated.
    pub asleep_bytes: u64,
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
        self.pool_stats_mut().into_iter().for_each(|(_, stat)| stat.reset_peak());
        self.oversize_allocations.reset_peak();
        self.oversize_segments.reset_peak();
    }

    /// Has the sums and counts start anew from nothing.
    pub fn reset_accumulated(&mut self) {
        self.pool_stats_mut().into_iter().for_each(|(_, stat)| stat.reset_accumulated());
        self.oversize_allocations.reset_accumulated();
        self.oversize_segments.reset_accumulated();
        self.num_alloc_retries = 0;
        self.num_ooms = 0;
        self.num_sync_all_streams = 0;
        self.num_device_alloc = 0;
        self.num_device_free = 0;
    }

    fn pool_stats_mut(&mut self) -> [(&'static str, &mut PoolStat); 9] {
        [
            ("allocation", &mut self.allocation),
            ("segment", &mut self.segment),
            ("active", &mut self.active),
            ("inactive_split", &mut self.inactive_split),
            ("allocated_bytes", &mut self.allocated_bytes),
            ("reserved_bytes", &mut self.reserved_bytes),
            ("active_bytes", &mut self.active_bytes),
            ("inactive_split_bytes", &mut self.inactive_split_bytes),
            ("requested_bytes", &mut self.requested_bytes),
        ]
    }
}

/// A table with a row for each figure under its key. Bytes have units. What was never above 0 has no rows for the two kinds of pools.
impl fmt::Display for DeviceStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let titles = ["current", "peak", "allocated", "freed"];
        write!(f, "{:<26}", "")?;
        titles.into_iter().try_for_each(|title| write!(f, " {title:>12}"))?;
        let mut figures = *self;
        for (name, stat) in figures.pool_stats_mut() {
            let in_bytes = name.ends_with("_bytes");
            write_row(f, name, stat.all, in_bytes)?;
            if stat.all != Stat::default() {
                write_row(f, "  small_pool", stat.small_pool, in_bytes)?;
                write_row(f, "  large_pool", stat.large_pool, in_bytes)?;
            }
        }
        write_row(f, "oversize_allocations", self.oversize_allocations, false)?;
        write_row(f, "oversize_segments", self.oversize_segments, false)?;
        let counts = [
            ("num_alloc_retries", self.num_alloc_retries),
            ("num_ooms", self.num_ooms),
            ("num_sync_all_streams", self.num_sync_all_streams),
            ("num_device_alloc", self.num_device_alloc),
            ("num_device_free", self.num_device_free),
        ];
        counts.into_iter().try_for_each(|(name, count)| write!(f, "\n{name:<26} {count:>12}"))?;
        let most = self.max_split_size.map_or_else(|| "none".to_owned(), |bytes| Bytes(bytes).to_string());
        let asleep = Bytes(self.asleep_bytes).to_string();
        write!(f, "\n{:<26} {asleep:>12}\n{:<26} {most:>12}", "asleep_bytes", "max_split_size")
    }
}

fn write_row(f: &mut fmt::Formatter<'_>, name: &str, stat: Stat, in_bytes: bool) -> fmt::Result {
    write!(f, "\n{name:<26}")?;
    for figure in [stat.current, stat.peak, stat.allocated, stat.freed] {
        match in_bytes {
            true => write!(f, " {:>12}", Bytes(figure).to_string())?,
            false => write!(f, " {figure:>12}")?,
        }
    }
    Ok(())
}

/// A figure that goes up and down.
///
/// ```
/// use cuda_mem_pool::statistics::Stat;
///
/// let mut segments = Stat::default();
/// segments.increase(3);
/// segments.decrease(2);
/// assert_eq!(segments, Stat { current: 1, peak: 3, allocated: 3, freed: 2 });
/// assert_eq!(segments.to_string(), "1 now, 3 at most, 3 allocated, 2 freed");
/// segments.reset_peak();
/// segments.reset_accumulated();
/// assert_eq!(segments, Stat { current: 1, peak: 1, allocated: 0, freed: 0 });
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Stat {
    /// Now.
    pub current: u64,
    /// The most at any moment since the peaks were last reset.
    pub peak: u64,
    /// The sum of what was added since the accumulated figures were last reset.
    pub allocated: u64,
    /// The sum of what was taken away since then.
    pub freed: u64,
}

impl Stat {
    /// There is so much more.
    pub fn increase(&mut self, amount: u64) {
        self.current = self.current.saturating_add(amount);
        self.allocated = self.allocated.saturating_add(amount);
        self.peak = self.peak.max(self.current);
    }

    /// There is so much less.
    pub fn decrease(&mut self, amount: u64) {
        self.current = self.current.saturating_sub(amount);
        self.freed = self.freed.saturating_add(amount);
    }

    pub(crate) fn set(&mut self, now: u64) {
        self.decrease(self.current.saturating_sub(now));
        self.increase(now.saturating_sub(self.current));
    }

    /// Has the peak start anew from what there is now.
    pub fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    /// Has the sums start anew from nothing.
    pub fn reset_accumulated(&mut self) {
        (self.allocated, self.freed) = (0, 0);
    }
}

impl fmt::Display for Stat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { current, peak, allocated, freed } = self;
        write!(f, "{current} now, {peak} at most, {allocated} allocated, {freed} freed")
    }
}

/// Which of the two kinds of pools a block or segment belongs to, as PyTorch has them. [`DeviceStatistics`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolSize {
    /// Blocks of up to 1 MiB, and the segments that they are cut from.
    Small,
    /// All others.
    Large,
}

/// A figure of both kinds of pools together, and of each, whose peaks may have been at different moments. [`DeviceStatistics`] has an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PoolStat {
    /// Both together.
    pub all: Stat,
    /// Those of small blocks.
    pub small_pool: Stat,
    /// Those of large blocks.
    pub large_pool: Stat,
}

impl PoolStat {
    /// There is so much more in pools of this kind.
    pub fn increase(&mut self, pool: PoolSize, amount: u64) {
        self.all.increase(amount);
        self.of(pool).increase(amount);
    }

    /// There is so much less in pools of this kind.
    pub fn decrease(&mut self, pool: PoolSize, amount: u64) {
        self.all.decrease(amount);
        self.of(pool).decrease(amount);
    }

    /// There is so much now in pools of small blocks and in those of large ones.
    pub(crate) fn set(&mut self, small: u64, large: u64) {
        let kinds = [(PoolSize::Small, small), (PoolSize::Large, large)];
        let kinds = kinds.map(|(pool, now)| (pool, self.of(pool).current, now));
        // First what is gone: both together never were what one had before and the other has now.
        kinds.iter().for_each(|&(pool, before, now)| self.decrease(pool, before.saturating_sub(now)));
        kinds.iter().for_each(|&(pool, before, now)| self.increase(pool, now.saturating_sub(before)));
    }

    /// Has the peaks start anew from what there is now.
    pub fn reset_peak(&mut self) {
        self.each(Stat::reset_peak);
    }

    /// Has the sums start anew from nothing.
    pub fn reset_accumulated(&mut self) {
        self.each(Stat::reset_accumulated);
    }

    fn of(&mut self, pool: PoolSize) -> &mut Stat {
        match pool {
            PoolSize::Small => &mut self.small_pool,
            PoolSize::Large => &mut self.large_pool,
        }
    }

    fn each(&mut self, change: fn(&mut Stat)) {
        [&mut self.all, &mut self.small_pool, &mut self.large_pool].into_iter().for_each(change);
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::statistics::PoolSize;

    fn some() -> DeviceStatistics {
        let mut statistics =
            DeviceStatistics { num_ooms: 2, max_split_size: Some(20 << 20), ..Default::default() };
        statistics.asleep_bytes = 4 << 20;
        statistics.allocated_bytes.increase(PoolSize::Small, 3 << 9);
        statistics.allocated_bytes.increase(PoolSize::Large, 5 << 30);
        statistics.allocated_bytes.decrease(PoolSize::Large, 5 << 30);
        statistics.segment.increase(PoolSize::Large, 7);
        statistics
    }

    #[test]
    fn a_table_is_aligned_and_bytes_have_units() {
        let table = some().to_string();
        let rows: Vec<&str> = table.lines().collect();
        for row in [
            "allocated_bytes                1.50 KiB     5.00 GiB     5.00 GiB     5.00 GiB",
            "  small_pool                   1.50 KiB     1.50 KiB     1.50 KiB      0 bytes",
            "  large_pool                    0 bytes     5.00 GiB     5.00 GiB     5.00 GiB",
            "segment                               7            7            7            0",
            "active_bytes                    0 bytes      0 bytes      0 bytes      0 bytes",
            "num_ooms                              2",
            "asleep_bytes                   4.00 MiB",
            "max_split_size                20.00 MiB",
        ] {
            assert!(rows.contains(&row), "{row}\n{table}");
        }
        let columns = 26 + 4 * 13;
        assert!(rows[..rows.len() - 7].iter().all(|row| row.len() == columns), "{table}");
        assert_eq!(rows.len(), 1 + 9 + 2 * 2 + 2 + 7, "{table}");
    }

    /// The keys of torch 2.11.
    #[cfg(feature = "serde")]
    #[test]
    fn keys_are_those_of_pytorch_and_what_sleeps() {
        let value = serde_json::to_value(some()).unwrap();
        assert_eq!(value["allocated_bytes"]["small_pool"]["current"], 3 << 9);
        assert_eq!(value["allocated_bytes"]["all"]["peak"], (5u64 << 30) + (3 << 9));
        assert_eq!(value["max_split_size"], 20 << 20);
        let keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected = "active active_bytes allocated_bytes allocation asleep_bytes inactive_split inactive_split_bytes max_split_size \
                            num_alloc_retries num_device_alloc num_device_free num_ooms num_sync_all_streams \
                            oversize_allocations oversize_segments requested_bytes reserved_bytes segment"
            .split_ascii_whitespace()
            .collect::<Vec<_>>();
        expected.sort_unstable();
        let mut keys = keys;
        keys.sort_unstable();
        assert_eq!(keys, expected);
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
}

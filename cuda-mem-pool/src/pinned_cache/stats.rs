//! Statistics with the names that PyTorch gives those of its host allocator.

use super::counters::{Base, DurationStat};
use super::shared::Shared;
use crate::engine::stats::Amount;
use crate::statistics::Stat;

/// What an allocator has and has done. All pools and nodes together; bytes are those of whole blocks and segments.
///
/// `current` is exact, and so is `peak` while threads take turns: one that lasted one instruction counts. When several
/// threads allocate blocks and drop them at the same time, more than ten thousand times a second, the peak of what is in use
/// may count what they had just before as well, at most what their caches keep; it is never too low. Segments and blocks in use
/// are read one after the other, so while other threads allocate they may be of slightly different moments.
///
/// ```
/// use cuda_mem_core::Driver;
/// use cuda_mem_pool::PinnedCachingAllocator;
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let allocator = PinnedCachingAllocator::new(&driver.device(0)?.primary_context()?);
/// let kept = allocator.allocate(3000)?;
/// drop(allocator.allocate(10_000_000)?);
/// let stats = allocator.stats();
/// assert_eq!((stats.active_requests.current, stats.active_requests.peak), (1, 2));
/// assert_eq!(stats.active_bytes.current, kept.capacity() as u64);
/// assert_eq!(stats.host_alloc_time.count, stats.num_host_alloc);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PinnedCacheStats {
    /// Pieces of memory that the driver holds pinned: segments. In PyTorch, where a piece is a block, its blocks in use and
    /// free.
    pub allocations: Stat,
    /// Their bytes.
    pub allocated_bytes: Stat,
    /// Blocks that somebody has. A block that is dropped counts no longer, also while streams still use it.
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

impl PinnedCacheStats {
    /// All figures under the keys of `torch.cuda.host_memory_stats()`; times are in microseconds, their mean rounded down.
    #[must_use]
    pub fn entries(&self) -> Vec<(String, u64)> {
        let stats = [
            ("allocations", self.allocations),
            ("allocated_bytes", self.allocated_bytes),
            ("active_requests", self.active_requests),
            ("active_bytes", self.active_bytes),
        ];
        let times = [("host_alloc_time", self.host_alloc_time), ("host_free_time", self.host_free_time)];
        let mut entries = Vec::new();
        for (name, stat) in stats {
            let figures = [
                ("current", stat.current),
                ("peak", stat.peak),
                ("allocated", stat.allocated),
                ("freed", stat.freed),
            ];
            entries.extend(figures.map(|(figure, value)| (format!("{name}.{figure}"), value)));
        }
        entries.push(("num_host_alloc".to_owned(), self.num_host_alloc));
        entries.push(("num_host_free".to_owned(), self.num_host_free));
        for (name, time) in times {
            let avg = time.total.checked_div(time.count).unwrap_or(0);
            let figures = [
                ("total", time.total),
                ("max", time.max),
                ("min", time.min),
                ("count", time.count),
                ("avg", avg),
            ];
            entries.extend(figures.map(|(figure, value)| (format!("{name}.{figure}"), value)));
        }
        entries
    }
}

pub(super) fn read(shared: &Shared) -> PinnedCacheStats {
    let counters = shared.counters();
    let (base, times, totals) = (counters.base(), counters.times(), totals(shared));
    let (held, held_peak) = (counters.held.current(), counters.held.peak());
    let (active, active_peak) = (less(totals.handed_out, totals.taken_back), shared.ledger().peak());
    let (allocations, allocated_bytes) =
        stats(held, held_peak, less(totals.pinned, base.pinned), less(totals.unpinned, base.unpinned));
    let (active_requests, active_bytes) = stats(
        active,
        active_peak,
        less(totals.handed_out, base.handed_out),
        less(totals.taken_back, base.taken_back),
    );
    PinnedCacheStats {
        allocations,
        allocated_bytes,
        active_requests,
        active_bytes,
        num_host_alloc: times.pins,
        num_host_free: times.unpins,
        host_alloc_time: times.pin,
        host_free_time: times.unpin,
    }
}

/// The figures of a count and of its bytes.
fn stats(current: Amount, peak: Amount, allocated: Amount, freed: Amount) -> (Stat, Stat) {
    let stat = |of: fn(Amount) -> u64| Stat {
        current: of(current),
        peak: of(peak).max(of(current)),
        allocated: of(allocated),
        freed: of(freed),
    };
    (stat(|amount| amount.count), stat(|amount| amount.bytes))
}

/// Everything that ever went up or down.
pub(super) fn totals(shared: &Shared) -> Base {
    let counters = shared.counters();
    let (active, handed_out) = shared.active_and_handed_out();
    let pinned = counters.pins();
    Base {
        handed_out,
        taken_back: less(handed_out, active),
        pinned,
        unpinned: less(pinned, counters.held.current()),
    }
}

fn less(all: Amount, left: Amount) -> Amount {
    Amount { count: all.count.saturating_sub(left.count), bytes: all.bytes.saturating_sub(left.bytes) }
}

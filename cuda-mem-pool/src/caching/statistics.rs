//! The figures of all heaps and the page source together.

use super::shared::Shared;
use super::slot::StreamSlot;
use crate::engine::paged::Piece;
use crate::primitive::{Ordering, lock};
use crate::statistics::{DeviceStatistics, PoolStat, Stat};

impl Shared {
    pub(super) fn statistics(&self) -> DeviceStatistics {
        let [small, large] = self.private.splits();
        let (oversize_blocks, oversize_segments) = self.oversize();
        let bytes_of_slabs = self.bytes_of_slabs();
        self.count_all_frees();
        let max_split_size = self.private.max_split_size();
        let mut counts = lock(&self.counts);
        counts.inactive_split.set(small.0, large.0);
        counts.inactive_split_bytes.set(small.1, large.1);
        counts.oversize_allocations.set(oversize_blocks);
        counts.oversize_segments.set(oversize_segments);
        let mut of_small = lock(&self.small);
        // Some of it may have gone back since.
        of_small.set(bytes_of_slabs.min(counts.reserved_bytes.large_pool.current));
        let reserved_bytes = cut_off(counts.reserved_bytes, *of_small);
        let mut statistics = DeviceStatistics { max_split_size, reserved_bytes, ..*counts };
        self.counter.read(&mut statistics);
        statistics
    }

    pub(super) fn reset_peak_statistics(&self) {
        self.count_all_frees();
        self.counter.reset_peak();
        let mut counts = lock(&self.counts);
        self.most_reserved.fetch_max(counts.reserved_bytes.all.peak, Ordering::Relaxed);
        counts.reset_peak();
        lock(&self.small).reset_peak();
    }

    /// The most that was ever held, whatever was reset.
    pub(super) fn most_reserved(&self) -> u64 {
        let counts = lock(&self.counts);
        counts.reserved_bytes.all.peak.max(self.most_reserved.load(Ordering::Relaxed))
    }

    pub(super) fn reset_accumulated_statistics(&self) {
        self.count_all_frees();
        self.counter.reset_accumulated();
        lock(&self.counts).reset_accumulated();
        lock(&self.small).reset_accumulated();
    }

    /// The blocks that somebody has, and the segments of private pools, that have as many bytes as are not cut up any more: as in PyTorch,
    /// where what grows by pages is no such segment.
    fn oversize(&self) -> (u64, u64) {
        let Some(least) = self.private.max_split_size() else { return (0, 0) };
        let (private, segments) = self.private.oversize(least);
        let pending = self.pending.freed();
        let is_oversize = |piece: &Piece| {
            piece.requested.is_some() && piece.size as u64 >= least && !pending.contains(&piece.address)
        };
        let count = |slot| self.pieces_of(slot).iter().filter(|piece| is_oversize(piece)).count() as u64;
        let blocks = self.slots.iter().map(count).fold(private, u64::saturating_add);
        (blocks, segments)
    }

    /// The bytes of the slabs of all heaps. Of a heap that another thread has right now, as many as it had when somebody last looked.
    fn bytes_of_slabs(&self) -> u64 {
        let of_slot = |slot: &StreamSlot| {
            if let Some(bytes) = slot.heap.try_with(|heap, _| heap.slab_bytes()) {
                slot.slab_bytes.store(bytes as u64, Ordering::Relaxed);
            }
            slot.slab_bytes.load(Ordering::Relaxed)
        };
        self.slots.iter().map(of_slot).fold(0, u64::saturating_add)
    }
}

/// Counts the bytes of slabs as memory of small blocks. All memory of the default pool was counted as that of large ones.
fn cut_off(reserved: PoolStat, of_small: Stat) -> PoolStat {
    let PoolStat { all, small_pool: small, large_pool: large } = reserved;
    let small_pool = Stat {
        current: small.current.saturating_add(of_small.current),
        peak: small.peak.saturating_add(of_small.peak).min(all.peak),
        allocated: small.allocated.saturating_add(of_small.allocated),
        freed: small.freed.saturating_add(of_small.freed),
    };
    let large_pool = Stat {
        current: large.current.saturating_sub(of_small.current),
        peak: large.peak,
        allocated: large.allocated.saturating_add(of_small.freed),
        freed: large.freed.saturating_add(of_small.allocated),
    };
    PoolStat { all, small_pool, large_pool }
}

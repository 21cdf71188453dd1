//! The figures of all heaps and the page source together.

use super::shared::Shared;
use crate::primitive::{Ordering, lock};
use crate::statistics::{DeviceStatistics, PoolStat, Stat};

impl Shared {
    pub(super) fn statistics(&self) -> DeviceStatistics {
        let [small, large] = self.private.splits();
        let page_bytes = self.page_bytes();
        let live = self.ledger.read();
        let max_split_size = self.private.max_split_size();
        let mut counts = lock(&self.counts);
        counts.inactive_split.set(small.0, large.0);
        counts.inactive_split_bytes.set(small.1, large.1);
        let mut pages = lock(&self.pages);
        pages.set(page_bytes);
        let reserved_bytes = cut_off(counts.reserved_bytes, *pages);
        DeviceStatistics { max_split_size, reserved_bytes, ..counts.with_live(&live) }
    }

    pub(super) fn reset_peak_statistics(&self) {
        self.count_all_left();
        self.ledger.reset_peak();
        let mut counts = lock(&self.counts);
        self.most_reserved.fetch_max(counts.reserved_bytes.all.peak, Ordering::Relaxed);
        counts.reset_peak();
        lock(&self.pages).reset_peak();
    }

    /// The most that was ever held, whatever was reset.
    pub(super) fn most_reserved(&self) -> u64 {
        let counts = lock(&self.counts);
        counts.reserved_bytes.all.peak.max(self.most_reserved.load(Ordering::Relaxed))
    }

    pub(super) fn reset_accumulated_statistics(&self) {
        self.count_all_left();
        self.ledger.reset_accumulated();
        lock(&self.counts).reset_accumulated();
        lock(&self.pages).reset_accumulated();
    }

    /// The bytes of pages for small blocks, when all frees are taken in.
    fn page_bytes(&self) -> u64 {
        let bytes = self.slots.iter().map(|slot| {
            slot.heap.with(|heap, guard| {
                self.drain(slot, heap, guard);
                guard.disarm();
                heap.page_bytes()
            })
        });
        bytes.fold(0, |sum, bytes| sum.saturating_add(bytes as u64))
    }
}

/// Pages are cut from what counts as memory of large blocks.
fn cut_off(reserved: PoolStat, pages: Stat) -> PoolStat {
    let PoolStat { all, small_pool: small, large_pool: large } = reserved;
    let small_pool = Stat {
        current: small.current.saturating_add(pages.current),
        peak: small.peak.saturating_add(pages.peak).min(all.peak),
        allocated: small.allocated.saturating_add(pages.allocated),
        freed: small.freed.saturating_add(pages.freed),
    };
    let large_pool = Stat {
        current: large.current.saturating_sub(pages.current),
        peak: large.peak,
        allocated: large.allocated.saturating_add(pages.freed),
        freed: large.freed.saturating_add(pages.allocated),
    };
    PoolStat { all, small_pool, large_pool }
}

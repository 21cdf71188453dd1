//! The figures of all heaps and the page source together.

use super::shared::Shared;
use crate::engine::paged::Splits;
use crate::primitive::{Ordering, lock};
use crate::statistics::DeviceStatistics;

impl Shared {
    pub(super) fn statistics(&self) -> DeviceStatistics {
        let [small, large] = self.splits();
        let live = self.ledger.read();
        let max_split_size = self.private.max_split_size();
        let mut counts = lock(&self.counts);
        counts.inactive_split.set(small.count, large.count);
        counts.inactive_split_bytes.set(small.bytes, large.bytes);
        DeviceStatistics { max_split_size, ..counts.with_live(&live) }
    }

    pub(super) fn reset_peak_statistics(&self) {
        self.count_all_left();
        self.ledger.reset_peak();
        let mut counts = lock(&self.counts);
        self.most_reserved.fetch_max(counts.reserved_bytes.all.peak, Ordering::Relaxed);
        counts.reset_peak();
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
    }

    /// What is free beside blocks, in pages and in ranges, when all frees are taken in.
    fn splits(&self) -> [Splits; 2] {
        let mut sums = self.private.splits();
        for slot in self.slots.iter() {
            let splits = slot.heap.with(|heap, guard| {
                self.drain(slot, heap, guard);
                guard.disarm();
                heap.splits()
            });
            for (sum, splits) in sums.iter_mut().zip(splits) {
                sum.add(splits.count, splits.bytes);
            }
        }
        sums
    }
}

//! The figures of all heaps and the page source together.

use super::shared::Shared;
use crate::engine::paged::Splits;
use crate::primitive::lock;
use crate::statistics::DeviceStatistics;

impl Shared {
    pub(super) fn statistics(&self) -> DeviceStatistics {
        let [small, large] = self.splits();
        let live = self.ledger.read();
        let mut counts = lock(&self.counts);
        counts.inactive_split.set(small.count, large.count);
        counts.inactive_split_bytes.set(small.bytes, large.bytes);
        counts.with_live(&live)
    }

    pub(super) fn reset_peak_statistics(&self) {
        self.ledger.reset_peak();
        lock(&self.counts).reset_peak();
    }

    pub(super) fn reset_accumulated_statistics(&self) {
        self.ledger.reset_accumulated();
        lock(&self.counts).reset_accumulated();
    }

    /// What is free beside blocks, in pages and in ranges, when all frees are taken in.
    fn splits(&self) -> [Splits; 2] {
        let mut sums = [Splits::default(); 2];
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

//! What tests see of a counter.

use super::*;
use crate::statistics::{Counting, PoolSize};

impl PeakCounter {
    /// As after many overlaps.
    pub(crate) fn be_shared(&self) {
        self.0.overlaps.store(ENOUGH + OVERLAP, Ordering::Relaxed);
    }
}

#[cfg(not(loom))]
impl PeakCounter {
    pub(crate) fn is_shared(&self) -> bool {
        self.0.is_shared()
    }

    pub(crate) fn shards(&self) -> usize {
        self.0.cells().count()
    }
}

impl Counting {
    /// Counts a block, whether a peak rises or not.
    pub(crate) fn allocate(&self, pool: PoolSize, bytes: usize, requested: usize) {
        if !self.allocate_below_peak(pool, bytes, requested) {
            self.allocate_at_peak(pool, bytes, requested);
        }
    }
}

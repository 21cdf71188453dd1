//! What tests see of a counter.

use super::*;

impl PeakCounter {
    /// As after many overlaps.
    pub(crate) fn be_concurrent(&self) {
        let mut tier = lock(&self.0.tier);
        self.0.rest_all(&mut tier);
        tier.is_concurrent = true;
    }
}

#[cfg(not(loom))]
impl PeakCounter {
    pub(crate) fn is_concurrent(&self) -> bool {
        lock(&self.0.tier).is_concurrent
    }

    pub(crate) fn is_active(&self, shard: &Shard) -> bool {
        lock(&self.0.tier).active.iter().any(|cells| Arc::ptr_eq(cells, &shard.0.cells))
    }

    pub(crate) fn shards(&self) -> usize {
        lock(&self.0.list).all.len()
    }
}

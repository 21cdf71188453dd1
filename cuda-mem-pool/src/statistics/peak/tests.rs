//! What tests see of a counter.

use super::*;

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

    /// Somebody has shards stopped, or waits for one to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.0.stopping.is_held()
    }

    pub(crate) fn shards(&self) -> usize {
        self.0.cells().count()
    }
}

//! Figures that are right at every moment, at the price of one atomic addition an event.

use super::classes::GRANULE;
use crate::primitive::{AtomicU64, Ordering};

/// Bits for the bytes, in granules: 256 TiB. Those above count things, 16 million of them.
const BYTES: u32 = 40;

/// How many things there are and how many bytes they have, now and at most. Sizes are multiples of [`GRANULE`].
///
/// Both numbers lie in one word, so that every sum that ever was is seen by whoever made it: no peak is missed.
/// They have their cache lines to themselves, because every thread writes them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Gauge {
    current: AtomicU64,
    peak_count: AtomicU64,
    /// In granules.
    peak_size: AtomicU64,
}

/// A count of things, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

impl Gauge {
    #[inline]
    pub(crate) fn add(&self, bytes: usize) {
        let one = pack(bytes);
        let now = self.current.fetch_add(one, Ordering::Relaxed).wrapping_add(one);
        raise(&self.peak_count, now >> BYTES);
        raise(&self.peak_size, now & ((1 << BYTES) - 1));
    }

    #[inline]
    pub(crate) fn subtract(&self, bytes: usize) {
        self.current.fetch_sub(pack(bytes), Ordering::Relaxed);
    }

    pub(crate) fn current(&self) -> Amount {
        let now = self.current.load(Ordering::Relaxed);
        Amount { count: now >> BYTES, bytes: (now & ((1 << BYTES) - 1)) * GRANULE as u64 }
    }

    pub(crate) fn peak(&self) -> Amount {
        let count = self.peak_count.load(Ordering::Relaxed);
        Amount { count, bytes: self.peak_size.load(Ordering::Relaxed) * GRANULE as u64 }
    }

    /// Has the peaks start anew from what there is now.
    pub(crate) fn reset_peak(&self) {
        let now = self.current();
        self.peak_count.store(now.count, Ordering::Relaxed);
        self.peak_size.store(now.bytes / GRANULE as u64, Ordering::Relaxed);
        // What came between the load and the stores is in the sum by now.
        let now = self.current();
        raise(&self.peak_count, now.count);
        raise(&self.peak_size, now.bytes / GRANULE as u64);
    }
}

/// A peak seldom moves: mostly this is a load.
#[inline]
fn raise(peak: &AtomicU64, value: u64) {
    if peak.load(Ordering::Relaxed) < value {
        peak.fetch_max(value, Ordering::Relaxed);
    }
}

#[inline]
fn pack(bytes: usize) -> u64 {
    (1 << BYTES) + (bytes / GRANULE) as u64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_keeps_count_bytes_and_both_peaks() {
        let gauge = Gauge::default();
        gauge.add(1 << 40);
        gauge.add(256);
        gauge.subtract(1 << 40);
        gauge.add(512);
        assert_eq!(gauge.current(), Amount { count: 2, bytes: 768 });
        assert_eq!(gauge.peak(), Amount { count: 2, bytes: (1 << 40) + 256 });
        gauge.reset_peak();
        assert_eq!(gauge.peak(), gauge.current());
    }
}

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

/// An [`Amount`] in one word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Packed(u64);

impl Amount {
    #[inline]
    pub(crate) fn add(&mut self, bytes: usize) {
        *self = self.plus(Self { count: 1, bytes: bytes as u64 });
    }

    #[inline]
    pub(crate) fn plus(self, other: Self) -> Self {
        Self { count: self.count.saturating_add(other.count), bytes: self.bytes.saturating_add(other.bytes) }
    }
}

impl Packed {
    /// One thing of so many bytes.
    #[inline]
    pub(crate) fn one(bytes: usize) -> Self {
        Self((1 << BYTES) + (bytes / GRANULE) as u64)
    }

    #[inline]
    fn count(self) -> u64 {
        self.0 >> BYTES
    }

    #[inline]
    pub(crate) fn bytes(self) -> usize {
        self.size() as usize * GRANULE
    }

    /// In granules.
    #[inline]
    fn size(self) -> u64 {
        self.0 & ((1 << BYTES) - 1)
    }

    #[inline]
    pub(crate) fn plus(self, other: Self) -> Self {
        Self(self.0.wrapping_add(other.0))
    }

    /// Whether both numbers are at least those of `other`.
    #[inline]
    pub(crate) fn covers(self, other: Self) -> bool {
        self.size() >= other.size() && self.count() >= other.count()
    }

    /// What is left without `other`, which it covers.
    #[inline]
    pub(crate) fn less(self, other: Self) -> Self {
        Self(self.0.wrapping_sub(other.0))
    }

    /// What is left without `other`, down to zero for each number.
    pub(crate) fn without(self, other: Self) -> Self {
        let count = self.count().saturating_sub(other.count());
        Self((count << BYTES) + self.size().saturating_sub(other.size()))
    }
}

impl Gauge {
    #[inline]
    pub(crate) fn add(&self, bytes: usize) {
        self.add_all(Packed::one(bytes));
    }

    #[inline]
    pub(crate) fn subtract(&self, bytes: usize) {
        self.subtract_all(Packed::one(bytes));
    }

    pub(crate) fn add_all(&self, amount: Packed) {
        // Acquire, for `raise`: if a reset read the sum before, its peaks are seen.
        let before = self.current.fetch_add(amount.0, Ordering::AcqRel);
        self.raise(Packed(before).plus(amount));
    }

    /// Adds what moves neither peak; else adds nothing and says false.
    pub(crate) fn add_below_peak(&self, amount: Packed) -> bool {
        let peak = |peak: &AtomicU64| peak.load(Ordering::Relaxed);
        let below = |now| {
            let sum = Packed(now).plus(amount);
            let fits = sum.count() <= peak(&self.peak_count) && sum.size() <= peak(&self.peak_size);
            fits.then_some(sum.0)
        };
        match self.current.fetch_update(Ordering::AcqRel, Ordering::Relaxed, below) {
            Ok(before) => {
                // The peaks may have been reset since they were looked at.
                self.raise(Packed(before).plus(amount));
                true
            }
            Err(_) => false,
        }
    }

    #[inline]
    pub(crate) fn subtract_all(&self, amount: Packed) {
        self.current.fetch_sub(amount.0, Ordering::Release);
    }

    pub(crate) fn current(&self) -> Amount {
        let now = Packed(self.current.load(Ordering::Acquire));
        Amount { count: now.count(), bytes: now.size() * GRANULE as u64 }
    }

    pub(crate) fn peak(&self) -> Amount {
        let count = self.peak_count.load(Ordering::Relaxed);
        Amount { count, bytes: self.peak_size.load(Ordering::Relaxed) * GRANULE as u64 }
    }

    /// Has the peaks start anew from what there is now.
    pub(crate) fn reset_peak(&self) {
        let now = Packed(self.current.load(Ordering::Relaxed));
        self.peak_count.store(now.count(), Ordering::Relaxed);
        self.peak_size.store(now.size(), Ordering::Relaxed);
        // Not a load: whoever adds before this is in the sum that it reads, and whoever adds after it sees the new peaks.
        let now = Packed(self.current.fetch_add(0, Ordering::AcqRel));
        self.raise(now);
    }

    /// Peaks seldom move: mostly this is two loads.
    #[inline]
    fn raise(&self, now: Packed) {
        raise(&self.peak_count, now.count());
        raise(&self.peak_size, now.size());
    }
}

#[inline]
fn raise(peak: &AtomicU64, value: u64) {
    if peak.load(Ordering::Relaxed) < value {
        peak.fetch_max(value, Ordering::Relaxed);
    }
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

    #[test]
    fn adding_below_the_peak_moves_neither() {
        let gauge = Gauge::default();
        assert!(!gauge.add_below_peak(Packed::one(256)));
        gauge.add(1024);
        gauge.subtract(1024);
        assert!(!gauge.add_below_peak(Packed::one(1280)), "too many bytes");
        assert!(gauge.add_below_peak(Packed::one(512)));
        assert!(!gauge.add_below_peak(Packed::one(256)), "too many things");
        assert_eq!(gauge.current(), Amount { count: 1, bytes: 512 });
        assert_eq!(gauge.peak(), Amount { count: 1, bytes: 1024 });
    }

    #[test]
    fn amounts_count_both_numbers() {
        let (small, large) = (Packed::one(256), Packed::one(1024));
        assert!(large.covers(small) && !small.covers(large));
        assert!(!large.covers(small.plus(small)), "one is not two");
        assert_eq!(small.plus(large).less(large), small);
        assert_eq!(small.plus(large).bytes(), 1280);
        assert_eq!(small.plus(small).without(large), Packed(1 << BYTES));
        assert_eq!(large.without(small.plus(small)), Packed(2));
    }
}

#[cfg(all(loom, test))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// However a reset meets additions, the peaks are not below the sum that is left.
    #[test]
    fn a_reset_misses_no_addition() {
        loom::model(|| {
            let gauge = Arc::new(Gauge::default());
            gauge.add(512);
            gauge.subtract(512);
            let other = thread::spawn({
                let gauge = Arc::clone(&gauge);
                move || {
                    if !gauge.add_below_peak(Packed::one(256)) {
                        gauge.add(256);
                    }
                }
            });
            gauge.reset_peak();
            other.join().unwrap();
            assert_eq!(gauge.current(), Amount { count: 1, bytes: 256 });
            let peak = gauge.peak();
            assert!(peak.count >= 1 && peak.bytes >= 256, "{peak:?}");
        });
    }
}

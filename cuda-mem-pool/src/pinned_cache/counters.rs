//! What is counted while the allocator works.

use std::time::Duration;

use crate::engine::stats::{Amount, Gauge};
use crate::primitive::{AtomicU64, Mutex, Ordering, lock};

/// All counts of one allocator but those that threads keep for themselves.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Segments.
    pub(super) held: Gauge,
    /// Blocks that were handed out past the thread caches.
    pub(super) handed_out: Total,
    pins: Total,
    times: Mutex<Times>,
    base: Mutex<Base>,
}

/// Things that happened, and their bytes. Never goes down.
#[derive(Debug, Default)]
pub(super) struct Total {
    count: AtomicU64,
    bytes: AtomicU64,
}

/// How long a kind of driver call took, in microseconds. [`PinnedCacheStats`](super::PinnedCacheStats) has an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DurationStat {
    /// All calls together.
    pub total: u64,
    /// The longest.
    pub max: u64,
    /// The shortest; 0 without calls.
    pub min: u64,
    /// How many there were.
    pub count: u64,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Times {
    pub(super) pin: DurationStat,
    pub(super) unpin: DurationStat,
    pub(super) pins: u64,
    pub(super) unpins: u64,
}

/// What the accumulated figures are counted from, since they were last reset.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Base {
    pub(super) handed_out: Amount,
    pub(super) taken_back: Amount,
    pub(super) pinned: Amount,
    pub(super) unpinned: Amount,
}

impl DurationStat {
    /// The mean; 0 without calls.
    #[must_use]
    pub fn avg(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.total as f64 / self.count as f64 }
    }

    fn add(&mut self, took: Duration) {
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.min = if self.count == 0 { micros } else { self.min.min(micros) };
        self.max = self.max.max(micros);
        self.total = self.total.saturating_add(micros);
        self.count += 1;
    }
}

impl Total {
    pub(super) fn add(&self, bytes: usize) {
        self.add_all(Amount { count: 1, bytes: bytes as u64 });
    }

    pub(super) fn add_all(&self, amount: Amount) {
        self.count.fetch_add(amount.count, Ordering::Relaxed);
        self.bytes.fetch_add(amount.bytes, Ordering::Relaxed);
    }

    pub(super) fn amount(&self) -> Amount {
        Amount { count: self.count.load(Ordering::Relaxed), bytes: self.bytes.load(Ordering::Relaxed) }
    }
}

impl Counters {
    pub(super) fn pinned(&self, bytes: usize, took: Duration) {
        self.held.add(bytes);
        self.pins.add(bytes);
        let mut times = lock(&self.times);
        times.pin.add(took);
        times.pins += 1;
    }

    pub(super) fn unpinned(&self, bytes: usize, took: Duration) {
        self.held.subtract(bytes);
        let mut times = lock(&self.times);
        times.unpin.add(took);
        times.unpins += 1;
    }

    pub(super) fn pins(&self) -> Amount {
        self.pins.amount()
    }

    pub(super) fn times(&self) -> Times {
        *lock(&self.times)
    }

    pub(super) fn base(&self) -> Base {
        *lock(&self.base)
    }

    pub(super) fn reset_accumulated(&self, base: Base) {
        *lock(&self.base) = base;
        *lock(&self.times) = Times::default();
    }
}

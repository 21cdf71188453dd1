//! [`PeakCounter`]: the peaks of a sum that many heaps have a part in, without a word that every allocation writes.
//!
//! Each heap counts in a [`Shard`] of its own, which is its lock too. In the *serial* tier one shard alone is active, that is, may
//! change; in the *concurrent* tier all may be, and publish parts of what they have. `docs/allocator.md`, "Counting", says how exact each
//! is, and when the counter goes from one to the other.
//!
//! Nobody who has an active shard waits: the mutex may be held by a thread that waits for just that one.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use super::device::DeviceStatistics;
use super::figures::{AtomicFigures, Figures, Row, UNLIMITED, pool_stats};
use super::shard::{Cells, Shard};
use crate::primitive::{AtomicUsize, Mutex, Ordering, lock, try_lock};

/// How far one shard's part of a pool may be above what is published, at least: half of what both pools together may.
const QUANTUM: Row = if cfg!(all(loom, test)) { [2; 5] } else { [128, 512 << 10, 128, 512 << 10, 512 << 10] };
/// Beyond these it is one part of the peak in so many.
const PARTS: i64 = 2048;
/// Entering the concurrent tier takes this many points; an activation that finds an overlap adds [`OVERLAP`], another one takes one away.
const ENOUGH: u32 = if cfg!(all(loom, test)) { 1 } else { 64 };
const OVERLAP: u32 = 16;
/// How many times in a row one shard alone has published when the counter returns to the serial tier.
const ALONE: i64 = if cfg!(all(loom, test)) { 1 } else { 64 };

/// Counts blocks in shards, one for each heap, and keeps the peaks of their sum.
#[derive(Debug, Clone, Default)]
pub(crate) struct PeakCounter(Arc<Inner>);

#[derive(Debug, Default)]
pub(super) struct Inner {
    tier: Mutex<Tier>,
    list: Mutex<List>,
    /// The sums of what all shards have published. A shard that is not active has published all that it has.
    sums: AtomicFigures,
    /// The most that `sums` were; in the serial tier without what the active shard has reached since.
    pub(super) peaks: AtomicFigures,
    /// The most active bytes before the last reset of the peaks.
    most_active: AtomicI64,
    /// Who has published last.
    publisher: AtomicUsize,
}

#[derive(Debug, Default)]
struct Tier {
    is_concurrent: bool,
    active: Vec<Arc<Cells>>,
    overlaps: u32,
}

/// All shards. Nobody who has it waits for anything; whoever reads has it, so that readers find the tier free if nobody counts.
#[derive(Debug, Default)]
struct List {
    all: Vec<Arc<Cells>>,
    /// Those whose heaps are gone. What they have counted stays counted, and the next heaps take them over.
    free: Vec<Arc<Cells>>,
    /// What had been allocated and freed at the last reset.
    base: (Figures, Figures),
}

impl PeakCounter {
    pub(crate) fn shard(&self) -> Shard {
        let mut list = lock(&self.0.list);
        let cells = list.free.pop().unwrap_or_else(|| {
            let cells = Arc::<Cells>::default();
            list.all.push(Arc::clone(&cells));
            cells
        });
        drop(list);
        Shard::new(Arc::clone(&self.0), cells)
    }

    /// Sets the figures of blocks. They are exact if no call is under way; calls that are may each be in some of them and not in
    /// others. Takes no shard's lock.
    pub(crate) fn read(&self, statistics: &mut DeviceStatistics) {
        let list = lock(&self.0.list);
        let (now, allocated) = list.sums();
        let peak = self.0.peak().max(now);
        let (base_allocated, base_freed) = list.base;
        let freed = allocated.minus(now).minus(base_freed);
        [
            statistics.allocation,
            statistics.allocated_bytes,
            statistics.active,
            statistics.active_bytes,
            statistics.requested_bytes,
        ] = pool_stats(now, peak, allocated.minus(base_allocated), freed);
    }

    /// Active bytes, as [`PeakCounter::read`] has them.
    pub(crate) fn active_bytes(&self) -> usize {
        lock(&self.0.list).sums().0.active_bytes()
    }

    /// The most active bytes ever: resets leave it, so that what a program does to its statistics changes no decision.
    pub(crate) fn peak_active_bytes(&self) -> usize {
        let list = lock(&self.0.list);
        // First the peak, which a reset moves to the other.
        let peak = self.0.peak().max(list.sums().0).active_bytes();
        peak.max(usize::try_from(self.0.most_active.load(Ordering::Relaxed)).unwrap_or(0))
    }

    /// Has the peaks start anew from what there is. Waits a moment for those who count right now; not for who has a shard.
    pub(crate) fn reset_peak(&self) {
        let inner = &*self.0;
        let mut tier = lock(&inner.tier);
        inner.rest_all(&mut tier);
        *tier = Tier::default();
        let [[_, _, _, most, _], ..] = inner.peaks.load().0;
        inner.most_active.fetch_max(most, Ordering::Relaxed);
        inner.peaks.store(inner.sums.load());
    }

    pub(crate) fn reset_accumulated(&self) {
        let mut list = lock(&self.0.list);
        let (now, allocated) = list.sums();
        list.base = (allocated, allocated.minus(now));
    }
}

impl List {
    /// What there is, and what was ever allocated.
    fn sums(&self) -> (Figures, Figures) {
        let add = |(now, allocated): (Figures, Figures), cells: &Arc<Cells>| {
            // In this order: what is allocated meanwhile does not make the freed figures negative.
            (now.plus(cells.now()), allocated.plus(cells.allocated()))
        };
        self.all.iter().fold(Default::default(), add)
    }
}

impl Inner {
    /// Has a shard count that is not active. Its holder is the calling thread; the holders of active ones are waited for.
    #[cold]
    pub(super) fn activate(&self, cells: &Arc<Cells>) {
        let mut tier = lock(&self.tier);
        if !tier.is_concurrent {
            let overlaps = self.rest_all(&mut tier);
            tier.overlaps = if overlaps { tier.overlaps + OVERLAP } else { tier.overlaps.saturating_sub(1) };
            tier.is_concurrent = tier.overlaps >= ENOUGH;
        }
        self.begin(&mut tier, cells);
    }

    fn begin(&self, tier: &mut Tier, cells: &Arc<Cells>) {
        match tier.is_concurrent {
            true => cells.begin_publishing(self),
            false => cells.begin_alone(self.peaks.load().minus(self.others(cells))),
        }
        tier.active.push(Arc::clone(cells));
    }

    /// Takes the activity of all active shards; whether one of them had to be waited for.
    fn rest_all(&self, tier: &mut Tier) -> bool {
        let is_concurrent = tier.is_concurrent;
        let rest = |waited, cells: Arc<Cells>| {
            let waits = cells.deactivate();
            self.rest(&cells, is_concurrent);
            waited | waits
        };
        tier.active.drain(..).fold(false, rest)
    }

    fn rest(&self, cells: &Cells, is_concurrent: bool) {
        if !is_concurrent {
            self.peaks.raise(self.reached(cells));
        }
        self.publish(cells, cells.now());
    }

    /// Makes `cells`, whose holder is the calling thread, the only active shard, unless somebody else counts right now.
    pub(super) fn try_alone(&self, cells: &Arc<Cells>) -> bool {
        self.publisher.store(0, Ordering::Relaxed);
        let Some(mut tier) = try_lock(&self.tier) else { return false };
        tier.active.retain(|other| {
            let stays = Arc::ptr_eq(other, cells) || !other.try_deactivate();
            if !stays {
                self.rest(other, true);
            }
            stays
        });
        if tier.active.len() > 1 {
            return false;
        }
        self.rest(cells, true);
        *tier = Tier::default();
        self.begin(&mut tier, cells);
        true
    }

    /// Sets what a shard has in the sums to `figures`.
    pub(super) fn publish(&self, cells: &Cells, figures: Figures) {
        let sums = self.sums.add(figures.minus(cells.published.load()));
        cells.published.store(figures);
        self.peaks.raise(sums);
    }

    /// By how much each figure of a shard may be above what it has published. What both pools have follows from each.
    pub(super) fn quantum(&self) -> Figures {
        let [all, ..] = self.peaks.load().0;
        let pool = std::array::from_fn(|figure| QUANTUM[figure].max(all[figure] / PARTS));
        Figures([[UNLIMITED; 5], pool, pool])
    }

    /// Notes who publishes; whether nobody else has for long.
    pub(super) fn is_alone(&self, cells: &Cells) -> bool {
        let this = std::ptr::from_ref(cells).addr();
        let mut times = cells.times.load(Ordering::Relaxed) + 1;
        if self.publisher.load(Ordering::Relaxed) != this {
            self.publisher.store(this, Ordering::Relaxed);
            times = 0;
        }
        cells.times.store(times, Ordering::Relaxed);
        times >= ALONE
    }

    pub(super) fn others(&self, cells: &Cells) -> Figures {
        self.sums.load().minus(cells.published.load())
    }

    /// The peaks with what the active shard has reached. While its activity moves they are near enough without.
    fn peak(&self) -> Figures {
        let merged = self.peaks.load();
        match try_lock(&self.tier) {
            Some(tier) if !tier.is_concurrent => {
                tier.active.iter().fold(merged, |peak, cells| peak.max(self.reached(cells)))
            }
            _ => merged,
        }
    }

    /// The most that the sums were while a shard was alone.
    fn reached(&self, cells: &Cells) -> Figures {
        self.others(cells).plus(cells.most())
    }

    /// A heap is gone; nobody has its shard.
    pub(super) fn give_back(&self, cells: &Arc<Cells>) {
        lock(&self.list).free.push(Arc::clone(cells));
    }
}

#[cfg(test)]
mod tests;

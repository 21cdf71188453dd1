//! [`PeakCounter`]: the peaks of a sum that many heaps have a part in, without a word that every allocation writes.
//!
//! Each heap counts in a [`Shard`] of its own, which is its lock too, up to limits. The limits of all shards add up to the peaks at most, so
//! whoever stays within its own raises none. Whoever reaches them borrows from others what they have left. Where they have too little, all
//! shards are stopped and added up: only then does a peak rise. `docs/allocator.md`, "Counting", says how exact it is.
//!
//! Whoever has a shard only tries to take others, and may wait for the right to stop them. Whoever has that waits for no shard whose holder
//! does ([`Cells::stop`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU32};

use super::device::DeviceStatistics;
use super::figures::{AtomicFigures, Figures, Room, Row, Table, pool_stats};
use super::shard::{Cells, Shard, Spin};
use crate::primitive::{Mutex, Ordering, lock};
use crate::shelves::Shelves;

/// How far all limits together may be above the peaks where calls overlap, so that threads that allocate more and more seldom stop each other.
const QUANTUM: Row = if cfg!(all(loom, test)) { [2; 5] } else { [128, 512 << 10, 128, 512 << 10, 512 << 10] };
/// Beyond these it is one part of the peak in so many.
const PARTS: i64 = 2048;
/// Calls overlap where there are so many points. A stop that finds an overlap adds [`OVERLAP`], another one takes one away.
const ENOUGH: u32 = if cfg!(all(loom, test)) { 1 } else { 64 };
const OVERLAP: u32 = 16;

/// Counts blocks in shards, one for each heap, and keeps the peaks of their sum.
#[derive(Debug, Clone, Default)]
pub(crate) struct PeakCounter(Arc<Inner>);

#[derive(Debug, Default)]
pub(super) struct Inner {
    shards: Shelves<Arc<Cells>>,
    list: Mutex<List>,
    /// Whoever has it may stop shards.
    stopping: Spin,
    /// Points of overlaps. For whoever may stop shards.
    overlaps: AtomicU32,
    /// The most that the sums of all shards were.
    peaks: AtomicFigures,
    /// The most active bytes before the last reset of the peaks.
    most_active: AtomicI64,
}

#[derive(Debug, Default)]
struct List {
    /// Those whose heaps are gone. What they have counted stays counted, and the next heaps take them over.
    free: Vec<Arc<Cells>>,
    /// What had been allocated and freed at the last reset.
    base: (Figures, Figures),
}

impl PeakCounter {
    pub(crate) fn shard(&self) -> Shard {
        let inner = &*self.0;
        // Not while shards are stopped: whoever has them go on would let this one go, too.
        inner.stopping.take();
        let mut list = lock(&inner.list);
        let cells = list.free.pop().unwrap_or_else(|| {
            let cells = Arc::<Cells>::default();
            // Millions have room: the heaps' own numbers end before.
            let _ = inner.shards.add(inner.shards.iter().count() as u32, Arc::clone(&cells));
            cells
        });
        drop(list);
        inner.stopping.give_back();
        Shard::new(Arc::clone(&self.0), cells)
    }

    /// Sets the figures of blocks. They are exact if no call is under way; calls that are may each be in some of them and not in
    /// others. A peak is at least what there is now. Takes no shard's lock.
    pub(crate) fn read(&self, statistics: &mut DeviceStatistics) {
        let (base_allocated, base_freed) = lock(&self.0.list).base;
        let now = self.0.now();
        let peak = self.0.peaks.load().max(now);
        // In this order: what is allocated meanwhile does not make the freed figures negative.
        let allocated = self.0.sum(Cells::allocated);
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
        self.0.now().active_bytes()
    }

    /// The most active bytes ever: resets leave it, so that what a program does to its statistics changes no decision.
    pub(crate) fn peak_active_bytes(&self) -> usize {
        // First the peak, which a reset moves to the other.
        let peak = self.0.peaks.load().max(self.0.now()).active_bytes();
        peak.max(usize::try_from(self.0.most_active.load(Ordering::Relaxed)).unwrap_or(0))
    }

    /// Has the peaks start anew from what there is. Waits a moment for those who have a shard, as the next one does.
    pub(crate) fn reset_peak(&self) {
        self.0.while_stopped(|inner| {
            let [[_, _, _, most, _], ..] = inner.peaks.load().0;
            inner.most_active.fetch_max(most, Ordering::Relaxed);
            inner.peaks.store(inner.now());
            inner.overlaps.store(0, Ordering::Relaxed);
            inner.cells().for_each(|cells| cells.set_limits(cells.now(), Room::default()));
        });
    }

    pub(crate) fn reset_accumulated(&self) {
        let (now, allocated) = self.0.while_stopped(|inner| (inner.now(), inner.sum(Cells::allocated)));
        lock(&self.0.list).base = (allocated, allocated.minus(now));
    }
}

impl Inner {
    /// Whether a block is counted that is beyond the limits of its shard, whose holder is the calling thread. If a peak may rise it is.
    #[cold]
    #[inline(never)]
    pub(super) fn count_beyond(&self, cells: &Cells, block: Figures, may_rise: bool) -> bool {
        if !may_rise {
            return self.borrow(cells, block, Cells::try_lend);
        }
        cells.take_at_rest(&self.stopping);
        // All can be asked now: those that somebody has, and those that are at rest.
        if !self.borrow(cells, block, Cells::lend) {
            self.settle(cells, block);
        }
        self.stopping.give_back();
        true
    }

    /// Has the limits of a shard rise, for a block, by what others have left; whether they had enough.
    fn borrow(&self, own: &Cells, block: Figures, lend: fn(&Cells, Room) -> Room) -> bool {
        let mut missing = own.now().plus(block).limited().minus(own.limits());
        // Each in its turn, so that all have as much left in time.
        let from = own.lender.load(Ordering::Relaxed);
        let lenders = (from..).map_while(|number| Some((number, self.shards.get(number)?)));
        let before = (0..from).map_while(|number| Some((number, self.shards.get(number)?)));
        for (number, other) in lenders.chain(before) {
            if !missing.exceeds(Room::default()) {
                break;
            }
            if !std::ptr::eq(own, &**other) {
                let lent = lend(other, missing);
                own.raise_limits(lent);
                own.lender.store(number + 1, Ordering::Relaxed);
                missing = missing.minus(lent);
            }
        }
        !missing.exceeds(Room::default())
    }

    /// Adds up all shards and a block, raises the peaks, and shares what is left below them: half of it goes to this shard.
    fn settle(&self, own: &Cells, block: Figures) {
        let waited = self.stop_others(Some(own));
        let points = self.overlaps.load(Ordering::Relaxed);
        let points = if waited { points.min(ENOUGH) + OVERLAP } else { points.saturating_sub(1) };
        self.overlaps.store(points, Ordering::Relaxed);
        let now = self.now().plus(block);
        let peaks = self.peaks.load().max(now);
        self.peaks.store(peaks);
        let left = peaks.minus(now).room();
        let left = if self.is_shared() { left.max(quantum(peaks)) } else { left };
        let others = self.others(Some(own)).count() as i64;
        let part = left.map(|left| left / (2 * others.max(1)));
        self.others(Some(own)).for_each(|other| other.set_limits(other.now(), part));
        own.set_limits(own.now().plus(block), left.minus(part.map(|part| part.wrapping_mul(others))));
        self.resume_others(Some(own));
    }

    /// Runs `body` while nobody changes a shard. The calling thread has none.
    fn while_stopped<R>(&self, body: impl FnOnce(&Self) -> R) -> R {
        self.stopping.take();
        self.stop_others(None);
        let result = body(self);
        self.resume_others(None);
        self.stopping.give_back();
        result
    }

    fn is_shared(&self) -> bool {
        self.overlaps.load(Ordering::Relaxed) >= ENOUGH
    }

    /// Has nobody else change a shard; whether somebody had one.
    fn stop_others(&self, own: Option<&Cells>) -> bool {
        self.others(own).fold(false, |waited, cells| waited | cells.stop())
    }

    fn resume_others(&self, own: Option<&Cells>) {
        self.others(own).for_each(Cells::resume);
    }

    fn others<'i>(&'i self, own: Option<&'i Cells>) -> impl Iterator<Item = &'i Cells> {
        self.cells().filter(move |cells| own.is_none_or(|own| !std::ptr::eq(own, *cells)))
    }

    fn cells(&self) -> impl Iterator<Item = &Cells> {
        self.shards.iter().map(|cells| &**cells)
    }

    fn sum(&self, of: impl Fn(&Cells) -> Figures) -> Figures {
        self.cells().fold(Figures::default(), |sum, cells| sum.plus(of(cells)))
    }

    /// What there is. It is exact while all shards are stopped. Else what was freed meanwhile is left out, and never what was freed before
    /// is in it: all that was added is read before all that was taken away.
    fn now(&self) -> Figures {
        let added = self.sum(Cells::added);
        added.minus(self.sum(Cells::taken))
    }

    /// A heap is gone; nobody has its shard.
    pub(super) fn give_back(&self, cells: &Arc<Cells>) {
        lock(&self.list).free.push(Arc::clone(cells));
    }
}

fn quantum(peaks: Figures) -> Room {
    let row = |row: Row| std::array::from_fn(|figure| QUANTUM[figure].max(row[figure] / PARTS));
    Table(peaks.0.map(row)).limited()
}

#[cfg(test)]
mod tests;

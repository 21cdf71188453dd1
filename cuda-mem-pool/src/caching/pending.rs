//! Blocks that other streams use beside their own.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cuda_mem_core::{CaptureId, CapturePast, CapturePoint, Stream, StreamId, UsePoint, Uses};

use super::callbacks::{CallWatch, DriverCall};
use super::slot::StreamSlot;
use crate::engine::paged::{BlockNumber, goes_first};
use crate::error::Result;
use crate::mempool_id::MempoolId;
use crate::primitive::{AtomicU64, AtomicUsize, Mutex, Ordering, are_over, lock, lock_over_calls};

/// Uses by streams other than a block's own: those of blocks in use, and of freed ones that wait until they are over.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// How many blocks in use have such uses, so that the usual free costs one load.
    used_blocks: AtomicUsize,
    used: Mutex<HashMap<u64, Used>>,
    freed: Mutex<Vec<Waiting>>,
    /// Each freed block has a clone until it is free: those beyond the list's length are of blocks that a thread has taken out.
    counted: Arc<()>,
}

/// The recorded uses of a block.
#[derive(Debug)]
pub(super) struct Used {
    pub(super) uses: Uses,
    /// The capture that all of it is part of, if that is known.
    pub(super) capture: Option<CaptureId>,
}

/// Where the streams of a block stood in a capture when it was freed.
#[derive(Debug)]
pub(super) struct Captured {
    /// The stream that it belongs to, by id.
    pub(super) owner: u64,
    pub(super) points: Vec<CapturePoint>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Freed {
    pub(super) address: u64,
    pub(super) heap: u32,
    pub(super) number: BlockNumber,
    pub(super) size: usize,
    pub(super) pool: MempoolId,
}

/// A block that was freed while streams still used it.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) block: Freed,
    /// None before points could be recorded, because a stream captures.
    pub(super) points: Option<Vec<UsePoint>>,
    uses: Uses,
    /// Where to look for their end before that of their capture, if there.
    captured: Option<Captured>,
    _counted: Arc<()>,
}

impl Pending {
    #[inline]
    pub(super) fn has_uses(&self) -> bool {
        self.used_blocks.load(Ordering::Relaxed) > 0
    }

    /// Enters a stream as a user of a block, as part of a capture if that is known.
    #[cold]
    pub(super) fn record_stream(
        &self,
        address: u64,
        stream: &Stream,
        capture: Option<CaptureId>,
    ) -> Result<()> {
        match lock_over_calls(&self.used).entry(address) {
            Entry::Occupied(known) => {
                let used = known.into_mut();
                used.uses.record_stream(stream)?;
                used.capture = used.capture.filter(|known| Some(*known) == capture);
            }
            Entry::Vacant(place) => {
                let uses = Uses::new();
                uses.record_stream(stream)?;
                place.insert(Used { uses, capture });
                self.used_blocks.fetch_add(1, Ordering::Release);
            }
        }
        Ok(())
    }

    /// The uses of a block that is freed now.
    #[cold]
    pub(super) fn take_uses(&self, address: u64) -> Option<Used> {
        let used = lock(&self.used).remove(&address)?;
        self.used_blocks.fetch_sub(1, Ordering::Release);
        Some(used)
    }

    /// Has a freed block wait until no use runs any more.
    pub(super) fn push(
        &self,
        block: Freed,
        mut uses: Uses,
        captured: Option<Captured>,
        observer: &CallWatch,
    ) {
        let points = record(&mut uses, observer).ok();
        self.put_back(Waiting { block, points, uses, captured, _counted: Arc::clone(&self.counted) });
    }

    /// The blocks whose uses are over, of those that may come back. Each stream is asked up to its first point that is not reached.
    pub(super) fn poll(&self, observer: &CallWatch, may_come: impl Fn(&Freed) -> bool) -> Vec<Waiting> {
        let mut behind = Vec::new();
        self.take(|waiting| may_come(&waiting.block) && waiting.is_over(observer, &mut behind))
    }

    /// As [`Pending::poll`], of the blocks of one heap that go before one of this size.
    pub(super) fn poll_for(&self, slot: &StreamSlot, size: usize, observer: &CallWatch) -> Vec<Waiting> {
        let (mut behind, left) = (Vec::new(), SizeSet::default());
        let is_done = |waiting: &mut Waiting| {
            let Freed { heap, size: waits, .. } = waiting.block;
            let is_first = heap == slot.number && goes_first(waits, size);
            let is_done = is_first && waiting.is_over(observer, &mut behind);
            if heap == slot.number && !is_done {
                left.add(waits);
            }
            is_done
        };
        self.take_and(is_done, || slot.waiting.set(&left))
    }

    /// The points that freed blocks wait for.
    pub(super) fn points(&self, is_wanted: impl Fn(&Freed) -> bool) -> Vec<UsePoint> {
        let freed = lock(&self.freed);
        let wanted = freed.iter().filter(|waiting| is_wanted(&waiting.block));
        wanted.filter_map(|waiting| waiting.points.clone()).flatten().collect()
    }

    /// Whether a freed block of the stream may come back before its capture ends.
    pub(super) fn has_captured(&self, owner: u64) -> bool {
        lock(&self.freed).iter().any(|waiting| waiting.captured.as_ref().is_some_and(|it| it.owner == owner))
    }

    /// The freed blocks of a stream whose uses all come before where it stands in its capture.
    pub(super) fn take_passed(&self, owner: u64, past: &CapturePast) -> Vec<Waiting> {
        let passed = |captured: &Captured| {
            captured.owner == owner && captured.points.iter().all(|point| past.contains(point))
        };
        self.take(|waiting| waiting.captured.as_ref().is_some_and(passed))
    }

    pub(super) fn take(&self, is_wanted: impl FnMut(&mut Waiting) -> bool) -> Vec<Waiting> {
        self.take_and(is_wanted, || {})
    }

    /// With what is done before anybody else has the blocks.
    fn take_and(&self, is_wanted: impl FnMut(&mut Waiting) -> bool, done: impl FnOnce()) -> Vec<Waiting> {
        let mut freed = lock_over_calls(&self.freed);
        let taken = freed.extract_if(.., is_wanted).collect();
        done();
        taken
    }

    /// Whether a thread has freed blocks taken out.
    pub(super) fn is_out(&self) -> bool {
        let listed = lock(&self.freed);
        Arc::strong_count(&self.counted) > listed.len() + 1
    }

    /// Waits for all uses; what each wait said.
    pub(super) fn wait(&self) -> Vec<cuda_mem_core::Result<()>> {
        let used = lock_over_calls(&self.used).values().map(|used| used.uses.wait()).collect::<Vec<_>>();
        let freed =
            lock_over_calls(&self.freed).iter().map(|waiting| waiting.uses.wait()).collect::<Vec<_>>();
        used.into_iter().chain(freed).collect()
    }

    /// Whether a freed block of such an address waits.
    pub(super) fn has_freed(&self, is_it: impl Fn(u64) -> bool) -> bool {
        lock(&self.freed).iter().any(|waiting| is_it(waiting.block.address))
    }

    /// The addresses of all freed blocks.
    pub(super) fn freed(&self) -> HashSet<u64> {
        lock(&self.freed).iter().map(|waiting| waiting.block.address).collect()
    }

    /// Enters a freed block.
    pub(super) fn put_back(&self, waiting: Waiting) {
        lock(&self.freed).push(waiting);
    }
}

impl Waiting {
    fn is_over(&mut self, observer: &CallWatch, behind: &mut Vec<StreamId>) -> bool {
        let is_reached = |point: &UsePoint| observer.watch(|| point.is_reached(), |_| DriverCall::Query);
        are_over(&mut self.points, behind, || record(&mut self.uses, observer), is_reached)
    }

    /// Has the host wait for the uses.
    pub(super) fn wait(&self) -> Result<()> {
        self.points.iter().flatten().try_for_each(|point| Ok(point.wait()?))
    }

    /// As [`Waiting::wait`], behind points that are recorded now where there are none, or those that there are say nothing.
    pub(super) fn end(&mut self, observer: &CallWatch) -> Result<()> {
        if self.points.is_none() || self.wait().is_err() {
            self.points = None;
            self.points = Some(record(&mut self.uses, observer)?);
            self.wait()?;
        }
        Ok(())
    }

    /// Lets a stream wait for the uses, by their points; whether it does.
    pub(super) fn make_wait(&self, stream: &Stream, observer: &CallWatch) -> bool {
        let told = |point: &UsePoint| {
            let of = point.stream().id();
            DriverCall::StreamWait { stream: stream.id(), of, event: None }
        };
        // Behind the points: what the streams were given since has nothing to do with the block.
        let order = |points: &[UsePoint]| points.iter().try_for_each(|point| point.order(stream));
        self.points.as_deref().is_some_and(|points| {
            observer.watch_all(|| order(points), |()| points.iter().map(told).collect()).is_ok()
        })
    }
}

/// The points of uses, which are recorded now; an error if that cannot be because a stream captures.
fn record(uses: &mut Uses, observer: &CallWatch) -> cuda_mem_core::Result<Vec<UsePoint>> {
    let told = |point: &UsePoint| DriverCall::Record { stream: point.stream().id(), event: None };
    observer.watch_all(|| uses.points(), |points| points.iter().map(told).collect())
}

/// Of which sizes something may be there that goes before one of a size. Sizes share bits: it may say yes for no reason, and never no for none.
#[derive(Debug, Default)]
pub(super) struct SizeSet(AtomicU64);

impl SizeSet {
    #[inline]
    pub(super) fn may_have(&self, size: usize) -> bool {
        let bits = self.0.load(Ordering::Relaxed);
        bits != 0 && (bits & bit(size) != 0 || goes_first(0, size))
    }

    pub(super) fn add(&self, size: usize) {
        self.0.fetch_or(bit(size), Ordering::Relaxed);
    }

    /// Makes it the same as another, which is read under a lock. Whoever adds a size has entered it under the same lock before.
    pub(super) fn set(&self, other: &Self) {
        self.0.store(other.0.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Sizes are multiples of 512, and often powers of two: the highest bits of a product tell those apart.
#[inline]
const fn bit(size: usize) -> u64 {
    1 << ((size as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 58)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_freed_block_that_waits_costs_other_frees_nothing() {
        let (pending, observer) = (Pending::default(), CallWatch::default());
        let number = BlockNumber(0);
        let block = Freed { address: 512, heap: 0, number, size: 512, pool: MempoolId::NONE };
        pending.push(block, Uses::new(), None, &observer);
        assert!(!pending.has_uses());
        assert_eq!(pending.poll(&observer, |_| true).len(), 1);
    }

    #[test]
    fn what_was_added_is_there_until_the_sizes_are_set() {
        let set = SizeSet::default();
        assert!((0..1000).all(|step| !set.may_have(step * 512)));
        set.add(1 << 20);
        assert!(set.may_have(1 << 20) && !set.may_have(2 << 20));
        let other = SizeSet::default();
        [512, 2 << 20].into_iter().for_each(|size| other.add(size));
        set.set(&other);
        assert!(set.may_have(512) && set.may_have(2 << 20) && !set.may_have(1 << 20));
        let powers = (9..40).map(|power| bit(1 << power)).collect::<HashSet<_>>();
        assert!(powers.len() > 20, "sizes that programs have are told apart: {}", powers.len());
    }
}

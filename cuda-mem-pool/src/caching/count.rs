//! How a block that is handed out is counted.
//!
//! What other threads freed may have been left to a heap, and counts when that is taken next. A peak that rose meanwhile would be higher
//! than what there was at any moment. So before one may rise all that was left is taken in; below the peaks nothing depends on it. What was
//! left to a heap whose holder may wait for this thread, because it gets memory or raises a peak too, counts behind that.

use super::allocate::{Request, pool_of};
use super::shared::Shared;
use super::slot::StreamSlot;
use crate::engine::paged::StreamHeap;
use crate::statistics::{PoolSize, Shard, ShardGuard};

impl Shared {
    /// Counts a block of a heap.
    #[inline(always)]
    pub(super) fn count(
        &self,
        slot: &StreamSlot,
        heap: &mut StreamHeap,
        guard: &mut ShardGuard<'_>,
        request: Request,
    ) {
        let Request { requested, size } = request;
        if !guard.allocate_below_peak(pool_of(size), size, requested) {
            self.count_at_peak(slot, heap, guard, request);
        }
    }

    #[cold]
    #[inline(never)]
    fn count_at_peak(
        &self,
        slot: &StreamSlot,
        heap: &mut StreamHeap,
        guard: &mut ShardGuard<'_>,
        request: Request,
    ) {
        if slot.remote.has_any() {
            self.drain(slot, heap, guard);
        }
        let Request { requested, size } = request;
        self.count_with_all_left(guard, pool_of(size), size, requested);
    }

    /// Counts a block of a private pool.
    pub(super) fn count_in(&self, shard: &Shard, pool: PoolSize, size: usize, requested: usize) {
        let mut guard = shard.hold();
        if !guard.allocate_below_peak(pool, size, requested) {
            self.count_with_all_left(&mut guard, pool, size, requested);
        }
    }

    fn count_with_all_left(&self, guard: &mut ShardGuard<'_>, pool: PoolSize, size: usize, requested: usize) {
        if self.slots.iter().any(|slot| slot.remote.has_any()) {
            // Whoever has those heaps may wait for this one's count.
            guard.disarm();
            self.count_all_left();
        }
        guard.allocate(pool, size, requested);
    }

    /// Counts what was left to heaps: before a peak rises or starts anew, and before somebody is told what there is.
    pub(super) fn count_all_left(&self) {
        for slot in self.slots.iter().filter(|slot| slot.remote.has_any()) {
            slot.heap.with_unless_disarmed(|heap, guard| self.drain(slot, heap, guard));
        }
    }
}

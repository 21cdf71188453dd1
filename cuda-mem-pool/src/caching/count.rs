//! Counts the blocks that are handed out.
//!
//! Frees that other threads left in a heap's rings are counted when that heap is drained. A peak that rose before would be higher than
//! what there was at any moment. So all rings are drained first; below the peaks nothing depends on it. A heap that somebody has right
//! now is left out: its holder's call is under way.

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
        self.count_behind_all_frees(guard, pool_of(size), size, requested);
    }

    /// Counts a block of a private pool.
    pub(super) fn count_in(&self, shard: &Shard, pool: PoolSize, size: usize, requested: usize) {
        let mut guard = shard.hold();
        if !guard.allocate_below_peak(pool, size, requested) {
            self.count_behind_all_frees(&mut guard, pool, size, requested);
        }
    }

    fn count_behind_all_frees(
        &self,
        guard: &mut ShardGuard<'_>,
        pool: PoolSize,
        size: usize,
        requested: usize,
    ) {
        for slot in self.slots.iter().filter(|slot| slot.remote.has_any()) {
            // Counted here: the other shard would have to become active for it.
            slot.heap.try_with(|heap, _| self.drain(slot, heap, guard));
        }
        guard.allocate(pool, size, requested);
    }

    /// Counts what was left in all rings: before peaks start anew, and before figures are read.
    pub(super) fn count_all_frees(&self) {
        for slot in self.slots.iter().filter(|slot| slot.remote.has_any()) {
            slot.heap.try_with(|heap, guard| self.drain(slot, heap, guard));
        }
    }
}

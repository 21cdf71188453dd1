//! What is tried when a private pool has nothing free, and what private pools do for others that are out of memory.

use std::sync::Arc;

use cuda_mem_core::Stream;

use super::State;
use super::allocate::{Found, Routed, refused};
use super::reclaim::{Leaving, Patience};
use crate::caching::callbacks::refuse_watchers;
use crate::caching::grow::unless_lost;
use crate::caching::pending::Pending;
use crate::caching::shared::{Shared, wait_for};
use crate::error::{Error, Result};
use crate::mempool_id::MempoolId;
use crate::primitive::lock;
use crate::segments::SegmentRequest;
use crate::snapshot::Action;

impl Shared {
    /// A block after everything that helps. Nobody waits on the host before the last step.
    #[cold]
    pub(super) fn climb_private(&self, routed: Routed<'_>) -> Result<Found> {
        refuse_watchers()?;
        self.poll();
        self.collect_garbage();
        if let Some(found) = self.look_or_extend(routed)? {
            return Ok(found);
        }
        lock(&self.counts).num_alloc_retries += 1;
        if let Some(found) = self.make_room(routed)? {
            return Ok(found);
        }
        // What the program freed may need each of the steps again.
        if self.callbacks.reclaim(routed.requested)
            && let Some(found) = self.make_room(routed)?
        {
            return Ok(found);
        }
        let slot = self.slot(routed.stream)?;
        let refused = match self.request(routed.requested) {
            Some(request) => self.give_up(slot, request, routed.pool),
            None => self.refuse_too_large(|| Ok(slot), routed.requested, routed.pool),
        };
        refused.map(Found::Block)
    }

    /// A block once what is free elsewhere went back: what nothing uses, then also what a wait on the host ends the uses of.
    fn make_room(&self, routed: Routed<'_>) -> Result<Option<Found>> {
        for patience in [Patience::None, Patience::Wait] {
            if patience == Patience::Wait {
                self.wait_for_streams()?;
                self.wait_for_uses();
            }
            let wanted = match self.look(routed)? {
                Found::Miss(wanted, _) => wanted,
                found => return Ok(Some(found)),
            };
            let leaving = self.take_available(routed.pool, &wanted);
            self.give_back(leaving, patience)?;
            // What the driver refuses stays, and the request may do without.
            unless_lost(self.empty_cache())?;
            unless_lost(self.reclaim(MempoolId::NONE, patience))?;
            if let Some(found) = self.look_or_extend(routed)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// A block that is free by now, or was left by a stream that ended, else one of a new segment. None if there is no memory for it.
    fn look_or_extend(&self, routed: Routed<'_>) -> Result<Option<Found>> {
        match self.look(routed)? {
            Found::Miss(wanted, source) => match self.look_at_left(routed)? {
                None => self.extend(routed, wanted, source.as_ref()),
                found => Ok(found),
            },
            found => Ok(Some(found)),
        }
    }

    /// Takes segments out of the pool that are too large to be cut for the request, so that there is room for one that is not.
    /// Not those of graphs: a graph goes on using what was freed while it was captured.
    fn take_available(&self, id: MempoolId, wanted: &SegmentRequest) -> Vec<Leaving> {
        let mut state = lock(&self.private.state);
        if state.is_captured(id) {
            return Vec::new();
        }
        let taken = state.pools.take_available(id, wanted).into_iter();
        taken.map(|taken| state.leaving(taken)).collect()
    }

    /// Waits for all streams but those that capture, which nobody can wait for, and for what others do with freed blocks of the
    /// default pool: a stream that never asked for memory has no heap.
    fn wait_for_streams(&self) -> Result<()> {
        lock(&self.counts).num_sync_all_streams += 1;
        for slot in self.slots.iter() {
            // Whatever else it fails with, the events tell what is done.
            unless_lost(slot.owner.wait().map_err(Error::Core))?;
        }
        // Those that have no heap, and that nobody else has any more: what they left can be had once they are done.
        for stream in self.private.streams.left_to(1) {
            unless_lost(wait_for(&stream).map_err(Error::Core))?;
        }
        for point in self.pending.points() {
            unless_lost(point.wait().map_err(Error::Core))?;
        }
        self.poll();
        Ok(())
    }

    /// Waits for the streams that still use freed blocks, but for pools that a graph may be captured from now.
    fn wait_for_uses(&self) {
        for pending in self.quiet_pools() {
            self.wait_for(&pending);
        }
    }

    fn wait_for(&self, pending: &Pending) {
        for waiting in pending.take_marked() {
            if waiting.wait().is_ok() {
                self.complete_private(waiting.block.address);
            } else {
                pending.put_back(waiting);
            }
        }
    }

    /// As [`Shared::reclaim`] of one pool, after a wait on the host for what may use its memory. A pool that is in use is not waited
    /// for.
    pub(super) fn reclaim_pool(&self, id: MempoolId) -> Result<usize> {
        if let Some(pending) = self.pending_of(id, |state| state.pools.use_count(id) == 0) {
            self.wait_for(&pending);
        }
        self.reclaim(id, Patience::Wait)
    }

    /// What waits in one pool, if that is so.
    pub(super) fn pending_of(
        &self,
        id: MempoolId,
        is_so: impl FnOnce(&State) -> bool,
    ) -> Option<Arc<Pending>> {
        let state = lock(&self.private.state);
        let is_so = is_so(&state);
        state.notes.get(&id).filter(|_| is_so).map(|notes| Arc::clone(&notes.pending))
    }

    /// As [`Shared::reclaim_released`], after a wait on the host for what may use the memory: whether any went.
    pub(in crate::caching) fn reclaim_waiting(&self) -> bool {
        if self.private.reserved() == 0 {
            return false;
        }
        self.wait_for_uses();
        self.reclaim(MempoolId::NONE, Patience::Wait).is_ok_and(|bytes| bytes > 0)
    }

    /// What released pools have and nothing uses goes back; how many bytes.
    pub(in crate::caching) fn reclaim_released(&self) -> Result<usize> {
        self.reclaim(MempoolId::NONE, Patience::None)
    }

    /// A free block of a private pool that lends in need.
    pub(in crate::caching) fn borrow_on_oom(&self, requested: usize, stream: &Stream) -> Result<Option<u64>> {
        if self.private.reserved() == 0 {
            return Ok(None);
        }
        let mut state = lock(&self.private.state);
        let lent = state.pools.allocate_on_oom(stream.id().as_raw(), requested as u64);
        let Some((id, block)) = lent.map_err(|error| refused(error, requested))? else { return Ok(None) };
        let address = self.hand_out_private(&mut state, id, block, stream);
        drop(state);
        self.tell_private(Action::Alloc, id, address, requested, Some(stream));
        Ok(Some(address))
    }
}

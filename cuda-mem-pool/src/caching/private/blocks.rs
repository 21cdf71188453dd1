//! Blocks: how requests get them, and how they come back.

use std::collections::HashSet;
use std::sync::Arc;

use cuda_mem_core::Stream;

use super::{PoolState, PrivatePools};
use crate::caching::pending::Freed;
use crate::caching::slot::shown_handle;
use crate::caching::source::Claim;
use crate::engine::paged::{BlockNumber, SLAB, Tier};
use crate::engine::segments::{Allocation, Block, SegmentRequest};
use crate::error::{Error, Result};
use crate::history::{Event, RecordContext};
use crate::mempool_id::MempoolId;
use crate::primitive::{IN_FOREIGN_CODE, Inside, MutexGuard, is_set, lock};
use crate::resource::RawResource;
use crate::snapshot::Action;

/// What stands for a heap and a number where blocks wait that are found by their addresses.
const NO_HEAP: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
pub(super) struct Routed<'s> {
    pub(super) pool: MempoolId,
    pub(super) stream: &'s Stream,
    pub(super) requested: usize,
    /// Whether a graph uses what it gets, and the pool is not known to be a graph's yet.
    pub(super) captures: bool,
}

/// What a look into a pool gave.
#[derive(Debug)]
pub(super) enum Found {
    Block(u64),
    /// No free block fits. The segment that is needed, and where it comes from.
    Miss(SegmentRequest, Option<Arc<dyn RawResource>>),
    Gone,
}

/// Says that the thread is in an upstream or a filter, whose allocations go to no private pool: that would ask it again.
pub(super) fn in_foreign_code() -> Inside {
    Inside::new(&IN_FOREIGN_CODE)
}

impl<'s> PrivatePools<'s> {
    /// Allocates from the pool that the request goes to, if that has segments: from the default one only if that is asked for.
    #[cold]
    pub(in crate::caching) fn allocate(
        self,
        requested: usize,
        stream: &Stream,
        or_default: bool,
    ) -> Result<Option<u64>> {
        let is_asked = |pool: &MempoolId| or_default || *pool != MempoolId::NONE;
        while let Some(pool) = self.route(stream.id().as_raw()).filter(is_asked) {
            // The stream gets a slot: without one its memory would count as that of a stream that has ended.
            self.shared.streams.slot(stream)?;
            let is_known = pool == MempoolId::NONE || lock(&self.private.state).is_captured(pool);
            let captures = !is_known && stream.is_capturing()?;
            self.reuse_captured(stream);
            let routed = Routed { pool, stream, requested, captures };
            let found = match self.look(routed)? {
                Found::Miss(wanted, _) => self.reclaim_and_retry(routed, wanted)?,
                found => found,
            };
            if let Found::Block(address) = found {
                return Ok(Some(address));
            }
            // The pool was released while it was asked, and its route ended before: others are asked.
        }
        Ok(None)
    }

    /// The pool that the stream's requests go to, if it is not the default one.
    pub(in crate::caching) fn route(self, stream: u64) -> Option<MempoolId> {
        let asks = !is_set(&IN_FOREIGN_CODE);
        let state = lock(&self.private.state);
        let default = state.pools.serves_default().then_some(MempoolId::NONE);
        if !asks {
            return default;
        }
        // Filters are the program's code: they are asked, and dropped, without the lock, and are noted to run until they are dropped.
        let _inside = in_foreign_code();
        let routes = Arc::clone(state.pools.routes());
        drop(state);
        routes.find(stream).or(default)
    }

    pub(super) fn look(self, routed: Routed<'_>) -> Result<Found> {
        let Routed { pool: id, stream, requested, captures } = routed;
        let mut state = lock(&self.private.state);
        let Some(pool) = state.pools.get_mut(id).ok().filter(|pool| !pool.is_freeable()) else {
            return Ok(Found::Gone);
        };
        if pool.is_asleep {
            let source = pool.source.clone();
            drop(state);
            return Err(self.shared.tags.asleep(source));
        }
        let found = pool.heap.allocate(stream.id().as_raw(), requested as u64);
        match found.ok_or(Error::TooLarge { bytes: requested })? {
            Allocation::Miss(wanted) => Ok(Found::Miss(wanted, pool.source.clone())),
            Allocation::Hit(block) => {
                pool.is_captured |= captures;
                Ok(Found::Block(self.hand_out(state, routed, &block)))
            }
        }
    }

    /// Hands a block out that was free, and tells of it without the lock.
    fn hand_out(self, state: MutexGuard<'_, PoolState>, routed: Routed<'_>, block: &Block) -> u64 {
        let Routed { pool, stream, requested, .. } = routed;
        self.count_live(block);
        drop(state);
        self.tell(Action::Alloc, pool, block.address, requested, stream.id().as_raw());
        block.address
    }

    /// Gives the pool a new segment of so many bytes, and allocates from it. None if there is no memory for it.
    pub(super) fn extend(
        self,
        routed: Routed<'_>,
        mut wanted: SegmentRequest,
        bytes: u64,
        source: Option<&Arc<dyn RawResource>>,
    ) -> Result<Option<Found>> {
        let Routed { pool: id, stream, requested, captures } = routed;
        // What is not used of a page is held all the same.
        wanted.bytes = bytes.next_multiple_of(if source.is_some() { 1 } else { SLAB as u64 });
        let bytes = usize::try_from(wanted.bytes).map_err(|_| Error::TooLarge { bytes: requested })?;
        let Ok(claim) = self.shared.source.claim(bytes)? else { return Ok(None) };
        let memory = &self.private.memory;
        // The address of a block of this allocator stands for that block.
        let is_block = |address| lock(&self.private.state).block(address).is_some();
        let has = |address| self.shared.map.find(address).is_some() || is_block(address);
        let expect_foreign = |address| if has(address) { Err(Error::OwnSource { id }) } else { Ok(()) };
        let Some(address) = memory.acquire(bytes, source, expect_foreign)? else { return Ok(None) };
        // What is refused stays until the allocator ends, and counts as held.
        let undo = |claim: Claim<'_>| {
            memory.release(address).inspect_err(|_| {
                claim.keep();
                self.shared.figures.add_segment(id, wanted.kind, bytes as u64);
            })
        };
        if source.is_some()
            && let Err(error) = memory.settle()
        {
            // The first error is the one to tell.
            let _ = undo(claim);
            return Err(error);
        }
        let stack = self.shared.record.history.frames(RecordContext::State);
        let mut state = lock(&self.private.state);
        let in_use = state.pools.get_mut(id).ok().filter(|pool| {
            !pool.is_freeable() && !pool.is_asleep && pool.source.is_some() == source.is_some()
        });
        let added = in_use.map(|pool| {
            let block = pool.heap.add_segment(&wanted, address);
            pool.is_captured |= captures && block.is_ok();
            block
        });
        let block = match added {
            Some(Ok(block)) => block,
            refusal => {
                drop(state);
                undo(claim)?;
                return match refusal {
                    Some(Err(error)) => Err(error.into()),
                    _ => Ok(Some(Found::Gone)),
                };
            }
        };
        self.count_live(&block);
        if let Some(stack) = stack.clone() {
            state.segment_stacks.insert(address, stack);
        }
        let (action, size, handle) = (Action::SegmentAlloc, bytes as u64, shown_handle(stream));
        // Under the lock: before what others get of its rest.
        self.shared.record.note(Event { action, address, size, stream: handle, pool: id }, stack);
        drop(state);
        claim.keep();
        self.shared.figures.add_segment(id, block.kind, bytes as u64);
        self.tell(Action::Alloc, id, address, requested, stream.id().as_raw());
        Ok(Some(Found::Block(address)))
    }

    /// A free block of a private pool that lends in need.
    pub(in crate::caching) fn borrow_on_oom(self, requested: usize, stream: &Stream) -> Result<Option<u64>> {
        let mut state = lock(&self.private.state);
        let lent = state.pools.allocate_on_oom(stream.id().as_raw(), requested as u64);
        let routed = |pool| Routed { pool, stream, requested, captures: false };
        Ok(lent.map(|(pool, block)| self.hand_out(state, routed(pool), &block)))
    }

    pub(super) fn count_live(self, block: &Block) {
        let (size, requested) = sizes(block);
        let counting = self.private.shard.hold();
        if !counting.allocate_below_peak(block.kind, size, requested) {
            self.shared.count_at_peak(&counting, block.kind, size, requested);
        }
    }

    /// Frees a block, ordered on its own stream, or behind another that used it last.
    #[cold]
    #[inline(never)]
    pub(in crate::caching) fn free(self, address: u64, stream: Option<&Stream>) -> Result<()> {
        let pending = &self.private.pending;
        let live = lock(&self.private.state).live(address);
        let (id, block) = live.ok_or(Error::UnknownAddress { address })?;
        if let Some(other) = stream.filter(|stream| !self.is_served(&block, stream)) {
            pending.record_stream(address, other, self.capture_of(other))?;
        }
        // Claimed under the lock: a second free of it fails from here on.
        let claimed = lock(&self.private.state).pools.get_mut(id)?.heap.free_pending(address);
        claimed.ok_or(Error::UnknownAddress { address })?;
        let uses = if pending.has_uses() { pending.take_uses(address) } else { None };
        let (size, requested) = sizes(&block);
        self.tell(Action::FreeRequested, id, address, requested, block.stream);
        let Some(mut used) = uses else {
            self.tell(Action::FreeCompleted, id, address, requested, block.stream);
            let mut state = lock(&self.private.state);
            state.pools.get_mut(id)?.heap.complete(address).ok_or(Error::UnknownAddress { address })?;
            self.private.shard.hold().free(block.kind, size, requested);
            return Ok(());
        };
        let captured = self.captured(block.stream, &mut used);
        self.private.shard.hold().request_free(block.kind, size);
        let number = BlockNumber::new(Tier::Large, 0);
        let block = Freed { address, heap: NO_HEAP, number, size, pool: id };
        pending.push(block, used.uses, captured, &self.shared.observer);
        Ok(())
    }

    /// Whether a block is of this stream, and of no other meanwhile: what a thread's stream is given behind its end is not behind that.
    fn is_served(self, block: &Block, stream: &Stream) -> bool {
        let id = stream.id().as_raw();
        block.stream == id && self.shared.streams.slot_of(id).is_some_and(|slot| slot.owner.is(id))
    }

    pub(in crate::caching) fn record_stream(self, address: u64, stream: &Stream) -> Result<()> {
        let live = lock(&self.private.state).live(address);
        let (_, block) = live.ok_or(Error::UnknownAddress { address })?;
        if self.is_served(&block, stream) {
            return Ok(());
        }
        self.private.pending.record_stream(address, stream, self.capture_of(stream))
    }

    /// Completes the frees whose uses are over, but for pools that a graph may be captured from now.
    pub(in crate::caching) fn poll(self) {
        if !self.private.pending.has_freed(|_| true) {
            return;
        }
        let capturing = self.capturing();
        let may_come = |block: &Freed| !capturing.contains(&block.pool);
        for waiting in self.private.pending.poll(&self.shared.observer, may_come) {
            self.complete(waiting.block.address);
        }
    }

    /// The pools that a graph may be captured from now.
    pub(super) fn capturing(self) -> HashSet<MempoolId> {
        let state = lock(&self.private.state);
        let routes = state.pools.routes();
        let pools = state.pools.iter().filter(|(id, pool)| pool.is_captured && routes.has(*id));
        pools.map(|(id, _)| id).collect()
    }

    /// Completes the free of a block whose uses are over.
    pub(super) fn complete(self, address: u64) {
        let state = lock(&self.private.state);
        let Some((id, block)) = state.block(address) else { return };
        let (size, requested) = sizes(&block);
        drop(state);
        // Recorded before another request may have it.
        self.tell(Action::FreeCompleted, id, address, requested, block.stream);
        let mut state = lock(&self.private.state);
        let completed = state.pools.get_mut(id).ok().and_then(|pool| pool.heap.complete(address));
        if completed.is_some() {
            self.private.shard.hold().complete_free(block.kind, size, requested);
        }
    }

    fn tell(self, action: Action, pool: MempoolId, address: u64, size: usize, stream: u64) {
        let record = &self.shared.record;
        if record.history.awaits_frees() {
            let stream = self.shared.streams.handle_of(stream);
            record.emit_block(Event { action, address, size: size as u64, stream, pool });
        }
    }
}

/// A block's bytes, and those that were asked for. Blocks are of this machine's memory, so they fit.
pub(super) fn sizes(block: &Block) -> (usize, usize) {
    (block.size as usize, block.requested as usize)
}

//! The hot path: from a request to an address, and back.
//!
//! ```text
//! allocate ─ route? ─ slot of the stream ─ size ─ lock its heap ─ quick list ─ count ─ unlock
//! free     ─ page map ─ slot ─ lock its heap ─ quick list ─ count ─ unlock       or, if another thread has the heap, its ring
//! ```
//!
//! Steps that a block on a quick list does not need are in cold functions with a name: `cut`, `drain`, `poll_for`,
//! [`grow`](super::grow), `free_behind`, `leave`.

use cuda_mem_core::{Stream, StreamId};

use super::shared::{DeviceCache, number_of};
use super::slot::StreamSlot;
use crate::engine::paged::{BlockNumber, MEDIUM, StreamHeap, Tier, block_size};
use crate::error::{Error, Result, refuse_forked};
use crate::mempool_id::MempoolId;
use crate::statistics::{Counting, PoolSize};

#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    /// The bytes that were asked for.
    pub(super) requested: usize,
    pub(super) size: usize,
    /// The address at which the block has to begin, if the program named one.
    pub(super) at: Option<u64>,
}

impl Request {
    #[inline]
    pub(super) const fn unused(self) -> usize {
        self.size - self.requested
    }
}

/// Which of the statistics' pools a block counts in.
#[inline]
pub(super) fn pool_of(size: usize) -> PoolSize {
    if size <= MEDIUM { PoolSize::Small } else { PoolSize::Large }
}

impl DeviceCache {
    /// Allocates a block for work of a stream; returns its address.
    #[inline]
    pub(super) fn allocate(&self, requested: usize, stream: &Stream) -> Result<u64> {
        refuse_forked()?;
        if self.private.is_routed()
            && let Some(address) = self.pools().allocate(requested, stream, true)?
        {
            return Ok(address);
        }
        self.allocate_from(self.streams.slot(stream)?, requested)
    }

    /// As [`DeviceCache::allocate`], for a stream whose slot is known. Fails if the slot serves another stream by now.
    #[inline(always)]
    pub(super) fn allocate_in(&self, slot: &StreamSlot, stream: StreamId, requested: usize) -> Result<u64> {
        refuse_forked()?;
        if !slot.owner.is(stream.as_raw()) {
            return Err(Error::StreamEnded);
        }
        if self.private.is_routed()
            && let Some(address) = self.allocate_routed(slot, requested)?
        {
            return Ok(address);
        }
        self.allocate_from(slot, requested)
    }

    #[cold]
    #[inline(never)]
    fn allocate_routed(&self, slot: &StreamSlot, requested: usize) -> Result<Option<u64>> {
        self.pools().allocate(requested, &slot.owner.stream().ok_or(Error::StreamEnded)?, true)
    }

    #[inline(always)]
    fn allocate_from(&self, slot: &StreamSlot, requested: usize) -> Result<u64> {
        match self.request(requested) {
            Some(request) if self.record.history.is_listening() => self.allocate_recorded(slot, request),
            Some(request) => self.obtain(slot, request),
            None => self.refuse_too_large(slot, requested, MempoolId::NONE),
        }
    }

    /// The block for a request; None if no block is as large.
    #[inline]
    pub(super) fn request(&self, requested: usize) -> Option<Request> {
        let size = block_size(self.rounding.round(requested))?;
        Some(Request { requested, size, at: None })
    }

    /// Takes a block from the heap's free memory, or grows the heap; returns the block's address.
    #[inline(always)]
    pub(super) fn obtain(&self, slot: &StreamSlot, request: Request) -> Result<u64> {
        // Freed blocks of this size whose other streams are done with them go first, of a large one all.
        if slot.waiting.may_have(request.size) {
            self.poll_for(slot, request.size);
        }
        let Request { size, at, .. } = request;
        let mut held = slot.heap.hold();
        let (heap, counting) = held.parts();
        // The hint may miss a free that came before.
        if !slot.remote.is_empty() || at.is_some() {
            self.drain(slot, heap, counting);
        }
        let quick = if at.is_none() { heap.take_quick(size, request.unused()) } else { None };
        let found = match quick {
            Some(block) => Some(block),
            None => heap.cut(size, request.unused(), at, &self.index(slot.number)),
        };
        if let Some(block) = found {
            self.count(slot, heap, counting, request);
            return Ok(block.address);
        }
        drop(held);
        self.grow(slot, request)
    }

    #[inline(always)]
    pub(super) fn count(
        &self,
        slot: &StreamSlot,
        heap: &mut StreamHeap,
        counting: &Counting,
        Request { requested, size, .. }: Request,
    ) {
        if !counting.allocate_below_peak(pool_of(size), size, requested) {
            if slot.remote.has_any() {
                self.drain(slot, heap, counting);
            }
            self.count_at_peak(counting, pool_of(size), size, requested);
        }
    }

    /// Frees the block at an address, ordered on its own stream, and behind `stream`, if that used it last.
    #[inline(always)]
    pub(super) fn free(&self, address: u64, stream: Option<&Stream>) -> Result<()> {
        refuse_forked()?;
        let Some(found) = self.map.find(address) else { return self.pools().free(address, stream) };
        let Some(slot) = self.slots.get(found.owner) else { return Err(Error::UnknownAddress { address }) };
        if let Some(elsewhere) = stream.filter(|stream| !slot.owner.is(stream.id().as_raw())) {
            self.pending.record_stream(address, elsewhere, None)?;
        }
        if self.pending.has_uses()
            && let Some(used) = self.pending.take_uses(address)
        {
            return self.free_behind(slot, address, number_of(found), used.uses);
        }
        // Recorded before the block is free: another thread may allocate it right after.
        if self.record.history.awaits_frees() {
            self.emit_freed(slot, address, number_of(found));
        }
        let (tier, record) = (found.tier, found.record);
        // Where another thread alone allocates, the heap's cache lines stay with it: the free goes into a ring.
        let held = if slot.only_another_thread_allocates() { None } else { slot.heap.try_hold() };
        // The map still finds a block on a quick list: freed again, it is an error.
        let taken = match held {
            Some(mut held) => {
                let (heap, counting) = held.parts();
                self.put_back(slot, heap, counting, tier, record)
            }
            None => self.leave(slot, number_of(found)),
        };
        if taken { Ok(()) } else { Err(Error::UnknownAddress { address }) }
    }

    /// Gives a block back to its heap and counts it; false if it was free already.
    #[inline(always)]
    pub(super) fn put_back(
        &self,
        slot: &StreamSlot,
        heap: &mut StreamHeap,
        counting: &Counting,
        tier: Tier,
        record: u32,
    ) -> bool {
        let Some(freed) = heap.free_in(tier, record, &self.index(slot.number)) else { return false };
        counting.free(pool_of(freed.size), freed.size, freed.size - freed.unused);
        true
    }
}

/// Frees that other threads left in rings, and how they are counted.
///
/// A free in a ring is counted when its heap is drained. Until then the sums are too high, and so would be a peak that rises, so all rings are
/// drained before one may; below the peaks nothing depends on it. A heap that another thread holds for long is left out: its call goes on.
impl DeviceCache {
    /// Frees the blocks that other threads left in a heap's rings.
    #[cold]
    pub(super) fn drain(&self, slot: &StreamSlot, heap: &mut StreamHeap, counting: &Counting) {
        slot.remote.drain(|number| {
            let (tier, record) = BlockNumber(number).parts();
            self.put_back(slot, heap, counting, tier, record);
        });
    }

    /// Runs `body` on a heap whose rings were drained.
    #[inline]
    pub(super) fn with_drained<R>(
        &self,
        slot: &StreamSlot,
        body: impl FnOnce(&mut StreamHeap, &Counting) -> R,
    ) -> R {
        slot.heap.with(|heap, counting| {
            self.drain(slot, heap, counting);
            body(heap, counting)
        })
    }

    /// Pushes a block to the heap's ring of the calling thread. If that is full, locks the heap, drains it and frees directly. False only if
    /// the block was found to be free already, which a push does not check.
    #[inline(never)]
    fn leave(&self, slot: &StreamSlot, number: BlockNumber) -> bool {
        if slot.remote.push(number.0).is_ok() {
            return true;
        }
        self.with_drained(slot, |heap, counting| {
            let (tier, record) = number.parts();
            self.put_back(slot, heap, counting, tier, record)
        })
    }

    #[cold]
    #[inline(never)]
    pub(super) fn count_at_peak(&self, counting: &Counting, pool: PoolSize, size: usize, requested: usize) {
        // In the allocating heap's shard, which then needs less of others.
        self.count_all_frees(Some(counting));
        counting.allocate_at_peak(pool, size, requested);
    }

    /// Drains all rings, so that what is in them counts, in a shard or each heap's own: before figures are read, and peaks reset or raised.
    pub(super) fn count_all_frees(&self, shard: Option<&Counting>) {
        for slot in self.slots.iter().filter(|slot| slot.remote.has_any()) {
            slot.heap.with_soon(|heap, own| self.drain(slot, heap, shard.unwrap_or(own)));
        }
    }
}

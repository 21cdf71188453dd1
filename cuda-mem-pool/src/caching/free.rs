//! How a block comes back.

use cuda_mem_core::{Stream, Uses, forked};

use super::allocate::pool_of;
use super::callbacks::refuse_watchers;
use super::index::{number_of, tier_of};
use super::pending::{Freed, Waiting};
use super::record::Goes;
use super::shared::Shared;
use super::slot::StreamSlot;
use crate::engine::paged::{BlockNumber, StreamHeap, Tier};
use crate::error::{Error, Result};
use crate::primitive::lock;
use crate::snapshot::Action;
use crate::statistics::ShardGuard;

impl Shared {
    /// Takes a block back, by its address, ordered on its own stream, or behind another that used it last.
    #[inline]
    pub(super) fn free(&self, address: u64, stream: Option<&Stream>) -> Result<()> {
        if forked() {
            return Err(cuda_mem_core::Error::Forked.into());
        }
        let Some(found) = self.map.find(address) else { return self.free_private(address, stream) };
        let Some(slot) = self.slots.get(found.owner) else { return Err(Error::UnknownAddress { address }) };
        let elsewhere = stream.filter(|stream| !slot.owner.is(stream.id().as_raw()));
        if elsewhere.is_some() || !self.pending.is_empty() {
            let uses = self.pending.take_uses(address).map(|used| used.uses);
            if elsewhere.is_some() || uses.is_some() {
                return self.free_behind(
                    slot,
                    address,
                    number_of(found),
                    uses.unwrap_or_default(),
                    elsewhere,
                );
            }
        }
        // By who frees it, before anybody else may have it.
        if self.history.awaits_frees() && self.tell_freed(slot, address, number_of(found))? == Goes::Left {
            return Ok(());
        }
        let (tier, record) = (tier_of(found), found.record);
        let taken = if slot.is_anothers() {
            // The heap's lines are with the thread that allocates there: a ring takes none of them along.
            self.leave(slot, number_of(found))?
        } else {
            match slot.heap.try_with(|heap, guard| self.put_back(slot, heap, guard, tier, record)) {
                Some(taken) => taken,
                None => self.leave(slot, number_of(found))?,
            }
        };
        // A block that is kept for the next one of its size is still found by its address.
        if taken { Ok(()) } else { Err(Error::UnknownAddress { address }) }
    }

    /// Leaves a block to whoever takes the heap next, or puts it back with all that was left if there is no room; whether somebody had it, as far as that is known.
    #[inline(never)]
    fn leave(&self, slot: &StreamSlot, number: BlockNumber) -> Result<bool> {
        if slot.remote.push(number.0).is_ok() {
            return Ok(true);
        }
        let put_back = |heap: &mut StreamHeap, guard: &mut ShardGuard<'_>| {
            self.drain(slot, heap, guard);
            let (tier, record) = number.parts();
            self.put_back(slot, heap, guard, tier, record)
        };
        if let Some(taken) = slot.heap.try_with(put_back) {
            return Ok(taken);
        }
        refuse_watchers()?;
        Ok(slot.heap.with(put_back))
    }

    /// Has what was left to heaps that nobody has right now be free: it counts as in use where memory is got, and others cannot have it.
    pub(super) fn take_in(&self) {
        for slot in self.slots.iter().filter(|slot| !slot.remote.is_empty()) {
            slot.heap.try_with(|heap, guard| self.drain(slot, heap, guard));
        }
    }

    /// Gives a block back to its heap and counts it; whether somebody had it.
    // Inlined, as `take_free`.
    #[inline(always)]
    pub(super) fn put_back(
        &self,
        slot: &StreamSlot,
        heap: &mut StreamHeap,
        guard: &mut ShardGuard<'_>,
        tier: Tier,
        record: u32,
    ) -> bool {
        let Some(freed) = heap.free_in(tier, record, &self.index(slot.number)) else { return false };
        let requested = freed.size - freed.unused;
        guard.free(pool_of(freed.size), freed.size, requested);
        true
    }

    /// Frees a block once the streams that used it have come past this point.
    #[cold]
    fn free_behind(
        &self,
        slot: &StreamSlot,
        address: u64,
        number: BlockNumber,
        uses: Uses,
        elsewhere: Option<&Stream>,
    ) -> Result<()> {
        let recorded = refuse_watchers().and_then(|()| match elsewhere {
            Some(stream) => Ok(uses.record_stream(stream)?),
            None => Ok(()),
        });
        if let Err(error) = recorded {
            // The block is still its owner's, and used by whom it was.
            self.pending.keep_uses(address, uses);
            return Err(error);
        }
        let found = slot.heap.with(|heap, guard| {
            if !slot.remote.is_empty() {
                self.drain(slot, heap, guard);
            }
            let block = heap.block(number)?;
            guard.request_free(pool_of(block.size), block.size);
            Some((block.size, heap.requested(number)?))
        });
        let (size, requested) = found.ok_or(Error::UnknownAddress { address })?;
        self.tell_free(Action::FreeRequested, slot, address, requested, self.stack(address));
        let block = Freed { address, heap: slot.number, number, size };
        self.pending.push_of(slot.owner.stream().as_ref(), block, uses, &self.observer);
        slot.waiting.add(size);
        Ok(())
    }

    /// Whether somebody has a block: one that is kept for the next one of its size is still found by its address.
    pub(super) fn is_in_use(&self, slot: &StreamSlot, number: BlockNumber) -> Result<bool> {
        self.look_at(slot, |heap| heap.block(number).is_some())
    }

    /// Looks at a heap once all that was left to it is free.
    pub(super) fn look_at<R>(&self, slot: &StreamSlot, look: impl FnOnce(&StreamHeap) -> R) -> Result<R> {
        slot.heap.with_but_for_watchers(|heap, guard| {
            if !slot.remote.is_empty() {
                self.drain(slot, heap, guard);
            }
            guard.disarm();
            look(heap)
        })
    }

    /// Gives the blocks back whose uses are over.
    pub(super) fn poll(&self) {
        for waiting in self.pending.poll(&self.observer) {
            self.complete(&waiting);
        }
        self.poll_private();
    }

    /// Gives the blocks of a heap back that have this size and whose uses are over. Not in watchers, who may have the heap.
    #[cold]
    pub(super) fn poll_for(&self, slot: &StreamSlot, size: usize) {
        if refuse_watchers().is_err() {
            return;
        }
        for waiting in self.pending.poll_for(slot, size, &self.observer) {
            self.complete(&waiting);
        }
    }

    /// Has a freed block wait on that was taken out.
    pub(super) fn put_back_waiting(&self, waiting: Waiting) {
        let block = waiting.block;
        self.pending.put_back(waiting);
        if let Some(slot) = self.slots.get(block.heap) {
            slot.waiting.add(block.size);
        }
    }

    /// A freed block is free now.
    pub(super) fn complete(&self, waiting: &Waiting) {
        let Freed { address, heap, number, .. } = waiting.block;
        let Some(slot) = self.slots.get(heap) else { return };
        if self.history.awaits_frees() {
            self.tell_completed(slot, address, number);
        }
        slot.heap.with(|heap, guard| {
            let Some(freed) = heap.free(number, &self.index(slot.number)) else { return };
            let requested = freed.size - freed.unused;
            guard.complete_free(pool_of(freed.size), freed.size, requested);
        });
    }

    /// What the driver was asked so far, by call.
    pub(super) fn calls(&self) -> super::vmm::Calls {
        lock(&self.source).backend().calls()
    }
}

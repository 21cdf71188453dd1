//! Blocks that are freed while other streams use them: how they wait, and come back.

use cuda_mem_core::{Stream, Uses};

use super::hot::pool_of;
use super::pending::{Freed, Waiting};
use super::shared::Shared;
use super::slot::StreamSlot;
use crate::engine::paged::{BlockNumber, StreamHeap};
use crate::error::{Error, Result};
use crate::snapshot::Action;

impl Shared {
    /// The uses of a block by other streams that a free has to wait for: those that were recorded, and that of the stream that frees it.
    /// None if there are none.
    #[cold]
    pub(super) fn take_uses(&self, address: u64, elsewhere: Option<&Stream>) -> Option<Uses> {
        let uses = self.pending.take_uses(address).map(|used| used.uses);
        if elsewhere.is_some() { Some(uses.unwrap_or_default()) } else { uses }
    }

    /// Frees a block once the streams that used it have come past this point.
    #[cold]
    pub(super) fn free_behind(
        &self,
        slot: &StreamSlot,
        address: u64,
        number: BlockNumber,
        uses: Uses,
        elsewhere: Option<&Stream>,
    ) -> Result<()> {
        if let Some(stream) = elsewhere
            && let Err(error) = uses.record_stream(stream)
        {
            // The block is still its owner's, and used by the streams that it was.
            self.pending.keep_uses(address, uses);
            return Err(error.into());
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
        self.pending.push(block, uses, None, &self.observer);
        slot.waiting.add(size);
        Ok(())
    }

    /// Whether somebody has a block: one that is kept for the next one of its size is still found by its address.
    pub(super) fn is_in_use(&self, slot: &StreamSlot, number: BlockNumber) -> bool {
        self.look_at(slot, |heap| heap.block(number).is_some())
    }

    /// Looks at a heap once all that was left to it is free.
    pub(super) fn look_at<R>(&self, slot: &StreamSlot, look: impl FnOnce(&StreamHeap) -> R) -> R {
        slot.heap.with(|heap, guard| {
            if !slot.remote.is_empty() {
                self.drain(slot, heap, guard);
            }
            look(heap)
        })
    }

    /// Gives the blocks back whose uses are over.
    pub(super) fn poll(&self) {
        for waiting in self.pending.poll(&self.observer) {
            self.complete(&waiting);
        }
        self.pools().poll();
    }

    /// Gives the blocks of a heap back that have this size and whose uses are over.
    #[cold]
    pub(super) fn poll_for(&self, slot: &StreamSlot, size: usize) {
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
        self.source.calls()
    }
}

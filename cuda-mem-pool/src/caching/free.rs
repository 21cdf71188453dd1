//! How a block comes back.

use cuda_mem_core::{Stream, Uses, forked};

use super::allocate::pool_of;
use super::index::number_of;
use super::pending::Waiting;
use super::shared::Shared;
use super::slot::StreamSlot;
use crate::engine::paged::{BlockNumber, StreamHeap};
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
        let found = self.map.find(address).ok_or(Error::UnknownAddress { address })?;
        let slot = self.slots.get(found.owner).ok_or(Error::UnknownAddress { address })?;
        let number = number_of(found);
        let elsewhere = stream.filter(|stream| stream.id() != slot.stream.id());
        if elsewhere.is_some() || !self.pending.is_empty() {
            let uses = self.pending.take_uses(address);
            if elsewhere.is_some() || uses.is_some() {
                return self.free_behind(slot, address, number, uses.unwrap_or_default(), elsewhere);
            }
        }
        let taken = slot.heap.try_with(|heap, guard| self.put_back(slot, heap, guard, number.0));
        if taken.is_none() && slot.remote.push(number.0).is_err() {
            slot.heap.with(|heap, guard| {
                self.drain(slot, heap, guard);
                self.put_back(slot, heap, guard, number.0);
            });
        }
        Ok(())
    }

    /// Gives a block back to its heap and counts it.
    #[inline]
    pub(super) fn put_back(
        &self,
        slot: &StreamSlot,
        heap: &mut StreamHeap,
        guard: &mut ShardGuard<'_>,
        number: u32,
    ) {
        let number = BlockNumber(number);
        let listening = self.history.is_listening();
        let block = if listening { heap.block(number) } else { None };
        let Some(freed) = heap.free(number, &self.index(slot.number)) else { return };
        let requested = freed.size - usize::from(freed.unused);
        guard.free(pool_of(freed.size), freed.size, requested);
        if let Some(block) = block {
            guard.disarm();
            self.tell(Action::FreeRequested, block.address, requested, slot);
            self.tell(Action::FreeCompleted, block.address, requested, slot);
        }
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
        if let Some(stream) = elsewhere
            && let Err(error) = uses.record_stream(stream)
        {
            // It stays what it was, with its uses.
            self.pending.restore(address, uses);
            return Err(error.into());
        }
        let block = slot.heap.with(|heap, guard| {
            let block = heap.block(number)?;
            guard.request_free(pool_of(block.size), block.size);
            guard.disarm();
            Some(block)
        });
        if let Some(block) = block {
            self.tell(Action::FreeRequested, address, block.size, slot);
            self.pending.push(address, slot.number, number, uses);
        }
        Ok(())
    }

    /// Gives the blocks back whose uses are over.
    pub(super) fn poll(&self) {
        for waiting in self.pending.poll() {
            self.complete(&waiting);
        }
    }

    /// A freed block is free now.
    pub(super) fn complete(&self, waiting: &Waiting) {
        let Some(slot) = self.slots.get(waiting.heap) else { return };
        slot.heap.with(|heap, guard| {
            let Some(freed) = heap.free(waiting.number, &self.index(slot.number)) else { return };
            let requested = freed.size - usize::from(freed.unused);
            guard.complete_free(pool_of(freed.size), freed.size, requested);
            guard.disarm();
            self.tell(Action::FreeCompleted, waiting.address, requested, slot);
        });
    }

    /// What the driver was asked so far, by call.
    pub(super) fn calls(&self) -> super::vmm::Calls {
        lock(&self.source).backend().calls()
    }
}

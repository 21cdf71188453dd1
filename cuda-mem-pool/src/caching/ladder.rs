//! What is tried when there is no memory, step by step.

use cuda_mem_core::{Stream, forked};

use super::allocate::{Request, grow_error};
use super::shared::Shared;
use super::slot::StreamSlot;
use crate::error::{Error, Result};
use crate::primitive::lock;

impl Shared {
    /// A block after everything that helps: nobody waits on the host before the last step.
    #[cold]
    pub(super) fn climb(&self, slot: &StreamSlot, request: Request) -> Result<u64> {
        lock(&self.counts).num_alloc_retries += 1;
        self.settle();
        if let Some(block) = self.try_grow(slot, request)? {
            return Ok(block.address);
        }
        // What waits for other streams: their own stream waits for it instead, on the device.
        for waiting in self.pending.take_marked() {
            let owner = self.slots.get(waiting.heap).map(|slot| &slot.stream);
            // A stream that captures could not wait, and would lose its capture.
            let can_wait = |stream: &&Stream| matches!(stream.is_capturing(), Ok(false));
            match owner.filter(can_wait).map(|stream| waiting.hold_up(stream)) {
                Some(Ok(())) => self.complete(&waiting),
                _ => self.pending.put_back(waiting),
            }
        }
        if let Some(block) = self.try_grow(slot, request)? {
            return Ok(block.address);
        }
        lock(&self.counts).num_ooms += 1;
        let used = self.ledger.read().active_bytes.all.current;
        let limit = lock(&self.source).limit();
        Err(Error::OutOfMemory {
            requested: request.requested,
            used: u64::try_from(used).unwrap_or(0),
            limit: if limit == usize::MAX { 0 } else { limit as u64 },
            source: None,
        })
    }

    /// Takes in what other threads freed, and gives pages that nothing is in back to the ranges that they are of.
    fn settle(&self) {
        for slot in self.slots.iter() {
            slot.heap.with(|heap, guard| {
                self.drain(slot, heap, guard);
                guard.disarm();
                heap.release_spare_pages(&self.index(slot.number));
            });
        }
    }

    /// Gives what nothing is in and nothing uses back to the driver; how many bytes.
    pub(super) fn empty_cache(&self) -> Result<usize> {
        if forked() {
            return Err(cuda_mem_core::Error::Forked.into());
        }
        self.poll();
        self.settle();
        let mut source = lock(&self.source);
        let mut bytes = 0usize;
        for slot in self.slots.iter() {
            slot.heap
                .with(|heap, guard| {
                    guard.disarm();
                    source.mark_free(slot.number, heap)
                })
                .map_err(grow_error)?;
        }
        for slot in self.slots.iter() {
            let released = slot.heap.with(|heap, guard| {
                guard.disarm();
                source.release_free(slot.number, heap)
            });
            bytes = bytes.saturating_add(released.map_err(grow_error)?);
        }
        Ok(bytes)
    }
}

//! Gives memory back to the driver.

use std::cmp::Reverse;
use std::collections::HashMap;

use super::backend::Backend;
use super::growth::{GrowError, Heaps, PageSource};
use super::heap::StreamHeap;
use super::memory::Content;
use super::moving::Free;
use super::timeline::Timeline;

impl<B: Backend> PageSource<B> {
    /// Makes a point behind all that is free in a heap.
    pub(crate) fn mark_free(&mut self, heap: u32, heaps: &mut impl Heaps) {
        if let Some(now) = heaps.with(heap, |mine| mine.now()) {
            self.timelines.entry(heap).or_default().make(heap, now, &mut self.backend);
        }
    }

    /// Gives wholly free handles of a heap back whose work is done, the newest first, until `most` bytes were or there are no more. How many
    /// bytes they were. What the device may still use stays, and what the backend refuses.
    pub(crate) fn release_free(
        &mut self,
        heap: u32,
        heaps: &mut impl Heaps,
        most: usize,
    ) -> Result<usize, GrowError<B::Error>> {
        self.round += 1;
        let (mut bytes, mut outcome) = (0usize, Ok(()));
        for (number, unmapped) in self.memory.unmapped().collect::<Vec<_>>() {
            if bytes < most {
                // One that is refused keeps nothing else.
                let released = self.release(number);
                bytes = bytes.saturating_add(if released.is_ok() { unmapped } else { 0 });
                outcome = outcome.and(released);
            }
        }
        self.mark_free(heap, heaps);
        let mut free = heaps.with(heap, |mine| self.wholly_free(heap, mine)).unwrap_or_default();
        free.retain(|free| self.is_quiet(*free));
        free.sort_by_key(|free| Reverse(self.memory.handle(free.handle).map(|handle| handle.id)));
        let mut enough = bytes;
        free.retain(|free| {
            let is_wanted = enough < most;
            enough = enough.saturating_add(if is_wanted { free.bytes } else { 0 });
            is_wanted
        });
        // Nobody has them from here on.
        let taken = heaps.with(heap, |mine| self.take_free(heap, mine, &free)).unwrap_or_default();
        for (at, free) in taken.iter().enumerate() {
            self.announce(free.handle, free.address);
            let released = self.release(free.handle);
            // Where it was it is not any more, given back or not.
            if self.is_unmapped(*free) {
                self.backend.moved(free.heap, free.address, free.bytes, false);
            }
            if let Err(error) = released {
                self.give_back(taken[at..].to_vec(), heaps);
                return Err(error);
            }
            bytes = bytes.saturating_add(free.bytes);
        }
        outcome.map(|()| bytes)
    }

    /// Takes handles out of a heap that are still wholly free as they were when they were looked at.
    fn take_free(&self, heap: u32, mine: &mut StreamHeap, wanted: &[Free]) -> Vec<Free> {
        let mut now = self.wholly_free(heap, mine);
        now.sort_unstable_by_key(|free| Reverse(free.address));
        let wanted: HashMap<_, _> = wanted.iter().map(|free| (free.handle, free.freed_at)).collect();
        now.retain(|free| {
            wanted.get(&free.handle).is_some_and(|freed_at| *freed_at >= free.freed_at)
                && mine.large.withdraw(free.span, free.address, free.bytes)
        });
        now
    }

    /// The bytes of the wholly free handles of a heap; `to_others` those behind a point, for which other streams can wait.
    pub(crate) fn movable(&self, heap: u32, mine: &StreamHeap, to_others: bool) -> usize {
        let known = if to_others { self.timelines.get(&heap).map_or(0, Timeline::known) } else { u64::MAX };
        let free = self.wholly_free(heap, mine).into_iter();
        free.filter(|free| free.freed_at <= known).map(|free| free.bytes).sum()
    }

    /// Gives everything back, at the end: nobody has a block and the device is done. What a call refuses is tried again once, because the
    /// driver reports older errors of others in any call; then it stays.
    pub(crate) fn close(&mut self) -> Result<(), GrowError<B::Error>> {
        let handles: Vec<u32> = self.memory.handles().map(|(number, _)| number).collect();
        let mut outcome = Ok(());
        for number in handles {
            if let Some(address) = self.memory.handle(number).and_then(|handle| handle.active) {
                self.announce(number, address);
            }
            let released = self.release(number).or_else(|_| self.release(number));
            outcome = outcome.and(released);
        }
        outcome
    }

    /// Whether all work is done that used a wholly free handle, wherever it is mapped.
    fn is_quiet(&mut self, free: Free) -> bool {
        let Some(stale) = self.memory.handle(free.handle).map(|handle| handle.stale.clone()) else {
            return false;
        };
        self.is_done(free.heap, free.freed_at) && stale.into_iter().all(|address| self.is_passed(address))
    }

    /// Whether all work is done that used a mapping before it became stale.
    pub(super) fn is_passed(&mut self, address: u64) -> bool {
        let Some(range) = self.memory.range_at(address) else { return false };
        let Content::Stale { left_at, .. } = range.content(address) else { return false };
        self.is_done(range.heap, left_at)
    }

    fn is_done(&mut self, heap: u32, count: u64) -> bool {
        self.timelines.entry(heap).or_default().is_done(count, self.round, &mut self.backend)
    }

    /// Unmaps a handle wherever it is mapped and gives it back. After an error it is still in the records, with what is left.
    fn release(&mut self, number: u32) -> Result<(), GrowError<B::Error>> {
        let Some(handle) = self.memory.handle(number) else { return Ok(()) };
        let (memory, bytes) = (handle.memory, handle.bytes);
        let mappings: Vec<u64> = handle.stale.iter().copied().chain(handle.active).collect();
        for address in mappings {
            self.backend.unmap(address, bytes)?;
            self.memory.unmap(address);
        }
        self.backend.release(memory, bytes)?;
        self.memory.remove(number);
        Ok(())
    }
}

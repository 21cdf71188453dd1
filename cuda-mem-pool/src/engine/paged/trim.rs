//! Gives memory back.

use std::cmp::Reverse;

use super::backend::Backend;
use super::heap::StreamHeap;
use super::sizes::PAGE;
use super::source::{GrowError, PageSource};

impl<B: Backend> PageSource<B> {
    /// Makes a point behind all that is free in a heap.
    pub(crate) fn mark_free(&mut self, heap: u32, mine: &StreamHeap) -> Result<(), GrowError<B::Error>> {
        let now = mine.now();
        Ok(self.marks.entry(heap).or_default().make(heap, now, &mut self.backend)?)
    }

    /// Gives the handles of a heap back that nothing is in, and that all work is done with, the newest first, until no more than `most`
    /// bytes are held; how many bytes they were. What the device may still use stays, and so does what a call refuses.
    ///
    /// # Errors
    ///
    /// [`GrowError`], if the backend fails: what was not given back by then stays in the heap, free.
    pub fn release_free(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        most: usize,
    ) -> Result<usize, GrowError<B::Error>> {
        self.round += 1;
        self.dissolve(heap, mine);
        let free = mine.free_ranges();
        self.mark_free(heap, mine)?;
        let mut bytes = self.release_homeless()?;
        let mut whole = self.wholly_free(heap, &free);
        whole.sort_by_key(|whole| Reverse(self.ground.chunk(whole.chunk).map(|chunk| chunk.id)));
        for whole in whole {
            if self.ground.bytes() <= most {
                break;
            }
            if self.is_quiet(heap, whole.chunk, whole.freed_at)? {
                self.announce(whole.chunk, 0);
                self.leave(heap, mine, whole.chunk);
                if let Err(error) = self.release(whole.chunk) {
                    self.shelter(heap, mine, whole.chunk);
                    return Err(error);
                }
                bytes = bytes.saturating_add(whole.bytes);
            }
        }
        Ok(bytes)
    }

    /// The bytes in handles of a heap that nothing is in and that may be moved.
    pub(crate) fn movable(&self, heap: u32, mine: &StreamHeap) -> usize {
        let whole: usize = self.wholly_free(heap, &mine.free_ranges()).iter().map(|whole| whole.bytes).sum();
        whole.saturating_add(self.free_leaves(mine).len().saturating_mul(PAGE))
    }

    /// Gives everything back, at the end: nobody has a block and the device is done. What a call refuses is tried again once,
    /// because the driver reports older errors of others in any call; then it stays.
    pub(crate) fn close(&mut self) -> Result<(), GrowError<B::Error>> {
        let chunks: Vec<u32> = self.ground.chunks().map(|(number, _)| number).collect();
        let mut outcome = Ok(());
        for chunk in chunks {
            self.announce(chunk, 0);
            let released = self.release(chunk).or_else(|_| self.release(chunk));
            outcome = outcome.and(released);
        }
        outcome
    }

    fn release_homeless(&mut self) -> Result<usize, GrowError<B::Error>> {
        let mut bytes = 0usize;
        while let Some(chunk) = self.homeless.last().copied() {
            let held = self.ground.bytes();
            self.release(chunk)?;
            self.homeless.pop();
            bytes = bytes.saturating_add(held - self.ground.bytes());
        }
        Ok(bytes)
    }

    /// Whether all work is done that used a handle, which is wholly free, wherever it is mapped.
    pub(super) fn is_quiet(&mut self, heap: u32, chunk: u32, freed_at: u64) -> Result<bool, B::Error> {
        if !self.is_done(heap, freed_at)? {
            return Ok(false);
        }
        let maps = self.ground.chunk(chunk).map(|chunk| chunk.maps.clone()).unwrap_or_default();
        for address in maps {
            let stale = self.ground.at(address).filter(|map| map.is_stale());
            if let Some((heap, left_at)) = stale.map(|map| (map.heap, map.left_at))
                && !self.is_done(heap, left_at)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Unmaps a handle wherever it is mapped and gives it back. After an error it is still in the books, with what is left.
    pub(super) fn release(&mut self, chunk: u32) -> Result<(), GrowError<B::Error>> {
        let Some(record) = self.ground.chunk(chunk) else { return Ok(()) };
        let (memory, bytes, maps) = (record.memory, record.bytes, record.maps.clone());
        for address in maps {
            self.backend.unmap(address, bytes)?;
            self.ground.unmap(address);
        }
        self.backend.release(memory, bytes)?;
        self.ground.remove(chunk);
        self.haste.take_back(self.ground.bytes());
        Ok(())
    }
}

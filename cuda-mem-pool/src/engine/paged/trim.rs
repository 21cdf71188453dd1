//! Gives memory back.

use super::backend::Backend;
use super::heap::StreamHeap;
use super::source::{GrowError, PageSource};

impl<B: Backend> PageSource<B> {
    /// Makes a point behind all that is free in a heap. Handles were mapped for other heaps before, so each needs one before
    /// any of them gives memory back.
    pub(crate) fn mark_free(&mut self, heap: u32, mine: &StreamHeap) -> Result<(), GrowError<B::Error>> {
        let now = mine.now();
        Ok(self.marks.entry(heap).or_default().make(heap, now, &mut self.backend)?)
    }

    /// Gives the handles of a heap back that nothing is in, and that all work is done with; how many bytes they were. What the
    /// device may still use stays.
    pub(crate) fn release_free(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
    ) -> Result<usize, GrowError<B::Error>> {
        let free = mine.free_ranges();
        self.mark_free(heap, mine)?;
        let mut bytes = 0usize;
        for whole in self.wholly_free(heap, &free) {
            if self.is_quiet(heap, whole.chunk, whole.freed_at)? {
                self.leave(heap, mine, whole.chunk);
                if let Err(error) = self.release(whole.chunk) {
                    if self.ground.chunk(whole.chunk).is_some_and(|chunk| !chunk.maps.is_empty()) {
                        self.return_home(heap, mine, whole.chunk);
                    }
                    return Err(error);
                }
                bytes = bytes.saturating_add(whole.bytes);
            }
        }
        // What the driver did not take back before.
        let unmapped: Vec<(u32, usize)> = self
            .ground
            .chunks()
            .filter(|(_, chunk)| chunk.heap == heap && chunk.maps.is_empty())
            .map(|(number, chunk)| (number, chunk.bytes))
            .collect();
        for (chunk, size) in unmapped {
            self.give_back(chunk)?;
            bytes = bytes.saturating_add(size);
        }
        Ok(bytes)
    }

    /// Gives everything back, at the end: nobody has a block and the device is done. What a call refuses twice stays, and all
    /// else goes.
    pub(crate) fn close(&mut self) -> Result<(), GrowError<B::Error>> {
        let chunks: Vec<u32> = self.ground.chunks().map(|(number, _)| number).collect();
        chunks.into_iter().fold(Ok(()), |before, chunk| {
            let released = self.release(chunk).or_else(|_| self.release(chunk));
            before.and(released)
        })
    }

    /// Whether all work is done that used a handle, which is wholly free, wherever it is mapped.
    fn is_quiet(&mut self, heap: u32, chunk: u32, freed_at: u64) -> Result<bool, B::Error> {
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

    fn release(&mut self, chunk: u32) -> Result<(), GrowError<B::Error>> {
        let maps = self.ground.chunk(chunk).map(|chunk| (chunk.bytes, chunk.maps.clone()));
        let (bytes, maps) = maps.unwrap_or_default();
        for address in maps {
            self.backend.unmap(address, bytes)?;
            self.ground.unmap(address);
        }
        self.give_back(chunk)
    }

    /// Gives a handle back that is nowhere mapped.
    pub(super) fn give_back(&mut self, chunk: u32) -> Result<(), GrowError<B::Error>> {
        if let Some(record) = self.ground.chunk(chunk) {
            self.backend.release(record.memory, record.bytes)?;
            self.ground.remove(chunk);
        }
        Ok(())
    }
}

//! The page source with its heaps, for replays of traces over a model.

use super::backend::Backend;
use super::growth::{GrowError, Heaps, PageSource, Wanted};
use super::heap::{Block, BlockNumber, StreamHeap};
use super::sizes::{NoIndex, Policy, block_size};

/// A page source and heaps that go by numbers from 0, without threads. `cargo xtask replay` drives it.
pub struct Replay<B: Backend> {
    source: PageSource<B>,
    heaps: AllHeaps,
    active: usize,
    peak: usize,
}

#[derive(Debug)]
struct AllHeaps(Vec<StreamHeap>);

crate::impl_debug!([B: Backend] Replay<B>);

impl<B: Backend> Replay<B> {
    /// Over a device of `device` bytes, of which `limit` may be held.
    pub fn new(backend: B, device: usize, limit: usize, moves: bool) -> Self {
        let policy = Policy { moves, ..Policy::for_memory(device.min(limit)) };
        let mut source = PageSource::new(backend, policy, device as u64);
        source.set_limit(limit);
        Self { source, heaps: AllHeaps(Vec::new()), active: 0, peak: 0 }
    }

    /// Where memory is from.
    pub fn backend(&mut self) -> &mut B {
        &mut self.source.backend
    }

    /// Adds a heap; its number.
    pub fn add_heap(&mut self) -> u32 {
        self.heaps.0.push(StreamHeap::new());
        self.heaps.0.len() as u32 - 1
    }

    /// Allocates a block for `bytes` bytes out of what is free in a heap: its number and address.
    pub fn allocate(&mut self, heap: u32, bytes: usize) -> Option<(u32, u64)> {
        let size = block_size(bytes)?;
        let found = self.heaps.with(heap, |heap| heap.allocate(size, size - bytes, &NoIndex));
        match found.flatten() {
            Some(block) => Some(self.count(block)),
            None => {
                self.source.begin();
                None
            }
        }
    }

    /// As [`Replay::allocate`], with more memory. None without; what the backend says otherwise, or None for faults of the records.
    pub fn grow(&mut self, heap: u32, bytes: usize) -> Result<Option<(u32, u64)>, Option<B::Error>> {
        let Some(size) = block_size(bytes) else { return Ok(None) };
        let wanted = Wanted { size, unused: size - bytes, peak: self.peak.max(self.active + size) };
        match self.source.grow(heap, &mut self.heaps, wanted) {
            Ok(block) => Ok(Some(self.count(block))),
            Err(GrowError::OutOfMemory) => Ok(None),
            Err(GrowError::Backend(error)) => Err(Some(error)),
            Err(GrowError::NoNumbers | GrowError::InUse { .. }) => Err(None),
        }
    }

    /// Frees a block of a heap; false if there is none of that number.
    pub fn free(&mut self, heap: u32, number: u32) -> bool {
        let freed = self.heaps.with(heap, |heap| heap.free(BlockNumber(number), &NoIndex)).flatten();
        self.active -= freed.map_or(0, |freed| freed.size);
        freed.is_some()
    }

    /// Gives free memory back that the device is done with, until `most` bytes, of a heap first and then of the others.
    pub fn trim(&mut self, first: u32, most: usize) -> Result<(), Option<B::Error>> {
        self.heaps.0.iter_mut().for_each(|heap| heap.coalesce(&NoIndex));
        let mut bytes = 0;
        for heap in std::iter::once(first).chain(self.heaps.others(first)) {
            if bytes < most {
                let released = self.source.release_free(heap, &mut self.heaps, most - bytes);
                bytes += released.map_err(|error| match error {
                    GrowError::Backend(error) => Some(error),
                    _ => None,
                })?;
            }
        }
        Ok(())
    }

    /// Host memory that the records take, in bytes.
    pub fn metadata_bytes(&self) -> usize {
        self.source.metadata_bytes() + self.heaps.0.iter().map(StreamHeap::metadata_bytes).sum::<usize>()
    }

    fn count(&mut self, block: Block) -> (u32, u64) {
        self.active += block.size;
        self.peak = self.peak.max(self.active);
        (block.number.0, block.address)
    }
}

impl Heaps for AllHeaps {
    type Index = NoIndex;

    fn others(&self, but: u32) -> Vec<u32> {
        (0..self.0.len() as u32).filter(|number| *number != but).collect()
    }

    fn with<R>(&mut self, heap: u32, body: impl FnOnce(&mut StreamHeap) -> R) -> Option<R> {
        self.0.get_mut(heap as usize).map(body)
    }

    fn index(&self, _heap: u32) -> NoIndex {
        NoIndex
    }
}

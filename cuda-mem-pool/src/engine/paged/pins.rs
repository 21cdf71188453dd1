//! What is behind addresses, and what has to stay there.

use super::backend::Backend;
use super::source::PageSource;

/// The handle behind an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Backing {
    /// No other handle ever has it.
    pub(crate) id: u64,
    /// The backend's number.
    pub(crate) memory: u64,
    /// Where the handle is mapped, whole.
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    /// The number of the last change; a later one has a higher number, whichever handle it is of.
    pub(crate) generation: u64,
    pub(crate) pins: u32,
}

impl<B: Backend> PageSource<B> {
    /// The handle that blocks at this address are in. None if there is no memory, or memory that has left.
    pub(crate) fn backing(&self, address: u64) -> Option<Backing> {
        self.offered(address).map(|(backing, ..)| backing)
    }

    /// As [`PageSource::backing`], and where its part at this address ends.
    pub(crate) fn backing_until(&self, address: u64) -> Option<(Backing, u64)> {
        self.offered(address).map(|(backing, _, end)| (backing, end))
    }

    /// Has the handles behind a range stay where they are, until they are unpinned as often. None, and none is pinned, if some
    /// of the range has no memory. Their numbers, which stay theirs meanwhile.
    pub(crate) fn pin(&mut self, from: u64, to: u64) -> Option<Vec<u32>> {
        let mut chunks = Vec::new();
        let mut at = from;
        while at < to {
            let (_, chunk, end) = self.offered(at)?;
            chunks.push(chunk);
            at = end;
        }
        for chunk in &chunks {
            if let Some(chunk) = self.ground.chunk_mut(*chunk) {
                chunk.pins = chunk.pins.saturating_add(1);
            }
        }
        Some(chunks)
    }

    pub(crate) fn unpin(&mut self, chunks: &[u32]) {
        for chunk in chunks {
            if let Some(chunk) = self.ground.chunk_mut(*chunk) {
                chunk.pins = chunk.pins.saturating_sub(1);
            }
        }
    }

    /// The bytes in pinned handles.
    pub(crate) fn pinned(&self) -> usize {
        self.ground.chunks().filter(|(_, chunk)| chunk.pins > 0).map(|(_, chunk)| chunk.bytes).sum()
    }

    /// The handle that is offered, or in use, at an address, its number, and where that ends.
    fn offered(&self, address: u64) -> Option<(Backing, u32, u64)> {
        let (start, map) = self.ground.covering(address)?;
        let (from, to) = (start + map.from() as u64, start + map.to() as u64);
        let chunk = self.ground.chunk(map.chunk).filter(|_| (from..to).contains(&address))?;
        let backing = Backing {
            id: chunk.id,
            memory: chunk.memory,
            address: start,
            bytes: chunk.bytes,
            generation: chunk.generation,
            pins: chunk.pins,
        };
        Some((backing, map.chunk, to))
    }
}

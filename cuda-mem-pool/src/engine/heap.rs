//! Segments and the blocks they are cut into.

use super::classes::{self, GRANULE};
use super::free::{FreeLists, Links, Listed};
use super::growth;
use super::slab::{NONE, Slab};

/// Segments of one kind of memory, cut into blocks. `S` is what a segment's owner knows it by.
#[derive(Debug)]
pub(crate) struct Heap<S> {
    segments: Slab<Segment<S>>,
    blocks: Slab<Record>,
    free: FreeLists,
    free_bytes: usize,
    /// Of all segments.
    bytes: usize,
    /// The most bytes that were ever in blocks.
    most_used: usize,
}

/// A block that was handed out. Its number is used again, with another generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BlockId {
    number: u32,
    generation: u32,
}

/// What an allocation gives.
#[derive(Debug)]
pub(crate) struct Grant<'h, S> {
    pub(crate) block: BlockId,
    pub(crate) segment: &'h S,
    /// Where in the segment the block starts, a multiple of [`GRANULE`].
    pub(crate) offset: usize,
}

/// What a free did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Freed {
    pub(crate) size: usize,
    /// Whether nothing of the segment is in use any more.
    pub(crate) whole_segment: bool,
}

/// A block was freed that is not one, any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnknownBlock;

#[derive(Debug)]
struct Segment<S> {
    memory: S,
    bytes: usize,
    /// The block at offset 0.
    first: u32,
}

/// A piece of a segment, in use or free.
#[derive(Debug)]
struct Record {
    segment: u32,
    offset: usize,
    size: usize,
    is_free: bool,
    /// The neighbours in the segment.
    before: u32,
    after: u32,
    links: Links,
}

impl<S> Heap<S> {
    pub(crate) fn new() -> Self {
        Self {
            segments: Slab::new(),
            blocks: Slab::new(),
            free: FreeLists::new(classes::MAX),
            free_bytes: 0,
            bytes: 0,
            most_used: 0,
        }
    }

    /// The bytes that are in no block.
    pub(crate) fn free_bytes(&self) -> usize {
        self.free_bytes
    }

    /// A block of `size` bytes, a multiple of [`GRANULE`]; what is left of the free block that it comes from stays free. None
    /// if nothing free is large enough.
    pub(crate) fn allocate(&mut self, size: usize) -> Option<Grant<'_, S>> {
        debug_assert!(size > 0 && size.is_multiple_of(GRANULE));
        let number = self.free.find(&self.blocks, size)?;
        self.free.remove(&mut self.blocks, number);
        self.split(number, size);
        let generation = self.blocks.generation(number)?;
        let record = self.blocks.get_mut(number)?;
        record.is_free = false;
        let (segment, offset, bytes) = (record.segment, record.offset, record.size);
        self.free_bytes = self.free_bytes.saturating_sub(bytes);
        self.most_used = self.most_used.max(self.bytes.saturating_sub(self.free_bytes));
        let segment = &self.segments.get(segment)?.memory;
        Some(Grant { block: BlockId { number, generation }, segment, offset })
    }

    /// Adds a free segment of `bytes` bytes, a multiple of [`GRANULE`]. The memory comes back if there are no more numbers.
    pub(crate) fn add_segment(&mut self, bytes: usize, memory: S) -> Result<(), S> {
        debug_assert!(bytes > 0 && bytes.is_multiple_of(GRANULE));
        let segment = match self.segments.insert(Segment { memory, bytes, first: NONE }) {
            Ok(segment) => segment,
            Err(segment) => return Err(segment.memory),
        };
        let Ok(first) = self.blocks.insert(Record::free(segment, 0, bytes, NONE, NONE)) else {
            return self.segments.remove(segment).map_or(Ok(()), |segment| Err(segment.memory));
        };
        if let Some(segment) = self.segments.get_mut(segment) {
            segment.first = first;
        }
        self.free.insert(&mut self.blocks, first);
        self.free_bytes = self.free_bytes.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(())
    }

    /// Takes a block back and joins it with its free neighbours.
    pub(crate) fn free(&mut self, block: BlockId) -> Result<Freed, UnknownBlock> {
        let known = self.blocks.generation(block.number) == Some(block.generation);
        let record = self.blocks.get_mut(block.number).filter(|record| known && !record.is_free);
        let record = record.ok_or(UnknownBlock)?;
        record.is_free = true;
        let (size, before, after) = (record.size, record.before, record.after);
        self.free_bytes = self.free_bytes.saturating_add(size);
        let mut joined = block.number;
        if self.is_free(after) {
            self.free.remove(&mut self.blocks, after);
            self.join(joined, after);
        }
        if self.is_free(before) {
            self.free.remove(&mut self.blocks, before);
            self.join(before, joined);
            joined = before;
        }
        self.free.insert(&mut self.blocks, joined);
        let alone =
            self.blocks.get(joined).is_some_and(|record| record.before == NONE && record.after == NONE);
        Ok(Freed { size, whole_segment: alone })
    }

    /// Takes segments out that are wholly free, largest first, until `enough` says so. It is told the bytes taken so far.
    pub(crate) fn take_free(&mut self, mut enough: impl FnMut(usize) -> bool) -> Vec<(usize, S)> {
        let mut free: Vec<(usize, u32)> = self
            .segments
            .iter()
            .filter(|(_, segment)| self.is_whole(segment))
            .map(|(number, segment)| (segment.bytes, number))
            .collect();
        free.sort_unstable_by(|one, other| other.cmp(one));
        let mut taken = Vec::new();
        let mut bytes = 0;
        for (_, number) in free {
            if enough(bytes) {
                break;
            }
            let Some(segment) = self.segments.remove(number) else { continue };
            self.free.remove(&mut self.blocks, segment.first);
            self.blocks.remove(segment.first);
            self.free_bytes = self.free_bytes.saturating_sub(segment.bytes);
            self.bytes = self.bytes.saturating_sub(segment.bytes);
            bytes = bytes.saturating_add(segment.bytes);
            taken.push((segment.bytes, segment.memory));
        }
        taken
    }

    /// Takes wholly free segments out, largest first, as long as far more is held than was ever in use at once. None from a
    /// heap whose free blocks are mostly found again.
    pub(crate) fn take_surplus(&mut self) -> Vec<(usize, S)> {
        let surplus = self.surplus();
        self.take_free(|taken| taken >= surplus)
    }

    /// How much more is held than should be for what was ever in use at once.
    pub(crate) fn surplus(&self) -> usize {
        growth::surplus(self.bytes, self.most_used)
    }

    /// Offset, size and freedom of every block of every segment, in order.
    #[cfg(test)]
    pub(crate) fn layout(&self) -> Vec<Vec<(usize, usize, bool)>> {
        let mut layout = Vec::new();
        for (_, segment) in self.segments.iter() {
            let mut blocks = Vec::new();
            let mut number = segment.first;
            while let Some(record) = self.blocks.get(number) {
                blocks.push((record.offset, record.size, record.is_free));
                number = record.after;
            }
            layout.push(blocks);
        }
        layout
    }

    fn is_whole(&self, segment: &Segment<S>) -> bool {
        self.blocks.get(segment.first).is_some_and(|first| first.is_free && first.size == segment.bytes)
    }

    fn is_free(&self, number: u32) -> bool {
        self.blocks.get(number).is_some_and(|record| record.is_free)
    }

    /// Cuts a block, which is in no list, to `size` bytes; the rest becomes a free block. Without a number for the rest the
    /// block stays as it is.
    fn split(&mut self, number: u32, size: usize) {
        let Some(record) = self.blocks.get(number) else { return };
        if record.size <= size {
            return;
        }
        let (segment, after) = (record.segment, record.after);
        let rest = Record::free(segment, record.offset + size, record.size - size, number, after);
        let Ok(rest) = self.blocks.insert(rest) else { return };
        if let Some(record) = self.blocks.get_mut(number) {
            (record.size, record.after) = (size, rest);
        }
        if let Some(after) = self.blocks.get_mut(after) {
            after.before = rest;
        }
        self.free.insert(&mut self.blocks, rest);
    }

    /// Makes one block of two neighbours that are in no list.
    fn join(&mut self, number: u32, after: u32) {
        let Some(gone) = self.blocks.remove(after) else { return };
        if let Some(record) = self.blocks.get_mut(number) {
            (record.size, record.after) = (record.size + gone.size, gone.after);
        }
        if let Some(next) = self.blocks.get_mut(gone.after) {
            next.before = number;
        }
    }
}

impl Record {
    fn free(segment: u32, offset: usize, size: usize, before: u32, after: u32) -> Self {
        Self { segment, offset, size, is_free: true, before, after, links: Links::NONE }
    }
}

impl Listed for Record {
    fn size(&self) -> usize {
        self.size
    }

    fn links(&self) -> Links {
        self.links
    }

    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

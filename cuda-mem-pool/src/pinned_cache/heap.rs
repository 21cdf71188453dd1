//! Cuts segments into blocks, and tells how large the next segment is.
//!
//! Offsets and sizes only: no memory, no driver, no lock. A large block gets a segment of its own size, to the page. Small blocks share
//! segments that grow with what is held, so that the unused end of the last one stays below one part in 128 of the whole.

use crate::engine::classes::{self, GRANULE, LARGE, PAGE};
use crate::engine::free::{FreeLists, Links, Listed};
use crate::engine::slab::{NONE, Slab};

/// The smallest shared segment: one huge page.
pub(super) const SMALLEST: usize = 2 << 20;
/// The largest shared segment: a larger one would not be ready sooner, byte for byte.
pub(super) const LARGEST: usize = 64 << 20;
/// What part of the held bytes a new shared segment may be.
const PART: usize = 128;
/// What part of the bytes that were ever in use at once may be held beside them before more is pinned for a large block, but
/// never less than [`SPARE`]. Sizes that seldom come again cut up what is free; beyond this, pieces that fit nothing go back.
const SPARE_PART: usize = 4;
/// Less than this is not worth a wait for the device.
const SPARE: usize = 256 << 20;
/// What part of the held bytes may lie ready for small blocks that nobody has asked for yet.
const RESERVE_PART: usize = 256;

/// Segments of one kind of memory, cut into blocks. `S` is what a segment's owner knows it by.
#[derive(Debug)]
pub(super) struct Heap<S> {
    segments: Slab<Segment<S>>,
    blocks: Slab<Record>,
    free: FreeLists,
    free_bytes: usize,
    /// Of all segments.
    bytes: usize,
    /// The most bytes that were ever in blocks.
    most_used: usize,
}

/// A block that was handed out. Whoever has it gives it back once.
#[derive(Debug)]
pub(super) struct BlockId(u32);

#[derive(Debug)]
pub(super) struct Grant<'h, S> {
    pub(super) block: BlockId,
    pub(super) segment: &'h S,
    /// Where in the segment the block starts, a multiple of [`GRANULE`].
    pub(super) offset: usize,
}

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
    pub(super) fn new() -> Self {
        Self {
            segments: Slab::default(),
            blocks: Slab::default(),
            free: FreeLists::new(classes::MAX),
            free_bytes: 0,
            bytes: 0,
            most_used: 0,
        }
    }

    /// The bytes that are in no block.
    pub(super) fn free_bytes(&self) -> usize {
        self.free_bytes
    }

    /// A block of `size` bytes, a multiple of [`GRANULE`]; what is left of the free block that it comes from stays free. None
    /// if nothing free is large enough.
    pub(super) fn allocate(&mut self, size: usize) -> Option<Grant<'_, S>> {
        debug_assert!(size > 0 && size.is_multiple_of(GRANULE));
        let number = self.free.find(&self.blocks, size)?;
        self.free.remove(&mut self.blocks, number);
        self.split(number, size);
        let record = self.blocks.get_mut(number)?;
        record.is_free = false;
        let (segment, offset, bytes) = (record.segment, record.offset, record.size);
        self.free_bytes = self.free_bytes.saturating_sub(bytes);
        self.most_used = self.most_used.max(self.bytes.saturating_sub(self.free_bytes));
        let segment = &self.segments.get(segment)?.memory;
        Some(Grant { block: BlockId(number), segment, offset })
    }

    /// Adds a free segment of `bytes` bytes, a multiple of [`GRANULE`]. The memory comes back if there are no more numbers.
    pub(super) fn add_segment(&mut self, bytes: usize, memory: S) -> Result<(), S> {
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

    /// Takes a block back and joins it with its free neighbours. Whether nothing of its segment is in use any more.
    pub(super) fn free(&mut self, block: BlockId) -> bool {
        let BlockId(mut joined) = block;
        let Some(record) = self.blocks.get_mut(joined) else { return false };
        record.is_free = true;
        let (size, before, after) = (record.size, record.before, record.after);
        self.free_bytes = self.free_bytes.saturating_add(size);
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
        self.blocks.get(joined).is_some_and(|record| record.before == NONE && record.after == NONE)
    }

    /// Takes segments out that are wholly free, largest first, until `enough` says so. It is told the bytes taken so far.
    pub(super) fn take_free(&mut self, mut enough: impl FnMut(usize) -> bool) -> Vec<(usize, S)> {
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
    pub(super) fn take_surplus(&mut self) -> Vec<(usize, S)> {
        let surplus = self.surplus();
        self.take_free(|taken| taken >= surplus)
    }

    /// How much more is held than should be for what was ever in use at once.
    pub(super) fn surplus(&self) -> usize {
        let spare = (self.most_used / SPARE_PART).max(SPARE);
        self.bytes.saturating_sub(self.most_used.saturating_add(spare))
    }

    /// Offset, size and freedom of every block of every segment, in order.
    #[cfg(test)]
    pub(super) fn layout(&self) -> Vec<Vec<(usize, usize, bool)>> {
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

/// The bytes of a segment for a block of `block` bytes, which is rounded already, when `held` bytes are held.
pub(super) fn segment_for(block: usize, held: usize) -> usize {
    if block >= LARGE {
        return block.next_multiple_of(PAGE);
    }
    let shared = (held / PART).clamp(SMALLEST, LARGEST);
    // As many such blocks as fit without a rest: a program's blocks are often all alike.
    let blocks = (shared / block).max(1);
    (blocks * block).next_multiple_of(PAGE)
}

/// The bytes of a segment that is made ahead of requests.
pub(super) fn segment_ahead(held: usize) -> usize {
    (held / RESERVE_PART).clamp(SMALLEST, LARGEST).next_multiple_of(PAGE)
}

/// Whether so few bytes are free for small blocks that a segment should be made ahead.
pub(super) fn runs_short(free: usize, held: usize) -> bool {
    free < segment_ahead(held) / 2
}

//! Cuts segments into blocks, and tells how large the next segment is.
//!
//! Offsets and sizes only: no memory, no driver, no lock. A large block gets a segment of its own size, to the page. Small blocks share
//! segments that grow with what is held, so that the unused end of the last one stays below one part in 128 of the whole.

use std::collections::BTreeMap;

use crate::engine::classes::{GRANULE, LARGE, PAGE};
use crate::engine::paged::Spans;

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

/// Segments of one kind of memory, cut into blocks. `S` is what a segment's owner knows it by.
#[derive(Debug)]
pub(super) struct Heap<S> {
    /// By where they begin in `spans`, with their bytes.
    pub(super) segments: BTreeMap<u64, (usize, S)>,
    /// The blocks, in addresses that stand for segments: each has some of its own, and none is another's neighbour.
    pub(super) spans: Spans,
    /// The first address that no segment had.
    next: u64,
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

impl<S> Heap<S> {
    pub(super) fn new() -> Self {
        Self { segments: BTreeMap::new(), spans: Spans::new(None, usize::MAX), next: 0, most_used: 0 }
    }

    /// A block of `size` bytes, a multiple of [`GRANULE`], from a free block whose rest stays free. None if nothing free is large enough.
    pub(super) fn allocate(&mut self, size: usize) -> Option<Grant<'_, S>> {
        debug_assert!(size > 0 && size.is_multiple_of(GRANULE));
        let (span, address) = self.spans.find(size, None)?;
        let number = self.spans.take(span, address, size, 0)?;
        self.most_used = self.most_used.max(self.spans.used_bytes());
        let (start, (_, segment)) = self.segments.range(..=address).next_back()?;
        Some(Grant { block: BlockId(number), segment, offset: (address - start) as usize })
    }

    /// Adds a free segment of `bytes` bytes, a multiple of [`GRANULE`]. The memory comes back if there are no more numbers.
    pub(super) fn add_segment(&mut self, bytes: usize, memory: S) -> Result<(), S> {
        debug_assert!(bytes > 0 && bytes.is_multiple_of(GRANULE));
        if self.spans.offer(self.next, bytes, 0).is_none() {
            return Err(memory);
        }
        self.segments.insert(self.next, (bytes, memory));
        self.next += (bytes + GRANULE) as u64;
        Ok(())
    }

    /// Takes a block back and joins it with its free neighbours. Whether nothing of its segment is in use any more.
    pub(super) fn free(&mut self, block: BlockId) -> bool {
        self.spans.release(block.0, 0).is_some()
    }

    /// Takes segments out that are wholly free, largest first, until `enough` says so. It is told the bytes taken so far.
    pub(super) fn take_free(&mut self, mut enough: impl FnMut(usize) -> bool) -> Vec<(usize, S)> {
        let mut free: Vec<_> = self.segments.keys().filter_map(|start| self.spans.free_run(*start)).collect();
        free.sort_unstable_by_key(|run| std::cmp::Reverse((run.size, run.address)));
        let mut taken = Vec::new();
        let mut bytes = 0;
        for run in free {
            if enough(bytes) {
                break;
            }
            self.spans.withdraw(run.number, run.address, run.size);
            taken.extend(self.segments.remove(&run.address));
            bytes = bytes.saturating_add(run.size);
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
        self.spans.held_bytes().saturating_sub(self.most_used.saturating_add(spare))
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

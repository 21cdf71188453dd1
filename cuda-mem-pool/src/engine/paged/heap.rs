//! The blocks of one stream.

use super::sizes::{BlockIndex, MEDIUM, SMALL, Tier};
use super::slabs::{QUICK_BYTES, Slabs};
use super::spans::{Piece, Spans};

/// The memory that one stream has: mapped ranges, from which large blocks are cut, and slabs of it for the others.
///
/// What is freed here is free in the order of the stream, and so may be handed out again at once.
#[derive(Debug)]
pub(crate) struct StreamHeap {
    pub(super) large: Spans,
    medium: Slabs,
    small: Slabs,
    /// Counts the frees and what else makes memory free.
    now: u64,
}

const LARGE_QUICK_BYTES: usize = 32 << 20;

/// What is free at the end of a run grows with the run. From this size on small blocks are kept out of it, so that large ones find it whole.
const END_BYTES: usize = 128 << 20;

/// Whether freed blocks of `waits` bytes whose other streams are done come back before one of `size` bytes is looked for: those of its size,
/// and all before one of 96 MiB or more, so that the best fit is the best.
#[must_use]
pub const fn goes_first(waits: usize, size: usize) -> bool {
    waits == size || size >= 96 << 20
}

/// A block that was handed out. Its address and its size in bytes are multiples of 512.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) number: BlockNumber,
    pub(crate) address: u64,
    pub(crate) size: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Freed {
    pub(crate) size: usize,
    /// How many of them were not asked for.
    pub(crate) unused: usize,
}

/// A block's number in its heap, by which it is freed.
// The tier in the two highest bits, the number within it below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct BlockNumber(pub(crate) u32);

/// The lower bits of a [`BlockNumber`]; those of small blocks fit into what the index keeps of them.
const NUMBER: u32 = (1 << 30) - 1;

impl BlockNumber {
    #[inline]
    pub(crate) const fn new(tier: Tier, number: u32) -> Self {
        Self((tier as u32) << 30 | number)
    }

    #[inline]
    pub(crate) const fn parts(self) -> (Tier, u32) {
        let tier = match self.0 >> 30 {
            0 => Tier::Small,
            1 => Tier::Medium,
            _ => Tier::Large,
        };
        (tier, self.0 & NUMBER)
    }
}

impl StreamHeap {
    pub(crate) fn new() -> Self {
        let (medium, small) = (Slabs::new(Tier::Medium), Slabs::new(Tier::Small));
        Self { large: Spans::new(None, END_BYTES), medium, small, now: 0 }
    }

    /// Allocates a block of `size` bytes, `unused` of which were not asked for, out of what is free here.
    #[inline]
    pub(crate) fn allocate(&mut self, size: usize, unused: usize, index: &impl BlockIndex) -> Option<Block> {
        match self.take_quick(size, unused) {
            Some(block) => Some(block),
            None => self.cut(size, unused, None, index),
        }
    }

    /// Takes a block of exactly `size` bytes from its quick list. It is in the index as it was.
    #[inline(always)]
    pub(crate) fn take_quick(&mut self, size: usize, unused: usize) -> Option<Block> {
        let tier = Tier::of(size);
        let (number, address) = self.spans_mut(tier).0.take_quick(size, unused)?;
        Some(Block { number: BlockNumber::new(tier, number), address, size })
    }

    /// Cuts a block from what is free: the bytes from `at` on, or the best fit.
    #[inline(never)]
    pub(crate) fn cut(
        &mut self,
        size: usize,
        unused: usize,
        at: Option<u64>,
        index: &impl BlockIndex,
    ) -> Option<Block> {
        // Empty slabs go first where they could part what a large block needs whole.
        if at.is_some() || size >= END_BYTES {
            self.coalesce(index);
        }
        match Tier::of(size) {
            Tier::Small => self.small.cut(size, unused, at, self.now, &mut self.large, index),
            Tier::Medium => self.medium.cut(size, unused, at, self.now, &mut self.large, index),
            Tier::Large => {
                // None of its size is on a quick list: what is there joins its neighbours, so that the best fit is the best.
                while self.join_one_large(index) {}
                self.cut_at(self.large.find(size, at)?, size, unused, index)
            }
        }
    }

    /// Puts `size` bytes from `address` on, which lie in the free span of this number, to use.
    #[inline]
    pub(super) fn cut_at(
        &mut self,
        (span, address): (u32, u64),
        size: usize,
        unused: usize,
        index: &impl BlockIndex,
    ) -> Option<Block> {
        let number = self.large.take(span, address, size, unused)?;
        if !index.set_large(address, number) {
            self.large.release(number, self.now);
            return None;
        }
        Some(Block { number: BlockNumber::new(Tier::Large, number), address, size })
    }

    /// Takes a block back. None if it is not one.
    #[inline]
    pub(crate) fn free(&mut self, number: BlockNumber, index: &impl BlockIndex) -> Option<Freed> {
        let (tier, number) = number.parts();
        self.free_in(tier, number, index)
    }

    /// Takes a block of a tier back, and puts it on its quick list. It stays in the index: whoever frees it again is told that nobody has it.
    #[inline(always)]
    pub(crate) fn free_in(&mut self, tier: Tier, number: u32, index: &impl BlockIndex) -> Option<Freed> {
        self.now += 1;
        let now = self.now;
        let (spans, most) = self.spans_mut(tier);
        let freed = spans.keep(number, now);
        if spans.quick_bytes() > most {
            self.join_some(tier, index);
        }
        freed
    }

    /// Joins blocks of a tier's quick lists, which have more than they may.
    #[cold]
    #[inline(never)]
    fn join_some(&mut self, tier: Tier, index: &impl BlockIndex) {
        match tier {
            Tier::Small => _ = self.small.release_one_quick(self.now, &mut self.large, index),
            Tier::Medium => _ = self.medium.release_one_quick(self.now, &mut self.large, index),
            Tier::Large => {
                while self.large.quick_bytes() > LARGE_QUICK_BYTES && self.join_one_large(index) {}
            }
        }
    }

    /// Joins one large block of the quick lists with its free neighbours.
    #[inline(never)]
    fn join_one_large(&mut self, index: &impl BlockIndex) -> bool {
        let Some((number, address, _)) = self.large.join_one_quick() else { return false };
        index.clear_large(address, number);
        true
    }

    /// Joins all quick blocks with their free neighbours, and gives empty slabs back to the ranges.
    pub(crate) fn coalesce(&mut self, index: &impl BlockIndex) {
        self.now += 1;
        self.small.release_spare(self.now, &mut self.large, index);
        self.medium.release_spare(self.now, &mut self.large, index);
        while self.join_one_large(index) {}
    }

    /// The bytes of a block that somebody has, and those of them that were asked for.
    pub(crate) fn sizes(&self, number: BlockNumber) -> Option<(usize, usize)> {
        let (tier, inner) = number.parts();
        let spans = match tier {
            Tier::Small => &self.small.blocks,
            Tier::Medium => &self.medium.blocks,
            Tier::Large => &self.large,
        };
        spans.used(inner).map(|span| (span.size, span.requested()))
    }

    /// The spans of a tier, and how many bytes their quick lists may have.
    #[inline(always)]
    fn spans_mut(&mut self, tier: Tier) -> (&mut Spans, usize) {
        match tier {
            Tier::Small => (&mut self.small.blocks, QUICK_BYTES),
            Tier::Medium => (&mut self.medium.blocks, QUICK_BYTES),
            Tier::Large => (&mut self.large, LARGE_QUICK_BYTES),
        }
    }

    pub(crate) fn used_bytes(&self) -> usize {
        let large = self.large.used_bytes().saturating_sub(self.large.quick_bytes());
        let large = large.saturating_sub(self.slab_bytes());
        large.saturating_add(self.small.used_bytes()).saturating_add(self.medium.used_bytes())
    }

    pub(crate) fn slab_bytes(&self) -> usize {
        self.small.slab_bytes().saturating_add(self.medium.slab_bytes())
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.large.held_bytes()
    }

    /// The bytes that are in no block, those between small ones too.
    pub(crate) fn free_bytes(&self) -> usize {
        self.held_bytes().saturating_sub(self.used_bytes())
    }

    /// The longest piece that is free, and the largest block that fits without new memory: what a slab has free serves its tier alone.
    pub(crate) fn largest_free(&self) -> (usize, usize) {
        let longest = |spans: &Spans| spans.free_from(0).map(|free| free.size).max().unwrap_or(0);
        let [large, medium, small] = [&self.large, &self.medium.blocks, &self.small.blocks].map(longest);
        let in_slab = if medium > SMALL { medium.min(MEDIUM) } else { small.min(SMALL) };
        (large.max(medium).max(small), if large > MEDIUM { large } else { in_slab })
    }

    pub(crate) fn metadata_bytes(&self) -> usize {
        size_of::<Self>()
            .saturating_add(self.large.metadata_bytes())
            .saturating_add(self.medium.metadata_bytes())
            .saturating_add(self.small.metadata_bytes())
    }

    /// Blocks, and what is free beside them, in the order of addresses: for snapshots.
    pub(crate) fn pieces(&self) -> Vec<Piece> {
        let is_slab = |piece: &Piece| self.small.has(piece.address) || self.medium.has(piece.address);
        let large = self.large.pieces(false);
        let mut pieces: Vec<Piece> =
            large.filter(|piece| piece.requested.is_none() || !is_slab(piece)).collect();
        pieces.extend(self.small.blocks.pieces(true));
        pieces.extend(self.medium.blocks.pieces(true));
        pieces.sort_unstable_by_key(|piece| piece.address);
        pieces
    }

    /// The count of the stream: what was freed up to now has no higher one.
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// Counts one further: what becomes free now is later than all before.
    pub(super) fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// A heap with a free range, for tests of those who share one.
    #[cfg(all(loom, test))]
    pub(crate) fn with_free(address: u64, bytes: usize) -> Self {
        let mut heap = Self::new();
        assert!(heap.large.offer(address, bytes, 0).is_some());
        heap
    }
}

//! The blocks of one stream.

use super::extents::{Extents, Free, Moved, Piece};
use super::index::{BlockIndex, PageKind};
use super::nest::{NESTED, Nest};
use super::pages::{Homes, Pages, ROOMY};
use super::sizes::{PAGE, Tier};

/// The memory that one stream has: mapped ranges, from which large blocks are cut, and pages of it for the others.
///
/// What is freed here is free in the order of the stream, and so may be handed out again at once.
/// The [module](super) has an example.
#[derive(Debug)]
pub struct StreamHeap {
    pub(super) large: Extents,
    /// What large blocks, and pages, lie in while little is held.
    pub(super) nest: Nest,
    medium: Pages,
    small: Pages,
    /// Counts the frees and what else makes memory free.
    now: u64,
    /// How much of that is something else.
    ticks: u64,
    /// Blocks of so many bytes and more are placed by the page source, which knows where pages end.
    pub(super) placed: usize,
    /// From so many bytes on what is kept in pages is joined before the page source is asked for another one.
    pub(super) room: usize,
}

/// The most bytes of large blocks that are kept whole.
const LARGE_KEPT: usize = 32 << 20;

/// A block that was handed out. The [module](super) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Its number, by which it is freed.
    pub number: BlockNumber,
    /// Where it begins: a multiple of 512.
    pub address: u64,
    /// Its bytes: a multiple of 512.
    pub size: usize,
}

/// What a free gave back. The [module](super) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Freed {
    /// The bytes of the block.
    pub size: usize,
    /// How many of its bytes were not asked for.
    pub unused: usize,
}

/// A block's number in its heap. The [module](super) has an example.
// The tier in the two highest bits, the number within it below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockNumber(pub(crate) u32);

/// The lower bits of a [`BlockNumber`]; those of small blocks fit into what the index keeps of them.
const NUMBER: u32 = (1 << 30) - 1;

impl BlockNumber {
    #[inline]
    pub(crate) const fn new(tier: Tier, number: u32) -> Self {
        let tier = match tier {
            Tier::Large => 0,
            Tier::Medium => 1,
            Tier::Small => 2,
        };
        Self(tier << 30 | number)
    }

    #[inline]
    pub(crate) const fn parts(self) -> (Tier, u32) {
        let tier = match self.0 >> 30 {
            0 => Tier::Large,
            1 => Tier::Medium,
            _ => Tier::Small,
        };
        (tier, self.0 & NUMBER)
    }
}

impl Default for StreamHeap {
    fn default() -> Self {
        Self::new()
    }
}

impl StreamHeap {
    /// A heap without memory.
    #[must_use]
    pub fn new() -> Self {
        Self {
            large: Extents::new(None),
            nest: Nest::default(),
            medium: Pages::new(PageKind::Medium),
            small: Pages::new(PageKind::Small),
            now: 0,
            ticks: 0,
            placed: usize::MAX,
            room: ROOMY,
        }
    }

    /// A block of `size` bytes, a multiple of the granule, out of what is free here; `unused` of them were not asked for. None
    /// sends to the page source.
    #[inline]
    pub fn allocate(&mut self, size: usize, unused: usize, index: &impl BlockIndex) -> Option<Block> {
        match self.take_kept_block(size, unused) {
            Some(kept) => Some(kept),
            None => self.cut(size, unused, index),
        }
    }

    /// As [`StreamHeap::allocate`], where no block of this size is kept.
    #[inline]
    pub(crate) fn cut(&mut self, size: usize, unused: usize, index: &impl BlockIndex) -> Option<Block> {
        let homes = &mut Homes { large: &mut self.large, nest: &mut self.nest, room: self.room };
        match Tier::of(size) {
            Tier::Small => self.small.cut(size, unused, self.now, homes, index),
            Tier::Medium => self.medium.cut(size, unused, self.now, homes, index),
            Tier::Large => {
                let nested = self.take_nested(size, unused, index);
                if nested.is_some() {
                    return nested;
                }
                if size >= self.placed {
                    return None;
                }
                self.allocate_anywhere(size, unused, index)
            }
        }
    }

    #[inline]
    fn take_kept_block(&mut self, size: usize, unused: usize) -> Option<Block> {
        let tier = Tier::of(size);
        let (number, address) = match tier {
            Tier::Small => self.small.take_kept(size, unused),
            Tier::Medium => self.medium.take_kept(size, unused),
            Tier::Large => self.large.take_kept(size, unused),
        }?;
        Some(Block { number: BlockNumber::new(tier, number), address, size })
    }

    /// A large block in the ranges, wherever it fits.
    #[inline]
    pub(super) fn allocate_anywhere(
        &mut self,
        size: usize,
        unused: usize,
        index: &impl BlockIndex,
    ) -> Option<Block> {
        let number = self.large.find(size)?;
        let address = self.large.take(number, size, unused)?;
        self.large_block(number, address, size, index)
    }

    /// Takes a block back. None if it is not one.
    #[inline]
    pub fn free(&mut self, number: BlockNumber, index: &impl BlockIndex) -> Option<Freed> {
        let (tier, number) = number.parts();
        self.free_in(tier, number, index)
    }

    /// Takes a block of a tier back.
    #[inline]
    pub(crate) fn free_in(&mut self, tier: Tier, number: u32, index: &impl BlockIndex) -> Option<Freed> {
        self.now += 1;
        let homes = &mut Homes { large: &mut self.large, nest: &mut self.nest, room: self.room };
        match tier {
            Tier::Small => self.small.free(number, self.now, homes, index),
            Tier::Medium => self.medium.free(number, self.now, homes, index),
            Tier::Large if number & NESTED > 0 => self.free_nested(number, index),
            Tier::Large => {
                let kept = self.large.keep(number, self.now)?;
                if self.large.kept_bytes() > LARGE_KEPT {
                    self.keep_fewer(index);
                }
                Some(Freed { size: kept.size, unused: kept.unused })
            }
        }
    }

    #[inline(never)]
    fn free_nested(&mut self, number: u32, index: &impl BlockIndex) -> Option<Freed> {
        let (address, ..) = self.nest.used(number)?;
        index.clear_large(address, number);
        self.nest.free(number, self.now)
    }

    #[cold]
    fn keep_fewer(&mut self, index: &impl BlockIndex) {
        while self.large.kept_bytes() > LARGE_KEPT && self.release_one_large(index) {}
    }

    /// A large block in a window that can be used as it is.
    #[inline]
    fn take_nested(&mut self, size: usize, unused: usize, index: &impl BlockIndex) -> Option<Block> {
        let (number, address) = self.nest.take(size, unused, self.now)?;
        self.large_block(number, address, size, index)
    }

    /// Joins one large block that is kept with what is free.
    fn release_one_large(&mut self, index: &impl BlockIndex) -> bool {
        let Some((number, address, freed_at)) = self.large.take_any_kept() else { return false };
        index.clear_large(address, number);
        self.large.release(number, freed_at);
        true
    }

    /// Address and size of a block that is in use.
    #[inline]
    pub(crate) fn block(&self, number: BlockNumber) -> Option<Block> {
        let (tier, inner) = number.parts();
        let (address, size) = match tier {
            Tier::Small => self.small.used(inner),
            Tier::Medium => self.medium.used(inner),
            Tier::Large if inner & NESTED > 0 => {
                self.nest.used(inner).map(|(address, size, _)| (address, size))
            }
            Tier::Large => self.large.used(inner),
        }?;
        Some(Block { number, address, size })
    }

    /// The address of a block of exactly `size` bytes that was freed here and kept whole, as it is in the index.
    #[inline]
    pub(crate) fn take_kept(&mut self, size: usize, unused: usize) -> Option<u64> {
        self.take_kept_block(size, unused).map(|block| block.address)
    }

    /// As [`StreamHeap::allocate`], once all that is kept for later requests of its size may serve this one.
    #[cold]
    pub(crate) fn allocate_of_kept(
        &mut self,
        size: usize,
        unused: usize,
        index: &impl BlockIndex,
    ) -> Option<Block> {
        if self.small.kept_bytes() + self.medium.kept_bytes() + self.large.kept_bytes() == 0 {
            return None;
        }
        self.release_spare_pages(index);
        self.allocate(size, unused, index)
    }

    /// Gives pages back that nothing is in, so that they can serve anybody, and joins the blocks of others that nobody has.
    pub fn release_spare_pages(&mut self, index: &impl BlockIndex) {
        self.tick();
        let homes = &mut Homes { large: &mut self.large, nest: &mut self.nest, room: self.room };
        self.small.release_spare(self.now, homes, index);
        self.medium.release_spare(self.now, homes, index);
        self.release_kept_large(index);
    }

    /// Joins the large blocks that are kept with what is free.
    pub(crate) fn release_kept_large(&mut self, index: &impl BlockIndex) {
        while self.release_one_large(index) {}
    }

    /// The bytes in blocks, rounded; also of those that caches hold.
    pub(crate) fn used_bytes(&self) -> usize {
        let pages = self.small.pages().saturating_add(self.medium.pages()).saturating_mul(PAGE);
        let large = self.large.used_bytes().saturating_sub(self.large.kept_bytes()).saturating_sub(pages);
        let large = large.saturating_add(self.nest.used_bytes());
        large.saturating_add(self.small.used_bytes()).saturating_add(self.medium.used_bytes())
    }

    /// The bytes of the pages that small blocks lie in.
    pub(crate) fn page_bytes(&self) -> usize {
        self.small.all_pages().saturating_add(self.medium.all_pages()).saturating_mul(PAGE)
    }

    /// The bytes that are free outside of pages.
    pub(crate) fn free_beside_pages(&self) -> usize {
        let in_ranges = self.small.pages().saturating_add(self.medium.pages()).saturating_mul(PAGE);
        let nested = self.nest.used_bytes().saturating_add(self.page_bytes().saturating_sub(in_ranges));
        let free = self.large.free_bytes().saturating_add(self.large.kept_bytes());
        free.saturating_add(self.nest.held_bytes().saturating_sub(nested))
    }

    /// Whether nobody has any of it.
    pub(crate) fn is_idle(&self) -> bool {
        // The pages are counted last, which takes a look at each.
        self.medium.used_bytes() == 0 && self.small.used_bytes() == 0 && self.used_bytes() == 0
    }

    /// The bytes that are here.
    pub(crate) fn held_bytes(&self) -> usize {
        self.large.held_bytes().saturating_add(self.nest.held_bytes())
    }

    /// The bytes that are in no block, those between small ones too.
    pub(crate) fn free_bytes(&self) -> usize {
        self.held_bytes().saturating_sub(self.used_bytes())
    }

    /// The largest block that fits without new memory.
    pub(crate) fn largest_free(&self) -> usize {
        let free = self.large.free_from(0).map(|free| free.size).max().unwrap_or(0);
        free.max(self.nest.largest_free())
    }

    /// Host memory that the books take, in bytes.
    #[must_use]
    pub fn metadata_bytes(&self) -> usize {
        size_of::<Self>()
            .saturating_add(self.large.metadata_bytes())
            .saturating_add(self.nest.metadata_bytes())
            .saturating_add(self.medium.metadata_bytes())
            .saturating_add(self.small.metadata_bytes())
    }

    /// Address, size and freedom of everything here, in the order of addresses: blocks, and what is free beside them.
    #[cfg(test)]
    pub(crate) fn layout(&self) -> Vec<(u64, usize, bool)> {
        let mut layout: Vec<_> = self
            .large
            .layout()
            .into_iter()
            .filter(|(address, _, free)| *free || !(self.small.has(*address) || self.medium.has(*address)))
            .collect();
        let nested = self.nest.pieces().into_iter();
        layout.extend(nested.map(|piece| (piece.address, piece.size, piece.requested.is_none())));
        layout.extend(self.small.layout());
        layout.extend(self.medium.layout());
        layout.sort_unstable();
        layout
    }

    /// As [`StreamHeap::layout`], with what was asked for.
    pub(crate) fn pieces(&self) -> Vec<Piece> {
        let is_page = |piece: &Piece| self.small.has(piece.address) || self.medium.has(piece.address);
        let large = self.large.pieces(false);
        let mut pieces: Vec<Piece> =
            large.filter(|piece| piece.requested.is_none() || !is_page(piece)).collect();
        pieces.extend(self.nest.pieces());
        pieces.extend(self.small.pieces());
        pieces.extend(self.medium.pieces());
        pieces.sort_unstable_by_key(|piece| piece.address);
        pieces
    }

    /// The bytes that were asked for of a block that is in use.
    pub(crate) fn requested(&self, number: BlockNumber) -> Option<usize> {
        let (tier, inner) = number.parts();
        match tier {
            Tier::Small => self.small.requested(inner),
            Tier::Medium => self.medium.requested(inner),
            Tier::Large if inner & NESTED > 0 => self.nest.used(inner).map(|(.., requested)| requested),
            Tier::Large => self.large.requested(inner),
        }
    }

    /// A heap that remembers what memory comes and goes, for [`StreamHeap::take_moved`].
    pub(crate) fn watched() -> Self {
        let mut heap = Self::new();
        heap.large.watch();
        heap
    }

    /// The memory that came and went since this was asked last, in order.
    pub(crate) fn take_moved(&mut self) -> Vec<Moved> {
        if self.large.is_watched() {
            self.nest.show(&mut self.large);
        }
        self.large.take_moved()
    }

    /// The count of the stream, one further: what becomes free now is later than all before.
    pub(super) fn tick(&mut self) -> u64 {
        self.ticks += 1;
        self.now += 1;
        self.now
    }

    /// Adds a free range, which becomes free now. None if there are no more numbers for it.
    pub(super) fn offer(&mut self, address: u64, bytes: usize) -> Option<()> {
        let now = self.tick();
        self.large.offer(address, bytes, now).then_some(())
    }

    /// A heap with a free range, for tests of those who share one.
    #[cfg(all(loom, test))]
    pub(crate) fn with_free(address: u64, bytes: usize) -> Self {
        let mut heap = Self::new();
        assert!(heap.offer(address, bytes).is_some());
        heap
    }

    /// How many blocks were freed.
    pub(super) fn frees(&self) -> u64 {
        self.now - self.ticks
    }

    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// The free ranges in the order of their addresses.
    pub(super) fn free_ranges(&self) -> Vec<Free> {
        self.large.free_extents()
    }

    /// Puts `size` bytes at `address`, which are free, to use.
    pub(super) fn allocate_at(
        &mut self,
        number: u32,
        address: u64,
        size: usize,
        unused: usize,
        index: &impl BlockIndex,
    ) -> Option<Block> {
        let number = self.large.take_at(number, address, size, unused)?;
        self.large_block(number, address, size, index)
    }

    /// Puts the `size` bytes at `address` to use, wherever in a free range they lie.
    pub(super) fn take(
        &mut self,
        address: u64,
        size: usize,
        unused: usize,
        index: &impl BlockIndex,
    ) -> Option<Block> {
        let number = self.large.free_at(address, size)?;
        self.allocate_at(number, address, size, unused, index)
    }

    /// A small or medium block in a page that has nothing in it, of this number.
    pub(super) fn allocate_in_page(
        &mut self,
        (number, address): (u32, u64),
        size: usize,
        unused: usize,
        index: &impl BlockIndex,
    ) -> Option<Block> {
        let homes = &mut Homes { large: &mut self.large, nest: &mut self.nest, room: self.room };
        let pages = if Tier::of(size) == Tier::Small { &mut self.small } else { &mut self.medium };
        pages.enter(number, address, homes, index)?;
        self.allocate(size, unused, index)
    }

    /// Enters a large block, which was just taken.
    #[inline]
    pub(super) fn large_block(
        &mut self,
        number: u32,
        address: u64,
        size: usize,
        index: &impl BlockIndex,
    ) -> Option<Block> {
        if !index.set_large(address, number) {
            if number & NESTED > 0 {
                self.nest.free(number, self.now);
            } else {
                self.large.release(number, self.now);
            }
            return None;
        }
        Some(Block { number: BlockNumber::new(Tier::Large, number), address, size })
    }
}

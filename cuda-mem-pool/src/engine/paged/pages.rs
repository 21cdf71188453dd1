//! Pages of a heap, cut into blocks that are smaller than they.

use std::collections::BTreeMap;

use super::extents::{Extents, Piece};
use super::heap::{Block, BlockNumber, Freed};
use super::index::{BlockIndex, PageKind};
use super::nest::{NESTED, Nest};
use super::sizes::{MEDIUM, PAGE, SMALL, Tier};

/// How many pages stay here when nothing is in them, so that one block at the edge does not take and give a page each time.
const SPARE: usize = 1;

/// The most bytes of blocks that are kept whole; those of one page do not get there.
const KEPT: usize = 80 << 20;

/// A heap with less memory than this takes more of it before it gives up what is kept: speed is worth more than that little. With many
/// heaps each has less room than that, see [`PageSource::grow`](super::PageSource::grow).
pub(super) const ROOMY: usize = 96 << 20;

/// Where a heap's pages are from.
pub(super) struct Homes<'h> {
    pub(super) large: &'h mut Extents,
    pub(super) nest: &'h mut Nest,
    /// From so many bytes on what is kept is joined before another page is taken.
    pub(super) room: usize,
}

impl Homes<'_> {
    fn release(&mut self, number: u32, now: u64) {
        if number & NESTED > 0 {
            self.nest.free_page(number, now);
        } else {
            self.large.release(number, now);
        }
    }
}

#[derive(Debug)]
pub(super) struct Pages {
    kind: PageKind,
    blocks: Extents,
    /// The number that a page has as a large block, by its address.
    numbers: BTreeMap<u64, u32>,
    /// Pages that nothing is in.
    spare: Vec<u64>,
}

impl Pages {
    pub(super) fn new(kind: PageKind) -> Self {
        let most = match kind {
            PageKind::Small => SMALL,
            PageKind::Medium => MEDIUM,
        };
        Self { kind, blocks: Extents::new(Some(most)), numbers: BTreeMap::new(), spare: Vec::new() }
    }

    /// A block that is kept, as it is in the index: its number and address.
    #[inline]
    pub(super) fn take_kept(&mut self, size: usize, unused: usize) -> Option<(u32, u64)> {
        self.blocks.take_kept(size, unused)
    }

    /// A block that is cut from a page, of one more if need be.
    #[inline(never)]
    pub(super) fn cut(
        &mut self,
        size: usize,
        unused: usize,
        now: u64,
        homes: &mut Homes<'_>,
        index: &impl BlockIndex,
    ) -> Option<Block> {
        let number = match self.blocks.find(size) {
            Some(number) => number,
            None => {
                if homes.large.held_bytes() + homes.nest.held_bytes() >= homes.room {
                    self.release_kept(now, homes, index);
                }
                if self.blocks.find(size).is_none() {
                    match homes.nest.take_page(self.kind) {
                        Some((number, address)) => self.enter(number, address, homes, index)?,
                        None => self.add_page(homes, index)?,
                    }
                }
                self.blocks.find(size)?
            }
        };
        let address = self.blocks.take(number, size, unused)?;
        if !self.spare.is_empty() {
            let page = page_of(address);
            self.spare.retain(|spare| *spare != page);
        }
        if !index.set_in_page(address, self.kind, number, size) {
            self.blocks.release(number, 0);
            return None;
        }
        Some(self.block(number, address, size))
    }

    /// Takes a block back, and keeps it whole. It stays in the index: whoever frees it again is told that nobody has it.
    #[inline]
    pub(super) fn free(
        &mut self,
        number: u32,
        now: u64,
        homes: &mut Homes<'_>,
        index: &impl BlockIndex,
    ) -> Option<Freed> {
        let kept = self.blocks.keep(number, now)?;
        if self.blocks.kept_bytes() > KEPT {
            self.release_one_kept(now, homes, index);
        }
        Some(Freed { size: kept.size, unused: kept.unused })
    }

    /// Joins what is kept with what is free.
    pub(super) fn release_kept(&mut self, now: u64, homes: &mut Homes<'_>, index: &impl BlockIndex) {
        while self.release_one_kept(now, homes, index) {}
    }

    #[inline(never)]
    fn release_one_kept(&mut self, now: u64, homes: &mut Homes<'_>, index: &impl BlockIndex) -> bool {
        let Some((number, address, freed_at)) = self.blocks.take_any_kept() else { return false };
        index.clear_in_page(address, self.kind);
        let released = self.blocks.release(number, freed_at);
        if let Some(page) = released.and_then(|released| released.whole_run) {
            self.spare.push(page);
            if self.spare.len() > SPARE {
                self.release_page(page, now, homes, index);
            }
        }
        true
    }

    /// Gives back all that nobody has.
    pub(super) fn release_spare(&mut self, now: u64, homes: &mut Homes<'_>, index: &impl BlockIndex) {
        self.release_kept(now, homes, index);
        while let Some(page) = self.spare.last().copied() {
            self.release_page(page, now, homes, index);
        }
    }

    #[inline]
    pub(super) fn used(&self, number: u32) -> Option<(u64, usize)> {
        self.blocks.used(number)
    }

    /// The bytes of blocks that somebody has.
    pub(super) fn used_bytes(&self) -> usize {
        self.blocks.used_bytes().saturating_sub(self.blocks.kept_bytes())
    }

    pub(super) fn kept_bytes(&self) -> usize {
        self.blocks.kept_bytes()
    }

    /// How many pages are of the ranges.
    pub(super) fn pages(&self) -> usize {
        self.numbers.values().filter(|number| **number & NESTED == 0).count()
    }

    /// How many pages there are.
    pub(super) fn all_pages(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn has(&self, page: u64) -> bool {
        self.numbers.contains_key(&page)
    }

    #[inline]
    pub(super) fn requested(&self, number: u32) -> Option<usize> {
        self.blocks.requested(number)
    }

    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece> {
        self.blocks.pieces(true)
    }

    #[cfg(test)]
    pub(super) fn layout(&self) -> Vec<(u64, usize, bool)> {
        self.blocks.layout()
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        let page = size_of::<(u64, u32)>();
        self.blocks.metadata_bytes().saturating_add(self.numbers.len().saturating_mul(page))
    }

    #[inline]
    fn block(&self, number: u32, address: u64, size: usize) -> Block {
        let tier = match self.kind {
            PageKind::Small => Tier::Small,
            PageKind::Medium => Tier::Medium,
        };
        Block { number: BlockNumber::new(tier, number), address, size }
    }

    fn add_page(&mut self, homes: &mut Homes<'_>, index: &impl BlockIndex) -> Option<()> {
        let (number, address) = homes.large.find_aligned(PAGE, PAGE as u64)?;
        self.add_page_at(number, address, homes, index)
    }

    /// Makes a page of what is free at an address.
    fn add_page_at(
        &mut self,
        number: u32,
        address: u64,
        homes: &mut Homes<'_>,
        index: &impl BlockIndex,
    ) -> Option<()> {
        let number = homes.large.take_at(number, address, PAGE, 0)?;
        self.enter(number, address, homes, index)
    }

    /// Makes a page of what has this number and nothing in it.
    pub(super) fn enter(
        &mut self,
        number: u32,
        address: u64,
        homes: &mut Homes<'_>,
        index: &impl BlockIndex,
    ) -> Option<()> {
        if !index.add_page(address, self.kind) {
            homes.release(number, 0);
            return None;
        }
        if !self.blocks.offer_alone(address, PAGE) {
            index.remove_page(address);
            homes.release(number, 0);
            return None;
        }
        self.numbers.insert(address, number);
        self.spare.push(address);
        Some(())
    }

    fn release_page(&mut self, page: u64, now: u64, homes: &mut Homes<'_>, index: &impl BlockIndex) {
        self.spare.retain(|spare| *spare != page);
        self.blocks.withdraw_alone(page, PAGE);
        index.remove_page(page);
        if let Some(number) = self.numbers.remove(&page) {
            homes.release(number, now);
        }
    }
}

#[inline]
const fn page_of(address: u64) -> u64 {
    address & !(PAGE as u64 - 1)
}

//! Pages of a heap, cut into blocks that are smaller than they.

use std::collections::BTreeMap;

use super::extents::{Extents, Piece, Splits};
use super::heap::{Block, BlockNumber, Freed};
use super::index::{BlockIndex, PageKind};
use super::sizes::{PAGE, Tier};

/// How many pages stay here when nothing is in them, so that one block at the edge does not take and give a page each time.
const SPARE: usize = 1;

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
        Self { kind, blocks: Extents::new(), numbers: BTreeMap::new(), spare: Vec::new() }
    }

    #[inline]
    pub(super) fn allocate(
        &mut self,
        size: usize,
        unused: u16,
        large: &mut Extents,
        index: &impl BlockIndex,
    ) -> Option<Block> {
        let number = match self.blocks.find(size) {
            Some(number) => number,
            None => {
                self.add_page(large, index)?;
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
        Some(Block { number: BlockNumber::new(self.tier(), number), address, size })
    }

    #[inline]
    pub(super) fn free(
        &mut self,
        number: u32,
        now: u64,
        large: &mut Extents,
        index: &impl BlockIndex,
    ) -> Option<Freed> {
        let (address, _) = self.blocks.used(number)?;
        index.clear_in_page(address, self.kind);
        let released = self.blocks.release(number, now)?;
        if let Some(page) = released.whole_run {
            self.spare.push(page);
            if self.spare.len() > SPARE {
                self.release_page(page, now, large, index);
            }
        }
        Some(Freed { size: released.size, unused: released.unused })
    }

    pub(super) fn release_spare(&mut self, now: u64, large: &mut Extents, index: &impl BlockIndex) {
        while let Some(page) = self.spare.last().copied() {
            self.release_page(page, now, large, index);
        }
    }

    #[inline]
    pub(super) fn used(&self, number: u32) -> Option<(u64, usize)> {
        self.blocks.used(number)
    }

    pub(super) fn used_bytes(&self) -> usize {
        self.blocks.used_bytes()
    }

    pub(super) fn pages(&self) -> usize {
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

    /// Free pieces of pages, and pages that nothing is in, beside others.
    pub(super) fn splits(&self, large: &Extents) -> Splits {
        let mut splits = self.blocks.splits();
        let spare = self.spare.iter().filter_map(|page| self.numbers.get(page));
        let beside = spare.filter(|number| !large.is_alone(**number)).count() as u64;
        splits.add(beside, beside.saturating_mul(PAGE as u64));
        splits
    }

    #[cfg(test)]
    pub(super) fn layout(&self) -> Vec<(u64, usize, bool)> {
        self.blocks.layout()
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        let page = size_of::<(u64, u32)>();
        self.blocks.metadata_bytes().saturating_add(self.numbers.len().saturating_mul(page))
    }

    fn tier(&self) -> Tier {
        match self.kind {
            PageKind::Small => Tier::Small,
            PageKind::Medium => Tier::Medium,
        }
    }

    fn add_page(&mut self, large: &mut Extents, index: &impl BlockIndex) -> Option<()> {
        let (number, address) = large.find_aligned(PAGE, PAGE as u64)?;
        let number = large.take_at(number, address, PAGE, 0)?;
        if !index.add_page(address, self.kind) || !self.blocks.offer_alone(address, PAGE) {
            large.release(number, 0);
            return None;
        }
        self.numbers.insert(address, number);
        self.spare.push(address);
        Some(())
    }

    fn release_page(&mut self, page: u64, now: u64, large: &mut Extents, index: &impl BlockIndex) {
        self.spare.retain(|spare| *spare != page);
        self.blocks.withdraw_alone(page, PAGE);
        index.remove_page(page);
        if let Some(number) = self.numbers.remove(&page) {
            large.release(number, now);
        }
    }
}

#[inline]
const fn page_of(address: u64) -> u64 {
    address & !(PAGE as u64 - 1)
}

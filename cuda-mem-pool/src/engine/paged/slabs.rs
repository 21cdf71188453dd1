//! Slabs: 2 MiB of a heap, cut into blocks of up to 1 MiB. One kind has blocks up to 16 KiB, one those up to 1 MiB.

use std::collections::BTreeMap;

use super::heap::{Block, BlockNumber};
use super::sizes::{BlockIndex, MEDIUM, SLAB, SMALL, Tier};
use super::spans::Spans;

/// What the quick lists of slabs of one tier may have.
pub(super) const QUICK_BYTES: usize = 80 << 20;

/// A heap that has this many bytes joins its quick lists before it takes one more slab. Below, speed is worth more than the memory.
const JOINS_FROM_BYTES: usize = 96 << 20;

#[derive(Debug)]
pub(super) struct Slabs {
    /// That of its blocks: small or medium.
    tier: Tier,
    pub(super) blocks: Spans,
    /// The number that a slab has as a large block, by its address.
    numbers: BTreeMap<u64, u32>,
    /// One that is empty, kept so that a block at the edge does not take and give one each time.
    spare: Option<u64>,
}

impl Slabs {
    pub(super) fn new(tier: Tier) -> Self {
        let most = if tier == Tier::Small { SMALL } else { MEDIUM };
        Self { tier, blocks: Spans::new(Some(most), usize::MAX), numbers: BTreeMap::new(), spare: None }
    }

    /// Cuts a block from a slab: the bytes from `at` on, or any, of one more slab if need be.
    #[inline(never)]
    pub(super) fn cut(
        &mut self,
        size: usize,
        unused: usize,
        at: Option<u64>,
        now: u64,
        large: &mut Spans,
        index: &impl BlockIndex,
    ) -> Option<Block> {
        let mut found = self.blocks.find(size, at);
        if found.is_none() && large.held_bytes() >= JOINS_FROM_BYTES {
            while self.release_one_quick(now, large, index) {}
            found = self.blocks.find(size, at);
        }
        if found.is_none() {
            self.add_slab(at, large, index)?;
            found = self.blocks.find(size, at);
        }
        let (span, address) = found?;
        let number = self.blocks.take(span, address, size, unused)?;
        if self.spare == Some(address - address % SLAB as u64) {
            self.spare = None;
        }
        if !index.set_in_slab(address, number) {
            self.blocks.release(number, 0);
            return None;
        }
        Some(Block { number: BlockNumber::new(self.tier, number), address, size })
    }

    /// Joins one block of the quick lists with what is free beside it.
    #[inline(never)]
    pub(super) fn release_one_quick(&mut self, now: u64, large: &mut Spans, index: &impl BlockIndex) -> bool {
        let Some((_, address, whole)) = self.blocks.join_one_quick() else { return false };
        index.clear_in_slab(address);
        match whole {
            Some(slab) if self.spare.is_some() => self.release_slab(slab, now, large, index),
            Some(slab) => self.spare = Some(slab),
            None => {}
        }
        true
    }

    /// Joins all blocks of the quick lists, and gives back all slabs that nobody has any of.
    pub(super) fn release_spare(&mut self, now: u64, large: &mut Spans, index: &impl BlockIndex) {
        while self.release_one_quick(now, large, index) {}
        if let Some(slab) = self.spare.take() {
            self.release_slab(slab, now, large, index);
        }
    }

    pub(super) fn used_bytes(&self) -> usize {
        self.blocks.used_bytes().saturating_sub(self.blocks.quick_bytes())
    }

    pub(super) fn slab_bytes(&self) -> usize {
        self.numbers.len().saturating_mul(SLAB)
    }

    /// Whether a slab begins at an address.
    pub(super) fn has(&self, slab: u64) -> bool {
        self.numbers.contains_key(&slab)
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        let entry = size_of::<(u64, u32)>();
        self.blocks.metadata_bytes().saturating_add(self.numbers.len().saturating_mul(entry))
    }

    /// Adds the slab that `at` is in, or any.
    fn add_slab(&mut self, at: Option<u64>, large: &mut Spans, index: &impl BlockIndex) -> Option<()> {
        let (free, address) = match at {
            Some(at) => large.find(SLAB, Some(at - at % SLAB as u64)),
            None => large.find_slab(),
        }?;
        let number = large.take(free, address, SLAB, 0)?;
        let is_indexed = index.add_slab(address, self.tier);
        if !is_indexed || self.blocks.offer(address, SLAB, 0).is_none() {
            if is_indexed {
                index.remove_slab(address);
            }
            large.release(number, 0);
            return None;
        }
        self.numbers.insert(address, number);
        self.spare = Some(address);
        Some(())
    }

    fn release_slab(&mut self, slab: u64, now: u64, large: &mut Spans, index: &impl BlockIndex) {
        self.blocks.withdraw_slab(slab);
        index.remove_slab(slab);
        if let Some(number) = self.numbers.remove(&slab) {
            large.release(number, now);
        }
    }
}

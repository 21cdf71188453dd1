//! Blocks in the order in which they are searched.

use std::collections::{BTreeSet, HashMap};

use super::super::model::Refusal;
use super::blocks::{Block, Blocks, Pool, State};

/// The blocks of one device.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    blocks: Blocks,
    /// Free blocks: pool, size, address, number.
    free: BTreeSet<(Pool, u64, u64, usize)>,
    /// Blocks without memory: pool, address, number.
    unmapped: BTreeSet<(Pool, u64, usize)>,
    /// Given-out blocks by address.
    taken: HashMap<u64, usize>,
}

impl Cache {
    pub(super) fn block(&self, number: usize) -> &Block {
        self.blocks.get(number)
    }

    /// A new segment of one block, which is listed.
    pub(super) fn add_segment(&mut self, address: u64, size: u64, pool: Pool, state: State) -> usize {
        let number = self.blocks.add(Block { address, size, pool, state, previous: None, next: None });
        self.list(number);
        number
    }

    fn list(&mut self, number: usize) {
        let block = self.blocks.get(number);
        match block.state {
            State::Free => self.free.insert((block.pool, block.size, block.address, number)),
            State::Unmapped => self.unmapped.insert((block.pool, block.address, number)),
            State::Taken => self.taken.insert(block.address, number).is_none(),
        };
    }

    fn unlist(&mut self, number: usize) {
        let block = self.blocks.get(number);
        match block.state {
            State::Free => self.free.remove(&(block.pool, block.size, block.address, number)),
            State::Unmapped => self.unmapped.remove(&(block.pool, block.address, number)),
            State::Taken => self.taken.remove(&block.address).is_some(),
        };
    }

    /// The smallest free block that is large enough, the lowest of those.
    pub(super) fn best_fit(&self, pool: Pool, size: u64) -> Option<usize> {
        self.fits(pool, size).next()
    }

    /// All that are large enough, smallest first.
    pub(super) fn fits(&self, pool: Pool, size: u64) -> impl Iterator<Item = usize> {
        let from = self.free.range((pool, size, 0, 0)..);
        from.take_while(move |entry| entry.0 == pool).map(|entry| entry.3)
    }

    /// The ranges of a pool without memory, lowest first.
    pub(super) fn unmapped(&self, pool: Pool) -> impl Iterator<Item = usize> {
        let from = self.unmapped.range((pool, 0, 0)..);
        from.take_while(move |entry| entry.0 == pool).map(|entry| entry.2)
    }

    /// All free blocks.
    pub(super) fn all_free(&self) -> Vec<usize> {
        self.free.iter().map(|entry| entry.3).collect()
    }

    /// Takes the segments out that are one free block each; where they are.
    pub(super) fn take_whole_segments(&mut self) -> Vec<u64> {
        let mut addresses = Vec::new();
        for number in self.all_free() {
            let Block { address, previous: None, next: None, .. } = *self.block(number) else { continue };
            self.unlist(number);
            self.blocks.remove(number);
            addresses.push(address);
        }
        addresses
    }

    /// Gives out a free block, cut to `size`; returns its address.
    pub(super) fn take(&mut self, number: usize, size: u64) -> u64 {
        self.unlist(number);
        if self.block(number).size > size {
            let rest = self.blocks.split(number, size);
            self.list(rest);
        }
        self.blocks.get_mut(number).state = State::Taken;
        self.list(number);
        self.block(number).address
    }

    /// Takes a given-out block back; it is free once it is turned so.
    pub(super) fn take_back(&mut self, address: u64) -> Result<usize, Refusal> {
        self.taken.remove(&address).ok_or(Refusal::Invalid("a block is freed that is not live"))
    }

    /// Gives a block another state and joins it with neighbours of that state; returns the number it then has.
    pub(super) fn turn(&mut self, number: usize, state: State) -> usize {
        self.unlist(number);
        self.blocks.get_mut(number).state = state;
        let mut number = number;
        for _ in 0..2 {
            let Block { previous, next, .. } = *self.block(number);
            if let Some(previous) = previous.filter(|other| self.block(*other).state == state) {
                self.unlist(previous);
                self.blocks.join(previous, number);
                number = previous;
            } else if let Some(next) = next.filter(|other| self.block(*other).state == state) {
                self.unlist(next);
                self.blocks.join(number, next);
            }
        }
        self.list(number);
        number
    }

    /// Cuts a listed block; returns the part behind.
    pub(super) fn cut(&mut self, number: usize, size: u64) -> usize {
        self.unlist(number);
        let rest = self.blocks.split(number, size);
        self.list(number);
        self.list(rest);
        rest
    }

    pub(super) fn metadata_bytes(&self) -> u64 {
        let lists = self.free.len() * size_of::<(Pool, u64, u64, usize)>()
            + self.unmapped.len() * size_of::<(Pool, u64, usize)>()
            + self.taken.capacity() * size_of::<(u64, usize)>();
        (self.blocks.bytes() + lists) as u64
    }
}

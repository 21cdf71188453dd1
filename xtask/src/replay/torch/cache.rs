//! What both policies have: free blocks in the order in which they are searched, and blocks that wait for other streams.

use std::collections::{BTreeSet, HashMap, VecDeque};

use super::super::model::{Fence, Model, Refusal};
use super::blocks::{Block, Blocks, Pool, State};

/// The blocks of one device.
#[derive(Debug, Default)]
pub(super) struct Cache {
    blocks: Blocks,
    /// Free blocks: pool, size, address, number.
    free: BTreeSet<(Pool, u64, u64, usize)>,
    /// Blocks without memory: pool, address, number.
    unmapped: BTreeSet<(Pool, u64, usize)>,
    /// Given-out blocks by address.
    taken: HashMap<u64, usize>,
    /// Freed blocks whose other streams are not done, by stream.
    used: HashMap<u64, VecDeque<(Fence, usize)>>,
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

    /// Gives out a free block, cut to `size` if what is left is worth a block; returns its address.
    pub(super) fn take(&mut self, number: usize, size: u64, split: bool) -> u64 {
        self.unlist(number);
        if split && self.block(number).size > size {
            let rest = self.blocks.split(number, size);
            self.list(rest);
        }
        self.blocks.get_mut(number).state = State::Taken;
        self.list(number);
        self.block(number).address
    }

    /// Takes a block back, for others once a use of it has ended.
    pub(super) fn free(&mut self, address: u64, used: Option<Fence>) -> Result<(), Refusal> {
        let number =
            self.taken.remove(&address).ok_or(Refusal::Invalid("a block is freed that is not live"))?;
        match used {
            None => {
                self.turn(number, State::Free);
            }
            Some(fence) => self.used.entry(fence.stream).or_default().push_back((fence, number)),
        }
        Ok(())
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

    /// Drops a free block that is a segment by itself.
    pub(super) fn remove_segment(&mut self, number: usize) {
        self.unlist(number);
        self.blocks.remove(number);
    }

    /// Frees the blocks whose other streams are done. Each stream is asked until it is not.
    pub(super) fn collect(&mut self, model: &Model) {
        self.collect_if(|fence| model.is_complete(fence));
    }

    /// Waits for all other streams.
    pub(super) fn wait_for_uses(&mut self, model: &Model) {
        self.collect_if(|fence| {
            model.wait(fence);
            true
        });
    }

    fn collect_if(&mut self, mut is_done: impl FnMut(&Fence) -> bool) {
        let mut done = Vec::new();
        for queue in self.used.values_mut() {
            while queue.front().is_some_and(|(fence, _)| is_done(fence)) {
                done.extend(queue.pop_front().map(|(_, number)| number));
            }
        }
        for number in done {
            self.turn(number, State::Free);
        }
    }

    pub(super) fn metadata_bytes(&self) -> u64 {
        let lists = self.free.len() * size_of::<(Pool, u64, u64, usize)>()
            + self.unmapped.len() * size_of::<(Pool, u64, usize)>()
            + self.taken.capacity() * size_of::<(u64, usize)>();
        (self.blocks.bytes() + lists) as u64
    }
}

//! Blocks in a row, each with its neighbours.

/// Which blocks may stand in for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Pool {
    pub(super) stream: u64,
    pub(super) is_small: bool,
}

/// What a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Free,
    /// Given out, or freed and still used by another stream.
    Taken,
    /// Addresses without memory.
    Unmapped,
}

/// A range of addresses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub(super) address: u64,
    pub(super) size: u64,
    pub(super) pool: Pool,
    pub(super) state: State,
    /// Those before and behind it in the same segment.
    pub(super) previous: Option<usize>,
    pub(super) next: Option<usize>,
}

/// All blocks, by number. Numbers of blocks that are gone are used again.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    all: Vec<Block>,
    unused: Vec<usize>,
}

impl Blocks {
    pub(super) fn get(&self, number: usize) -> &Block {
        &self.all[number]
    }

    pub(super) fn get_mut(&mut self, number: usize) -> &mut Block {
        &mut self.all[number]
    }

    pub(super) fn bytes(&self) -> usize {
        self.all.capacity() * size_of::<Block>() + self.unused.capacity() * size_of::<usize>()
    }

    /// A block that is a segment by itself.
    pub(super) fn add(&mut self, block: Block) -> usize {
        match self.unused.pop() {
            Some(number) => {
                self.all[number] = block;
                number
            }
            None => {
                self.all.push(block);
                self.all.len() - 1
            }
        }
    }

    /// Leaves `size` bytes in a block; the rest is a new block behind it.
    pub(super) fn split(&mut self, number: usize, size: u64) -> usize {
        let block = self.all[number];
        let rest = self.add(Block {
            address: block.address + size,
            size: block.size - size,
            previous: Some(number),
            ..block
        });
        if let Some(next) = block.next {
            self.all[next].previous = Some(rest);
        }
        let first = &mut self.all[number];
        first.size = size;
        first.next = Some(rest);
        rest
    }

    /// Makes a block and the one behind it one.
    pub(super) fn join(&mut self, number: usize, behind: usize) {
        let gone = self.remove(behind);
        self.all[number].size += gone.size;
    }

    /// Takes a block out of its row.
    pub(super) fn remove(&mut self, number: usize) -> Block {
        let block = self.all[number];
        if let Some(previous) = block.previous {
            self.all[previous].next = block.next;
        }
        if let Some(next) = block.next {
            self.all[next].previous = block.previous;
        }
        self.unused.push(number);
        block
    }
}

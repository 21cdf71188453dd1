//! Which bytes of a segment are free. Offsets alone: no memory is touched here.

use std::collections::BTreeMap;

/// What offsets and sizes are multiples of, in bytes.
pub(super) const GRANULE: usize = 512;

/// The free bytes and the free pads of one segment. The first that fits is taken, so that ranks that allocate and free in the
/// same order have the same offsets.
#[derive(Debug)]
pub(super) struct Space {
    /// Where each begins, by where it ends, so that taking from its beginning leaves it in its place; neighbours are one.
    free: BTreeMap<usize, usize>,
    /// Those that are free; the last is taken next.
    pads: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) offset: usize,
    /// With what was rounded up.
    pub(super) len: usize,
    pub(super) pad: usize,
}

impl Space {
    /// All bytes from `from` to `to`, and pads from 0 on.
    pub(super) fn new(from: usize, to: usize, pads: usize) -> Self {
        Self { free: BTreeMap::from([(to, from)]), pads: (0..pads).rev().collect() }
    }

    /// The length that a size takes; none if there is none.
    pub(super) fn rounded(size: usize) -> Option<usize> {
        size.max(1).checked_next_multiple_of(GRANULE)
    }

    pub(super) fn take(&mut self, len: usize) -> Option<Block> {
        let (&end, start) = self.free.iter_mut().find(|(end, start)| **end - **start >= len)?;
        let pad = self.pads.pop()?;
        let offset = *start;
        *start += len;
        if *start == end {
            self.free.remove(&end);
        }
        Some(Block { offset, len, pad })
    }

    pub(super) fn has_pad(&self) -> bool {
        !self.pads.is_empty()
    }

    /// Takes back what a block has but its pad.
    pub(super) fn give_back(&mut self, block: Block) {
        let end = block.offset + block.len;
        let start = self.free.remove(&block.offset).unwrap_or(block.offset);
        match self.free.range_mut(end..).next() {
            Some((_, behind)) if *behind == end => *behind = start,
            _ => {
                self.free.insert(end, start);
            }
        }
    }

    pub(super) fn give_back_pad(&mut self, pad: usize) {
        self.pads.push(pad);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_that_fits_is_taken_and_neighbours_become_one() {
        let mut space = Space::new(1024, 1024 + 8 * GRANULE, 3);
        let [a, b, c] = [1, 2, 3].map(|granules| space.take(granules * GRANULE).unwrap());
        assert_eq!([a, b, c].map(|block| block.offset), [1024, 1024 + GRANULE, 1024 + 3 * GRANULE]);
        assert_eq!([a, b, c].map(|block| block.pad), [0, 1, 2]);
        assert_eq!(space.take(GRANULE), None, "there is no pad");
        space.give_back(a);
        space.give_back(c);
        space.give_back(b);
        assert_eq!(space.free, BTreeMap::from([(1024 + 8 * GRANULE, 1024)]));
        assert!(!space.has_pad());
        assert_eq!(space.take(GRANULE), None, "the pads are not back");
        [c, a, b].into_iter().for_each(|block| space.give_back_pad(block.pad));
        assert!(space.has_pad());
        let whole = space.take(8 * GRANULE).map(|block| (block.offset, block.pad));
        assert_eq!(whole, Some((1024, 1)));
    }

    proptest! {
        #[test]
        fn blocks_never_overlap_and_all_of_it_comes_back(steps: Vec<(bool, u8)>) {
            let (from, to) = (2 * GRANULE, 40 * GRANULE);
            let mut space = Space::new(from, to, 16);
            let mut taken = Vec::<Block>::new();
            for (take, number) in steps {
                if take || taken.is_empty() {
                    let Some(len) = Space::rounded(usize::from(number) * 37) else { continue };
                    let Some(block) = space.take(len) else { continue };
                    prop_assert!(block.offset >= from && block.offset + block.len <= to);
                    for other in &taken {
                        let apart = block.offset + block.len <= other.offset
                            || other.offset + other.len <= block.offset;
                        prop_assert!(apart && block.pad != other.pad);
                    }
                    taken.push(block);
                } else {
                    let block = taken.swap_remove(usize::from(number) % taken.len());
                    space.give_back(block);
                    space.give_back_pad(block.pad);
                }
            }
            for block in taken {
                space.give_back(block);
                space.give_back_pad(block.pad);
            }
            prop_assert_eq!(space.free, BTreeMap::from([(to, from)]));
            prop_assert_eq!(space.pads.len(), 16);
        }
    }
}

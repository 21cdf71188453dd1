//! Quick lists: free blocks that are kept whole, by exact size.
//!
//! Most programs ask for the same sizes again and again. A block on a quick list is neither joined with its free neighbours nor entered
//! among the free spans, so that it comes and goes in a few loads. The link to the next block lies in its record.

use super::sizes::GRANULE;
use crate::engine::slab::NONE;

#[derive(Debug)]
pub(super) struct QuickLists {
    /// The first block of each list.
    heads: Box<[u32]>,
    /// The size up to which there are lists; those of all sizes are mixed.
    most: Option<usize>,
    bytes: usize,
    /// The list from which on the next block that has to go is looked for.
    hand: usize,
}

/// Of blocks of all sizes, so many bits name the list.
const MIXED_BITS: u32 = 8;

impl QuickLists {
    /// Lists for blocks of up to `most` bytes, or of any size.
    pub(super) fn new(most: Option<usize>) -> Self {
        let lists = most.map_or(1 << MIXED_BITS, |most| most / GRANULE + 1);
        Self { heads: vec![NONE; lists].into_boxed_slice(), most, bytes: 0, hand: 0 }
    }

    #[inline]
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        size_of_val(&*self.heads)
    }

    /// The list of a size: its own up to a most, else one that it shares. Sizes of tensors are often multiples of large powers of two, so all
    /// their bits decide: the highest bits of a product with the golden ratio depend on them.
    #[inline]
    const fn list(&self, size: usize) -> usize {
        match self.most {
            Some(_) => size / GRANULE,
            None => ((size as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - MIXED_BITS)) as usize,
        }
    }

    /// The list of a size and its first block, if that list has any.
    #[inline]
    pub(super) fn first(&self, size: usize) -> Option<(usize, u32)> {
        let list = self.list(size);
        let head = *self.heads.get(list)?;
        (head != NONE).then_some((list, head))
    }

    /// Enters a block as the first of its list; the one that was first before.
    #[inline]
    pub(super) fn push(&mut self, number: u32, size: usize) -> u32 {
        self.bytes += size;
        std::mem::replace(&mut self.heads[self.list(size)], number)
    }

    /// Takes the first block, of `size` bytes, off a list; `next` is the one behind it.
    #[inline]
    pub(super) fn pop(&mut self, list: usize, next: u32, size: usize) {
        self.heads[list] = next;
        self.bytes -= size;
    }

    /// A list that has a block and its first one: all of a list, and then of the next one that has any.
    pub(super) fn next(&mut self) -> Option<(usize, u32)> {
        if self.bytes == 0 {
            return None;
        }
        // Most lists have no block: several are looked at at once.
        let has_any = |heads: &[u32]| heads.iter().fold(false, |any, head| any | (*head != NONE));
        let first_from = |from: usize| {
            let before = self.heads[from..].chunks(16).position(has_any)? * 16;
            (from + before..self.heads.len()).find(|list| self.heads[*list] != NONE)
        };
        self.hand = first_from(self.hand).or_else(|| first_from(0))?;
        Some((self.hand, self.heads[self.hand]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes of tensors: multiples of 32 KiB fell into one list of 64 when the low bits decided.
    #[test]
    fn sizes_that_are_multiples_of_a_power_of_two_have_different_lists() {
        for step in [32 << 10, 512 << 10, 2 << 20] {
            let lists = QuickLists::new(None);
            let used: std::collections::HashSet<usize> =
                (1..=64).map(|times| lists.list(times * step)).collect();
            assert!(used.len() > 48, "64 multiples of {step} share {} lists", used.len());
        }
    }

    #[test]
    fn each_small_size_has_a_list_of_its_own() {
        let lists = QuickLists::new(Some(16 << 10));
        let used: std::collections::HashSet<usize> =
            (1..=32).map(|times| lists.list(times * GRANULE)).collect();
        assert_eq!(used.len(), 32);
    }
}

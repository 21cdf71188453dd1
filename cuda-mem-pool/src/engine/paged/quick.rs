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
    /// A bit for each list that got a block since it was last seen empty: most have none, and those need not be looked at.
    filled: Box<[u64]>,
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
        let (heads, filled) = (vec![NONE; lists], vec![0; lists.div_ceil(64)]);
        Self { heads: heads.into(), filled: filled.into(), most, bytes: 0, hand: 0 }
    }

    #[inline]
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        size_of_val(&*self.heads) + size_of_val(&*self.filled)
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
        let list = self.list(size);
        self.bytes += size;
        self.filled[list / 64] |= 1 << (list % 64);
        std::mem::replace(&mut self.heads[list], number)
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
        let (mut word, mut later) = (self.hand / 64, u64::MAX << (self.hand % 64));
        // Ends: a list has a block, and its bit is set.
        loop {
            let filled = self.filled[word] & later;
            if filled == 0 {
                (word, later) = (if word + 1 < self.filled.len() { word + 1 } else { 0 }, u64::MAX);
                continue;
            }
            self.hand = word * 64 + filled.trailing_zeros() as usize;
            if self.heads[self.hand] != NONE {
                return Some((self.hand, self.heads[self.hand]));
            }
            self.filled[word] ^= 1 << (self.hand % 64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::paged::sizes::MEDIUM;

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
    /// Beside a plain map of lists: what comes and goes, and what has to go, in turn.
    #[test]
    fn lists_are_emptied_in_turn() {
        let mut random = 1u64;
        for most in [Some(MEDIUM), None] {
            let (mut lists, mut kept) = (QuickLists::new(most), std::collections::BTreeMap::new());
            let (mut links, mut hand) = (vec![NONE; 4096], 0);
            for number in 0..links.len() as u32 {
                random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
                let size = GRANULE * (1 + (random >> 33) as usize % 2048);
                let of_list: &mut Vec<_> = kept.entry(lists.list(size)).or_default();
                links[number as usize] = lists.push(number, size);
                of_list.push((number, size));
                if random >> 62 == 0 {
                    let first = lists.first(size);
                    let (number, size) = of_list.pop().unwrap();
                    assert_eq!(first, Some((lists.list(size), number)));
                    lists.pop(lists.list(size), links[number as usize], size);
                }
                for _ in 0..random >> 61 & 3 {
                    kept.retain(|_, blocks| !blocks.is_empty());
                    let later = kept.range(hand..).next().or_else(|| kept.iter().next());
                    let expected = later.map(|(list, blocks)| (*list, blocks[blocks.len() - 1].0));
                    assert_eq!(lists.next(), expected);
                    let Some((list, number)) = expected else { break };
                    hand = list;
                    let size = kept.get_mut(&list).unwrap().pop().unwrap().1;
                    lists.pop(list, links[number as usize], size);
                }
                assert_eq!(lists.bytes(), kept.values().flatten().map(|(_, size)| size).sum::<usize>());
            }
        }
    }
}

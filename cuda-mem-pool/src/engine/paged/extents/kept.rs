//! Blocks that nobody has, kept whole for the next one who wants as many bytes: neither joined with what is free beside them
//! nor entered among it. Most programs ask for the same sizes again and again, and then a block comes and goes in a few loads.

use super::{Extents, NONE, Released, State};
use crate::engine::paged::sizes::GRANULE;

/// Kept blocks by their size. The link to the next one lies where a free block has its own.
#[derive(Debug)]
pub(super) struct Kept {
    /// The first block of each list, and a bit for each list that may have any. Made when the first block is kept.
    heads: Box<[u32]>,
    bits: Box<[u64]>,
    /// How many lists there are, less one: sizes that have the same of these bits in granules share a list.
    mask: usize,
    bytes: usize,
    /// Where the next block that has to go is looked for.
    hand: usize,
}

impl Kept {
    /// For blocks of up to `most` bytes, if they have pages of their own; else for any.
    pub(super) fn new(most: Option<usize>) -> Self {
        const LISTS_OF_ALL: usize = 64;
        let lists = most.map_or(LISTS_OF_ALL, |most| (most / GRANULE).next_power_of_two());
        Self { heads: Box::default(), bits: Box::default(), mask: lists - 1, bytes: 0, hand: 0 }
    }

    #[inline]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        size_of_val(&*self.heads) + size_of_val(&*self.bits)
    }

    #[inline]
    fn list(&self, size: usize) -> usize {
        (size / GRANULE) & self.mask
    }

    #[cold]
    fn make_lists(&mut self) {
        self.heads = vec![NONE; self.mask + 1].into_boxed_slice();
        self.bits = vec![0; self.heads.len().div_ceil(64)].into_boxed_slice();
    }

    /// The first list that has a block, from where one was found last. Lists that have none any more lose their bits here, so that who
    /// takes a block has nothing to do with them.
    fn next(&mut self) -> Option<usize> {
        loop {
            let (word, from) = (self.hand / 64, self.hand % 64);
            let bits = self.bits.get_mut(word)?;
            let here = *bits & u64::MAX << from;
            if here == 0 {
                self.hand = (word + 1) * 64;
                continue;
            }
            let place = here.trailing_zeros() as usize;
            self.hand = word * 64 + place;
            if self.heads.get(self.hand).is_some_and(|head| *head != NONE) {
                return Some(self.hand);
            }
            *bits &= !(1 << place);
        }
    }
}

impl Extents {
    /// The bytes of kept blocks.
    #[inline]
    pub(in crate::engine::paged) fn kept_bytes(&self) -> usize {
        self.kept.bytes()
    }

    /// Keeps a block that is in use. None if the number is not that of a used extent.
    #[inline]
    pub(in crate::engine::paged) fn keep(&mut self, number: u32, now: u64) -> Option<Released> {
        let extent = self.records.get_mut(number).filter(|extent| extent.state == State::Used)?;
        let size = extent.size;
        let list = self.kept.list(size);
        if list >= self.kept.heads.len() {
            self.kept.make_lists();
        }
        let head = self.kept.heads.get_mut(list)?;
        extent.state = State::Kept;
        let unused = std::mem::replace(&mut extent.mark, now) as usize;
        extent.links.after = std::mem::replace(head, number);
        if extent.links.after == NONE
            && let Some(bits) = self.kept.bits.get_mut(list / 64)
        {
            *bits |= 1 << (list % 64);
        }
        self.kept.bytes += size;
        Some(Released { size, unused, whole_run: None })
    }

    /// Puts a kept block of `size` bytes to use: its number and address.
    #[inline]
    pub(in crate::engine::paged) fn take_kept(&mut self, size: usize, unused: usize) -> Option<(u32, u64)> {
        let list = self.kept.list(size);
        let number = *self.kept.heads.get(list)?;
        // Other sizes may share the list.
        self.records.get(number).filter(|extent| extent.size == size)?;
        self.take_head(list, unused)
    }

    /// Takes one block out of those that are kept, of each list in turn. It is in use then: its number and address, and since when
    /// nobody has it.
    pub(in crate::engine::paged) fn take_any_kept(&mut self) -> Option<(u32, u64, u64)> {
        if self.kept.bytes == 0 {
            return None;
        }
        let list = self.kept.next().or_else(|| {
            self.kept.hand = 0;
            self.kept.next()
        })?;
        let freed_at = self.records.get(*self.kept.heads.get(list)?)?.mark;
        let (number, address) = self.take_head(list, 0)?;
        Some((number, address, freed_at))
    }

    #[inline]
    fn take_head(&mut self, list: usize, unused: usize) -> Option<(u32, u64)> {
        let head = self.kept.heads.get_mut(list)?;
        let number = *head;
        let extent = self.records.get_mut(number)?;
        *head = extent.links.after;
        extent.state = State::Used;
        extent.mark = unused as u64;
        self.kept.bytes -= extent.size;
        Some((number, extent.address))
    }
}

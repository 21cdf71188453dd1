//! Free blocks by size: a list a class, and bits that say which lists have any, so that a fit is found in a few steps
//! however many blocks there are. Large ends of runs are in a list behind all others: small blocks get them last.
//!
//! The links lie in the records, never in the memory: pinned pages may be a device's to write.

use super::spans::Span;
use crate::engine::classes::{self, GROUPS, STEPS};
use crate::engine::slab::{NONE, Slab};

/// The neighbours in the list of free blocks of this size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Links {
    before: u32,
    pub(super) after: u32,
}

impl Links {
    pub(super) const NONE: Self = Self { before: NONE, after: NONE };
}

/// How many blocks of one list are looked at. A list holds blocks that differ by 3 %, so more would gain little.
const LOOKED_AT: usize = 64;

#[derive(Debug)]
pub(super) struct FreeLists {
    groups: u64,
    /// Which lists of a group have blocks.
    lists: [u32; GROUPS],
    heads: Box<[u32]>,
    /// The size of large ends of runs, in bytes.
    end_bytes: usize,
}

const _: () = assert!(GROUPS <= 64 && STEPS == 32);

impl FreeLists {
    pub(super) fn new(most: usize, end_bytes: usize) -> Self {
        let lists = classes::floor(most) + 2;
        Self { groups: 0, lists: [0; GROUPS], heads: vec![NONE; lists].into_boxed_slice(), end_bytes }
    }

    /// The host memory that the lists take beside themselves and the records.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.heads)
    }

    /// The list of the large ends of runs.
    const fn ends(&self) -> usize {
        self.heads.len() - 1
    }

    /// Enters a block, whose record says that it is free.
    pub(super) fn insert(&mut self, blocks: &mut Slab<Span>, number: u32) {
        let Some(record) = blocks.get_mut(number) else { return };
        let is_end = record.after == NONE && record.size >= self.end_bytes;
        let class = if is_end { self.ends() } else { classes::floor(record.size) };
        let head = std::mem::replace(&mut self.heads[class], number);
        record.links = Links { before: NONE, after: head };
        if let Some(head) = blocks.get_mut(head) {
            head.links.before = number;
        }
        self.lists[class / STEPS] |= 1 << (class % STEPS);
        self.groups |= 1 << (class / STEPS);
    }

    pub(super) fn remove(&mut self, blocks: &mut Slab<Span>, number: u32) {
        let Some(record) = blocks.get(number) else { return };
        let (size, Links { before, after }) = (record.size, record.links);
        if let Some(after) = blocks.get_mut(after) {
            after.links.before = before;
        }
        if let Some(before) = blocks.get_mut(before) {
            before.links.after = after;
            return;
        }
        // What its run's end is may have changed since it was entered.
        let class = if self.heads[self.ends()] == number { self.ends() } else { classes::floor(size) };
        self.heads[class] = after;
        if after == NONE {
            let group = class / STEPS;
            self.lists[group] &= !(1 << (class % STEPS));
            if self.lists[group] == 0 {
                self.groups &= !(1 << group);
            }
        }
    }

    /// A free block of at least `size` bytes, the smallest of those that were looked at; a large end for a smaller block if nothing else fits.
    pub(super) fn find(&self, blocks: &Slab<Span>, size: usize) -> Option<u32> {
        let class = classes::floor(size);
        // The blocks of this list may be smaller, and ends of runs; those of every other one fit.
        let same = self.smallest_in(blocks, class, size);
        let hole = same.or_else(|| self.smallest_in(blocks, self.next_after(class)?, size));
        if size < self.end_bytes {
            return hole;
        }
        let end = self.smallest_in(blocks, self.ends(), size);
        let bytes = |number: &u32| blocks.get(*number).map_or(usize::MAX, |block| block.size);
        hole.into_iter().chain(end).min_by_key(bytes)
    }

    /// Free blocks of about `size` bytes and more, the smaller ones first: their numbers and records.
    pub(super) fn candidates<'l>(
        &'l self,
        blocks: &'l Slab<Span>,
        size: usize,
    ) -> impl Iterator<Item = (u32, &'l Span)> {
        let mut class = classes::floor(size);
        let mut next = self.heads.get(class).copied().unwrap_or(NONE);
        std::iter::from_fn(move || {
            loop {
                if let Some(block) = blocks.get(next) {
                    return Some((std::mem::replace(&mut next, block.links.after), block));
                }
                class = self.next_after(class)?;
                next = self.heads[class];
            }
        })
    }

    fn smallest_in(&self, blocks: &Slab<Span>, class: usize, size: usize) -> Option<u32> {
        let mut best: Option<(usize, u32)> = None;
        let mut number = self.heads[class];
        for _ in 0..LOOKED_AT {
            let Some(record) = blocks.get(number) else { break };
            let held = record.size;
            if held == size {
                return Some(number);
            }
            if held > size && best.is_none_or(|(smallest, _)| held < smallest) {
                best = Some((held, number));
            }
            number = record.links.after;
        }
        best.map(|(_, number)| number)
    }

    /// The first list with blocks after that of `class`.
    fn next_after(&self, class: usize) -> Option<usize> {
        let (group, step) = (class / STEPS, class % STEPS);
        let later = self.lists[group] & u32::MAX.checked_shl(step as u32 + 1).unwrap_or(0);
        if later != 0 {
            return Some(group * STEPS + later.trailing_zeros() as usize);
        }
        let groups = self.groups & u64::MAX.checked_shl(group as u32 + 1).unwrap_or(0);
        let group = (groups != 0).then(|| groups.trailing_zeros() as usize)?;
        Some(group * STEPS + self.lists[group].trailing_zeros() as usize)
    }
}

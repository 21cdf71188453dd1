//! The leaves and windows of a nest.

use std::hash::Hasher;

use super::WHOLE;
use crate::engine::paged::index::PageKind;
use crate::engine::paged::sizes::PAGE;

/// What is in use of a leaf: its bytes up to `head`, and those from `tail` on. On its own, because that is all that allocations read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) head: u32,
    pub(super) tail: u32,
}

/// One handle.
#[derive(Debug)]
pub(super) struct Leaf {
    /// Its number in the books of the page source; [`NONE`] if there is none at this number.
    pub(super) chunk: u32,
    /// Its bytes up to this one are shown at `home`, and the others at `home_of_tail`.
    pub(super) cut: u32,
    pub(super) home: u64,
    pub(super) home_of_tail: u64,
    pub(super) freed_at: u64,
    /// The windows that it is mapped in.
    pub(super) windows: Vec<u32>,
    /// Where it is mapped to be a page; 0 if it never was one.
    pub(super) page: u64,
    pub(super) kind: Option<PageKind>,
    /// What was shown last: as `cut`, `home` and `home_of_tail`. Nothing of a new one.
    pub(super) shown: Option<(u32, u64, u64)>,
}

/// Addresses for blocks of one size.
#[derive(Debug)]
pub(in crate::engine::paged) struct Window {
    /// Where the first leaf is mapped.
    pub(in crate::engine::paged) address: u64,
    pub(in crate::engine::paged) size: usize,
    /// The block begins so many bytes behind that.
    pub(super) skip: u32,
    pub(super) unused: u32,
    pub(super) is_used: bool,
    pub(super) list: u32,
    /// While it is idle: the one of this size that was so before.
    pub(super) earlier: u32,
    /// [`NONE`] where none is.
    pub(in crate::engine::paged) leaves: Box<[u32]>,
    /// When it was taken last, and how long before that: on the heap's count.
    pub(super) taken_at: u64,
    pub(super) interval: u64,
    /// When the last block in it was freed.
    pub(in crate::engine::paged) left_at: u64,
}

/// Sizes are multiples of 512, and nobody chooses them to collide who would not rather be slow otherwise.
#[derive(Debug, Default)]
pub(super) struct SizeHasher(u64);

impl Hasher for SizeHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_usize(usize::from(*byte)));
    }

    #[inline]
    fn write_usize(&mut self, size: usize) {
        let mixed = (self.0 ^ size as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }
}

impl Window {
    /// Where the block lies.
    pub(in crate::engine::paged) fn block(&self) -> u64 {
        self.address + u64::from(self.skip)
    }

    /// The bytes of each leaf that a block in it has: from and to.
    #[inline]
    pub(super) fn parts(&self) -> impl Iterator<Item = (u32, u32)> {
        let end = self.size + self.skip as usize;
        let (last, rest) = (self.leaves.len().saturating_sub(1), (end.saturating_sub(1) % PAGE + 1) as u32);
        let part = move |at: usize| {
            let from = if at == 0 { self.skip } else { 0 };
            (from, if at == last { rest } else { WHOLE })
        };
        (0..self.leaves.len()).map(part)
    }
}

impl Span {
    /// Nothing is in use.
    pub(super) const FREE: Self = Self { head: 0, tail: WHOLE };

    /// Of no leaf: what nothing fits in.
    pub(super) const GONE: Self = Self { head: WHOLE, tail: 0 };

    /// Whether nothing is in these bytes, and what else is in it lies on the right side of them.
    #[inline]
    pub(super) const fn has_free(&self, from: u32, to: u32) -> bool {
        if from == 0 { self.head == 0 && self.tail >= to } else { self.tail == WHOLE && self.head <= from }
    }

    pub(super) const fn is_free(&self) -> bool {
        self.head == 0 && self.tail == WHOLE
    }
}

impl Leaf {
    /// It is no more mapped at a place of a window, but in use at another.
    pub(super) fn leave(&mut self, window: u32, base: u64) {
        if let Some(at) = self.windows.iter().position(|other| *other == window) {
            self.windows.swap_remove(at);
        }
        if self.home == base {
            self.home = self.home_of_tail;
        }
        if self.home_of_tail == base {
            (self.cut, self.home_of_tail) = (WHOLE, self.home);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is in use lies at the beginning and at the end, and a block at one of both.
    #[test]
    fn a_part_is_free_where_nothing_is_in_it_and_what_else_is_lies_on_its_other_side() {
        let ends = [0, 1, 2, 3, WHOLE - 1, WHOLE];
        for (head, tail) in ends.iter().flat_map(|head| ends.iter().map(move |tail| (*head, *tail))) {
            for (from, to) in ends.iter().flat_map(|from| ends.iter().map(move |to| (*from, *to))) {
                if head > tail || from >= to || (from > 0 && to < WHOLE) {
                    continue;
                }
                let (begins, ends) = (from == 0, to == WHOLE);
                let is_in_the_head = head > from || (begins && head > 0);
                let is_in_the_tail = tail < to || (ends && !begins && tail < WHOLE);
                let span = Span { head, tail };
                let expected = !is_in_the_head && !is_in_the_tail;
                assert_eq!(span.has_free(from, to), expected, "{span:?}, {from} to {to}");
            }
        }
    }
}

//! Blocks that nobody has, kept whole for the next one who wants as many bytes: neither joined with what is free beside them
//! nor entered among it. Most programs ask for the same sizes again and again, and then a block comes and goes in a few loads.

use super::{Extents, NONE, Released, State};
use crate::engine::paged::sizes::GRANULE;

/// Kept blocks by their size. The link to the next of a size lies where a free block has its own.
#[derive(Debug)]
pub(super) struct Kept {
    /// The first block of each size, in granules. Made when the first block is kept.
    heads: Box<[u32]>,
    /// How many sizes there are.
    sizes: usize,
    bytes: usize,
    /// Where the next block that has to go is looked for.
    hand: usize,
}

impl Kept {
    /// Keeps blocks of up to `most` bytes.
    pub(super) fn new(most: usize) -> Self {
        Self { heads: Box::default(), sizes: most / GRANULE + 1, bytes: 0, hand: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        size_of_val(&*self.heads)
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
        let (size, unused) = (extent.size, extent.unused);
        if self.kept.heads.is_empty() {
            self.kept.heads = vec![NONE; self.kept.sizes].into_boxed_slice();
        }
        let Some(head) = self.kept.heads.get_mut(size / GRANULE) else { return self.release(number, now) };
        extent.state = State::Kept;
        extent.freed_at = now;
        extent.links.after = std::mem::replace(head, number);
        self.kept.bytes += size;
        Some(Released { size, unused, whole_run: None })
    }

    /// Puts a kept block of exactly `size` bytes to use: its number and address.
    #[inline]
    pub(in crate::engine::paged) fn take_kept(&mut self, size: usize, unused: u16) -> Option<(u32, u64)> {
        let head = self.kept.heads.get_mut(size / GRANULE)?;
        let number = *head;
        let extent = self.records.get_mut(number)?;
        *head = extent.links.after;
        extent.state = State::Used;
        extent.unused = unused;
        self.kept.bytes -= size;
        Some((number, extent.address))
    }

    /// Takes one block out of those that are kept, of each size in turn. It is in use then; with it, since when nobody has it.
    pub(in crate::engine::paged) fn take_any_kept(&mut self) -> Option<(u32, u64)> {
        if self.kept.bytes == 0 {
            return None;
        }
        let sizes = self.kept.heads.len();
        let at = (0..sizes).map(|step| (self.kept.hand + step) % sizes);
        let size =
            at.into_iter().find(|size| self.kept.heads.get(*size).is_some_and(|head| *head != NONE))?;
        self.kept.hand = size;
        let (number, _) = self.take_kept(size * GRANULE, 0)?;
        Some((number, self.records.get(number)?.freed_at))
    }
}

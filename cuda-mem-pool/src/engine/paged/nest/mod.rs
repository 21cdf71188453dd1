//! Blocks in windows of their own, for a heap that holds little.
//!
//! The memory is *leaves*: handles of one page each. A *window* is addresses for blocks of one size at which leaves are mapped,
//! and a leaf is mapped in many windows. So a window can be used whenever nothing is in any of its leaves, whatever they served
//! meanwhile: whether that is so, this says by itself, and to use it needs neither a driver call nor the page source.
//!
//! ```text
//! window of 9.3 MiB    [ a ][ b ][ c ][ d ][ e ]         all five are free, wherever they were last
//! window of 6.1 MiB    [ b ][ f ][ d ][ g ]              f is in use elsewhere: the page source has to replace it
//! ```
//!
//! Of a leaf the first bytes can be in one block, and the last ones in another.

mod changes;
mod choice;
mod records;
mod shown;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use self::records::{Leaf, SizeHasher, Span, Window};
use super::heap::Freed;
use super::index::PageKind;
use super::sizes::PAGE;
use crate::engine::slab::NONE;

/// What a block of a window has in its number. Other large blocks have lower ones: there is no memory for as many.
pub(super) const NESTED: u32 = 1 << 29;

/// How many idle windows of a size are looked at for one that can be used as it is.
const LOOKED_AT: usize = 8;

const WHOLE: u32 = PAGE as u32;

/// The leaves and windows of a heap.
#[derive(Debug, Default)]
pub(super) struct Nest {
    leaves: Vec<Leaf>,
    /// Of each leaf.
    spans: Vec<Span>,
    vacant: Vec<u32>,
    windows: Vec<Window>,
    /// For each size the latest of the windows that nothing is in, which names the one before.
    idle: Vec<u32>,
    by_size: HashMap<usize, u32, BuildHasherDefault<SizeHasher>>,
    /// Leaves that were pages and are free.
    spare_pages: Vec<u32>,
    held: usize,
    used: usize,
    mappings: usize,
}

impl Nest {
    /// A block of this size in a window whose leaves are all free: its number and address.
    #[inline]
    pub(super) fn take(&mut self, size: usize, unused: usize, now: u64) -> Option<(u32, u64)> {
        if self.held == 0 {
            return None;
        }
        let list = *self.by_size.get(&size)?;
        let (mut later, mut number) = (NONE, *self.idle.get(list as usize)?);
        for _ in 0..LOOKED_AT {
            let window = self.windows.get(number as usize)?;
            if self.is_free(window) {
                self.unlink(list, later, window.earlier);
                return self.put_to_use(number, unused, now);
            }
            (later, number) = (number, window.earlier);
        }
        None
    }

    /// Takes the window between two others out of the idle ones of its size.
    #[inline]
    fn unlink(&mut self, list: u32, later: u32, earlier: u32) {
        match self.windows.get_mut(later as usize) {
            Some(later) => later.earlier = earlier,
            None => {
                if let Some(latest) = self.idle.get_mut(list as usize) {
                    *latest = earlier;
                }
            }
        }
    }

    #[inline]
    fn is_free(&self, window: &Window) -> bool {
        let is_free = |(leaf, (from, to)): (&u32, (u32, u32))| {
            self.spans.get(*leaf as usize).is_some_and(|span| span.has_free(from, to))
        };
        window.leaves.iter().zip(window.parts()).all(is_free)
    }

    /// Takes a window that is idle no more, and whose leaves are free.
    #[inline]
    fn put_to_use(&mut self, number: u32, unused: usize, now: u64) -> Option<(u32, u64)> {
        let window = self.windows.get_mut(number as usize)?;
        window.is_used = true;
        window.unused = unused as u32;
        if window.taken_at > 0 {
            window.interval = now.saturating_sub(window.taken_at);
        }
        window.taken_at = now;
        self.used += window.size;
        let window = self.windows.get(number as usize)?;
        for (at, (leaf, (from, to))) in window.leaves.iter().zip(window.parts()).enumerate() {
            let base = window.address + (at * PAGE) as u64;
            let leaf = *leaf as usize;
            let (Some(span), Some(leaf)) = (self.spans.get_mut(leaf), self.leaves.get_mut(leaf)) else {
                continue;
            };
            // Of the leaf's record nothing is read: that may be far away.
            if from == 0 {
                span.head = to;
                // What was shown behind a block that is gone is so no more.
                (leaf.cut, leaf.home) = (span.tail, base);
            } else {
                span.tail = from;
                (leaf.cut, leaf.home_of_tail) = (from, base);
            }
        }
        Some((number | NESTED, window.block()))
    }

    /// Takes a block back. None if it is not one.
    #[inline]
    pub(super) fn free(&mut self, number: u32, now: u64) -> Option<Freed> {
        let number = number & !NESTED;
        let window = self.windows.get_mut(number as usize).filter(|window| window.is_used)?;
        (window.is_used, window.left_at) = (false, now);
        let freed = Freed { size: window.size, unused: window.unused as usize };
        self.used -= window.size;
        let window = self.windows.get(number as usize)?;
        for (leaf, (from, _)) in window.leaves.iter().zip(window.parts()) {
            let leaf = *leaf as usize;
            let (Some(span), Some(leaf)) = (self.spans.get_mut(leaf), self.leaves.get_mut(leaf)) else {
                continue;
            };
            if from == 0 {
                span.head = 0;
            } else {
                span.tail = WHOLE;
            }
            leaf.freed_at = now;
        }
        self.link(number);
        Some(freed)
    }

    /// A window is the latest idle one of its size.
    #[inline]
    fn link(&mut self, number: u32) {
        if let Some(window) = self.windows.get_mut(number as usize)
            && let Some(latest) = self.idle.get_mut(window.list as usize)
        {
            window.earlier = std::mem::replace(latest, number);
        }
    }

    /// The idle windows of a list, the latest first.
    fn idle(&self, list: u32) -> impl Iterator<Item = u32> {
        let latest = self.idle.get(list as usize).copied();
        let earlier = |number: &u32| self.windows.get(*number as usize).map(|window| window.earlier);
        std::iter::successors(latest, earlier).take_while(|number| *number != NONE)
    }

    /// A leaf that was a page before, to be one again: its number and where it is mapped as one.
    pub(super) fn take_page(&mut self, kind: PageKind) -> Option<(u32, u64)> {
        let is_free = |leaf: &u32| self.spans.get(*leaf as usize).is_some_and(Span::is_free);
        let is_same =
            |leaf: &u32| self.leaves.get(*leaf as usize).is_some_and(|leaf| leaf.kind == Some(kind));
        let spare = &self.spare_pages;
        let same = spare.iter().rposition(|leaf| is_free(leaf) && is_same(leaf));
        let place = same.or_else(|| spare.iter().rposition(is_free))?;
        self.use_as_page(*spare.get(place)?, kind)
    }

    /// Has a free leaf, which is mapped for that, be a page: its number as a block, and its address.
    fn use_as_page(&mut self, number: u32, kind: PageKind) -> Option<(u32, u64)> {
        let leaf = self.leaves.get_mut(number as usize)?;
        (leaf.cut, leaf.home, leaf.kind) = (WHOLE, leaf.page, Some(kind));
        self.spans.get_mut(number as usize)?.head = WHOLE;
        self.spare_pages.retain(|spare| *spare != number);
        Some((number | NESTED, self.leaves.get(number as usize)?.page))
    }

    /// Takes a page back that nothing is in.
    pub(super) fn free_page(&mut self, number: u32, now: u64) {
        let number = number & !NESTED;
        let at = number as usize;
        if let (Some(span), Some(leaf)) = (self.spans.get_mut(at), self.leaves.get_mut(at)) {
            (span.head, leaf.freed_at) = (0, now);
            self.spare_pages.push(number);
        }
    }

    /// Address, size, and what was asked for, of a block that is in use.
    #[inline]
    pub(super) fn used(&self, number: u32) -> Option<(u64, usize, usize)> {
        let window = self.windows.get((number & !NESTED) as usize).filter(|window| window.is_used)?;
        Some((window.block(), window.size, window.size.saturating_sub(window.unused as usize)))
    }

    /// How many leaves are pages, or were.
    pub(super) fn pages(&self) -> usize {
        self.leaves.iter().filter(|leaf| leaf.page > 0).count()
    }

    /// The bytes of all leaves, of blocks in windows, and how many mappings there are.
    pub(super) const fn held_bytes(&self) -> usize {
        self.held
    }

    pub(super) const fn used_bytes(&self) -> usize {
        self.used
    }

    pub(super) const fn mappings(&self) -> usize {
        self.mappings
    }

    /// Uses a window whose leaves are free, of those that are idle.
    pub(super) fn use_window(&mut self, number: u32, unused: usize, now: u64) -> Option<(u32, u64)> {
        if !self.is_free(self.windows.get(number as usize)?) {
            return None;
        }
        self.take_out(number)?;
        self.put_to_use(number, unused, now)
    }

    /// Takes a window out of the idle ones of its size. None if it is not one.
    fn take_out(&mut self, number: u32) -> Option<()> {
        let window = self.windows.get(number as usize)?;
        let (list, earlier) = (window.list, window.earlier);
        let mut idle = self.idle(list);
        let mut later = NONE;
        loop {
            match idle.next()? {
                other if other == number => break,
                other => later = other,
            }
        }
        drop(idle);
        self.unlink(list, later, earlier);
        Some(())
    }
}

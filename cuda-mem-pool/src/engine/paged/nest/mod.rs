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

use self::records::{Leaf, SizeHasher, Window};
use super::heap::Freed;
use super::index::PageKind;
use super::sizes::PAGE;

/// What a block of a window has in its number. Other large blocks have lower ones: there is no memory for as many.
pub(super) const NESTED: u32 = 1 << 29;

/// How many idle windows of a size are looked at for one that can be used as it is.
const LOOKED_AT: usize = 8;

const WHOLE: u32 = PAGE as u32;

/// The leaves and windows of a heap.
#[derive(Debug, Default)]
pub(super) struct Nest {
    leaves: Vec<Leaf>,
    vacant: Vec<u32>,
    windows: Vec<Window>,
    /// The windows that nothing is in, by size, the latest last.
    idle: Vec<Vec<u32>>,
    by_size: HashMap<usize, u32, BuildHasherDefault<SizeHasher>>,
    /// Leaves that were pages and are free.
    spare_pages: Vec<u32>,
    held: usize,
    used: usize,
    mappings: usize,
    /// Leaves whose bytes are at other addresses than was shown last.
    unshown: Vec<u32>,
}

impl Nest {
    /// A block of this size in a window whose leaves are all free: its number and address.
    #[inline]
    pub(super) fn take(&mut self, size: usize, unused: usize, now: u64) -> Option<(u32, u64)> {
        if self.held == 0 {
            return None;
        }
        let list = *self.by_size.get(&size)?;
        let idle = self.idle.get(list as usize)?;
        let place = (0..idle.len()).rev().take(LOOKED_AT).find(|place| self.is_free(idle[*place]))?;
        let window = self.idle.get_mut(list as usize)?.remove(place);
        self.put_to_use(window, unused, now)
    }

    #[inline]
    fn is_free(&self, window: u32) -> bool {
        let Some(window) = self.windows.get(window as usize) else { return false };
        let is_free = |(leaf, (from, to)): (&u32, (u32, u32))| {
            self.leaves.get(*leaf as usize).is_some_and(|leaf| leaf.has_free(from, to))
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
            let Some(record) = self.leaves.get_mut(*leaf as usize) else { continue };
            if from == 0 {
                record.head = to;
                // What was shown behind a block that is gone is so no more.
                record.cut = record.tail;
                record.home = base;
            } else {
                (record.tail, record.cut) = (from, from);
                record.home_of_tail = base;
            }
            if !record.is_unshown {
                record.is_unshown = true;
                self.unshown.push(*leaf);
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
            let Some(leaf) = self.leaves.get_mut(*leaf as usize) else { continue };
            if from == 0 {
                leaf.head = 0;
            } else {
                leaf.tail = WHOLE;
            }
            leaf.freed_at = now;
        }
        self.idle.get_mut(window.list as usize)?.push(number);
        Some(freed)
    }

    /// A leaf that was a page before, to be one again: its number and where it is mapped as one.
    pub(super) fn take_page(&mut self, kind: PageKind) -> Option<(u32, u64)> {
        let is_free = |leaf: &u32| self.leaves.get(*leaf as usize).is_some_and(Leaf::is_free);
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
        (leaf.head, leaf.cut, leaf.home, leaf.kind) = (WHOLE, WHOLE, leaf.page, Some(kind));
        self.spare_pages.retain(|spare| *spare != number);
        self.mark_unshown(number);
        Some((number | NESTED, self.leaves.get(number as usize)?.page))
    }

    /// Takes a page back that nothing is in.
    pub(super) fn free_page(&mut self, number: u32, now: u64) {
        let number = number & !NESTED;
        if let Some(leaf) = self.leaves.get_mut(number as usize) {
            (leaf.head, leaf.freed_at) = (0, now);
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
        if !self.is_free(number) {
            return None;
        }
        let list = self.windows.get(number as usize)?.list;
        let idle = self.idle.get_mut(list as usize)?;
        let place = idle.iter().position(|other| *other == number)?;
        idle.remove(place);
        self.put_to_use(number, unused, now)
    }
}

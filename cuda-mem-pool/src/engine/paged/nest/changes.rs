//! How leaves and windows come and go, which the page source sees to.

use super::{Leaf, Nest, PAGE, WHOLE, Window};
use crate::engine::slab::NONE;

impl Nest {
    /// Adds a handle that nothing is in and that is mapped at an address.
    pub(in crate::engine::paged) fn add_leaf(&mut self, chunk: u32, home: u64, freed_at: u64) -> u32 {
        let leaf = Leaf {
            head: 0,
            tail: WHOLE,
            chunk,
            cut: WHOLE,
            home,
            home_of_tail: home,
            freed_at,
            windows: Vec::new(),
            page: 0,
            kind: None,
            shown: None,
            is_unshown: false,
        };
        self.held += PAGE;
        let number = match self.vacant.pop() {
            Some(number) => {
                if let Some(place) = self.leaves.get_mut(number as usize) {
                    *place = leaf;
                }
                number
            }
            None => {
                self.leaves.push(leaf);
                self.leaves.len() as u32 - 1
            }
        };
        self.mark_unshown(number);
        number
    }

    /// A leaf is mapped to be a page.
    pub(in crate::engine::paged) fn add_page(&mut self, number: u32, address: u64) {
        if let Some(leaf) = self.leaves.get_mut(number as usize) {
            leaf.page = address;
            self.mappings += 1;
        }
        self.spare_pages.push(number);
    }

    /// A window without leaves, which is idle.
    pub(in crate::engine::paged) fn add_window(&mut self, address: u64, size: usize, skip: usize) -> u32 {
        let number = self.windows.len() as u32;
        let list = self.list(size);
        let window = Window {
            address,
            size,
            skip: skip as u32,
            unused: 0,
            is_used: false,
            list,
            leaves: vec![NONE; (size + skip).div_ceil(PAGE)].into_boxed_slice(),
            taken_at: 0,
            interval: 0,
            left_at: 0,
        };
        self.windows.push(window);
        if let Some(idle) = self.idle.get_mut(list as usize) {
            idle.push(number);
        }
        number
    }

    /// Has an idle window be for another size, of as many pages.
    pub(in crate::engine::paged) fn give_window(&mut self, number: u32, size: usize) {
        let list = self.list(size);
        let Some(window) = self.windows.get_mut(number as usize) else { return };
        let before = std::mem::replace(&mut window.list, list);
        (window.size, window.taken_at, window.interval) = (size, 0, 0);
        if let Some(idle) = self.idle.get_mut(before as usize) {
            idle.retain(|other| *other != number);
        }
        if let Some(idle) = self.idle.get_mut(list as usize) {
            idle.push(number);
        }
    }

    fn list(&mut self, size: usize) -> u32 {
        let next = self.idle.len() as u32;
        let list = *self.by_size.entry(size).or_insert(next);
        if list == next {
            self.idle.push(Vec::new());
        }
        list
    }

    pub(in crate::engine::paged) fn window(&self, number: u32) -> Option<&Window> {
        self.windows.get(number as usize)
    }

    /// A leaf is mapped at a place of a window, and what was there is so no more.
    pub(in crate::engine::paged) fn set_leaf(&mut self, window: u32, place: usize, leaf: u32) {
        let Some(record) = self.windows.get_mut(window as usize) else { return };
        let base = record.address + (place * PAGE) as u64;
        let Some(entry) = record.leaves.get_mut(place) else { return };
        let number = std::mem::replace(entry, leaf);
        if let Some(before) = self.leaves.get_mut(number as usize) {
            before.leave(window, base);
            self.mappings -= 1;
            self.mark_unshown(number);
        }
        if let Some(leaf) = self.leaves.get_mut(leaf as usize) {
            leaf.windows.push(window);
            self.mappings += 1;
        }
    }

    /// Takes a free leaf out of all windows: its handle, where its bytes are shown, and when it became free.
    pub(in crate::engine::paged) fn remove_leaf(&mut self, number: u32) -> Option<(u32, u64, u64)> {
        let leaf =
            self.leaves.get_mut(number as usize).filter(|leaf| leaf.chunk != NONE && leaf.is_free())?;
        let found = (leaf.chunk, leaf.home, leaf.freed_at);
        // Of no window, and never free.
        (leaf.chunk, leaf.head, leaf.tail) = (NONE, WHOLE, 0);
        if leaf.page > 0 {
            leaf.page = 0;
            self.mappings -= 1;
        }
        let windows = std::mem::take(&mut leaf.windows);
        for window in windows {
            let places = self.windows.get_mut(window as usize).map(|window| &mut window.leaves);
            places.into_iter().flatten().filter(|place| **place == number).for_each(|place| *place = NONE);
            self.mappings -= 1;
        }
        self.spare_pages.retain(|spare| *spare != number);
        self.unshown.retain(|other| *other != number);
        self.vacant.push(number);
        self.held -= PAGE;
        Some(found)
    }
}

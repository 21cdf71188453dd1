//! How leaves and windows come and go, which the page source sees to.

use super::{Leaf, Nest, PAGE, Span, WHOLE, Window};
use crate::engine::slab::{NONE, push};

impl Nest {
    /// Adds a handle that nothing is in and that is mapped at an address.
    pub(in crate::engine::paged) fn add_leaf(&mut self, chunk: u32, home: u64, freed_at: u64) -> u32 {
        let leaf = Leaf {
            chunk,
            cut: WHOLE,
            home,
            home_of_tail: home,
            freed_at,
            windows: Vec::new(),
            page: 0,
            kind: None,
            shown: None,
        };
        self.held += PAGE;
        match self.vacant.pop() {
            Some(number) => {
                let at = number as usize;
                if let (Some(place), Some(span)) = (self.leaves.get_mut(at), self.spans.get_mut(at)) {
                    (*place, *span) = (leaf, Span::FREE);
                }
                number
            }
            None => {
                push(&mut self.leaves, leaf);
                push(&mut self.spans, Span::FREE);
                self.leaves.len() as u32 - 1
            }
        }
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
            earlier: NONE,
            leaves: vec![NONE; (size + skip).div_ceil(PAGE)].into_boxed_slice(),
            taken_at: 0,
            interval: 0,
            left_at: 0,
        };
        push(&mut self.windows, window);
        self.link(number);
        number
    }

    /// Has an idle window be for another size, of as many pages.
    pub(in crate::engine::paged) fn give_window(&mut self, number: u32, size: usize) {
        let list = self.list(size);
        if self.take_out(number).is_none() {
            return;
        }
        if let Some(window) = self.windows.get_mut(number as usize) {
            (window.list, window.size, window.taken_at, window.interval) = (list, size, 0, 0);
        }
        self.link(number);
    }

    fn list(&mut self, size: usize) -> u32 {
        let next = self.idle.len() as u32;
        let list = *self.by_size.entry(size).or_insert(next);
        if list == next {
            push(&mut self.idle, NONE);
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
        }
        if let Some(leaf) = self.leaves.get_mut(leaf as usize) {
            leaf.windows.push(window);
            self.mappings += 1;
        }
    }

    /// Takes a free leaf out of all windows: its handle, where its bytes are shown, and when it became free.
    pub(in crate::engine::paged) fn remove_leaf(&mut self, number: u32) -> Option<(u32, u64, u64)> {
        let span = self.spans.get_mut(number as usize).filter(|span| span.is_free())?;
        let leaf = self.leaves.get_mut(number as usize).filter(|leaf| leaf.chunk != NONE)?;
        let found = (leaf.chunk, leaf.home, leaf.freed_at);
        // Of no window, and never free.
        (leaf.chunk, *span) = (NONE, Span::GONE);
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
        self.vacant.push(number);
        self.held -= PAGE;
        Some(found)
    }
}

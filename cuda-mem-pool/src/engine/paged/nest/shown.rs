//! What a nest looks like from outside: each byte of a leaf is at one address, that of the block that has it or had it last.

use super::{Leaf, Nest, WHOLE};
use crate::engine::paged::extents::{Extents, Piece, Splits};
use crate::engine::slab::NONE;

impl Leaf {
    const fn place(&self) -> (u32, u64, u64) {
        (self.cut, self.home, self.home_of_tail)
    }

    /// The addresses of what is free, and how much.
    fn free_parts(&self) -> impl Iterator<Item = (u64, usize)> {
        let middle = self.cut.clamp(self.head, self.tail);
        let front = (self.home + u64::from(self.head), middle - self.head);
        let back = (self.home_of_tail + u64::from(middle), self.tail - middle);
        [front, back].into_iter().filter(|(_, bytes)| *bytes > 0).map(|(at, bytes)| (at, bytes as usize))
    }
}

/// Where the bytes of a leaf are, as far as these say.
fn ranges((cut, home, home_of_tail): (u32, u64, u64)) -> impl Iterator<Item = (u64, usize)> {
    let front = (home, cut);
    let back = (home_of_tail + u64::from(cut), WHOLE - cut);
    [front, back].into_iter().filter(|(_, bytes)| *bytes > 0).map(|(at, bytes)| (at, bytes as usize))
}

impl Nest {
    fn there(&self) -> impl Iterator<Item = &Leaf> {
        self.leaves.iter().filter(|leaf| leaf.chunk != NONE)
    }

    /// Blocks, and what is free beside them; not the pages.
    pub(in crate::engine::paged) fn pieces(&self) -> Vec<Piece> {
        let free = self.there().flat_map(Leaf::free_parts);
        let free = free.map(|(address, size)| Piece { address, size, requested: None, in_page: false });
        let used = self.windows.iter().filter(|window| window.is_used).map(|window| Piece {
            address: window.block(),
            size: window.size,
            requested: Some(window.size.saturating_sub(window.unused as usize)),
            in_page: false,
        });
        free.chain(used).collect()
    }

    /// What is free of leaves that are partly in use.
    pub(in crate::engine::paged) fn splits(&self) -> Splits {
        let mut splits = Splits::default();
        let partly = self.there().filter(|leaf| !leaf.is_free());
        partly.flat_map(Leaf::free_parts).for_each(|(_, bytes)| splits.add(1, bytes as u64));
        splits
    }

    /// The largest block for which there is a window that can be used as it is, or a page's bytes.
    pub(in crate::engine::paged) fn largest_free(&self) -> usize {
        let part = self.there().flat_map(Leaf::free_parts).map(|(_, bytes)| bytes).max().unwrap_or(0);
        let idle = self.idle.iter().flatten().filter(|window| self.is_free(**window));
        let window = idle.filter_map(|window| self.window(*window)).map(|window| window.size).max();
        part.max(window.unwrap_or(0))
    }

    pub(super) fn mark_unshown(&mut self, number: u32) {
        if let Some(leaf) = self.leaves.get_mut(number as usize).filter(|leaf| !leaf.is_unshown) {
            leaf.is_unshown = true;
            self.unshown.push(number);
        }
    }

    /// Notes where memory is that came to be elsewhere since this was done last.
    pub(in crate::engine::paged) fn show(&mut self, large: &mut Extents) {
        let unshown = std::mem::take(&mut self.unshown);
        let mut came = Vec::new();
        for number in unshown {
            let Some(leaf) = self.leaves.get_mut(number as usize) else { continue };
            leaf.is_unshown = false;
            let place = leaf.place();
            if leaf.shown == Some(place) {
                continue;
            }
            leaf.shown.into_iter().flat_map(ranges).for_each(|(at, bytes)| large.note(at, bytes, false));
            leaf.shown = Some(place);
            came.extend(ranges(place));
        }
        came.into_iter().for_each(|(at, bytes)| large.note(at, bytes, true));
    }

    /// Notes that a leaf, all of which was shown, is not here any more.
    pub(in crate::engine::paged) fn hide(&mut self, number: u32, large: &mut Extents) {
        self.show(large);
        let shown = self.leaves.get_mut(number as usize).and_then(|leaf| leaf.shown.take());
        shown.into_iter().flat_map(ranges).for_each(|(at, bytes)| large.note(at, bytes, false));
    }

    /// Host memory that the books take.
    pub(in crate::engine::paged) fn metadata_bytes(&self) -> usize {
        let leaves = self.leaves.capacity() * size_of::<Leaf>();
        let windows = self.windows.capacity() * size_of::<super::Window>();
        let places: usize = self.windows.iter().map(|window| window.leaves.len()).sum();
        let idle: usize = self.idle.iter().map(Vec::capacity).sum();
        let lists =
            self.idle.capacity() * size_of::<Vec<u32>>() + self.by_size.capacity() * 3 * size_of::<u64>();
        // Each place is in a window and in a leaf.
        leaves + windows + lists + (places * 2 + idle + self.unshown.capacity()) * size_of::<u32>()
    }
}

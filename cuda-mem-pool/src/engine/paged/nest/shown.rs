//! What a nest looks like from outside: each byte of a leaf is at one address, that of the block that has it or had it last.

use super::{Leaf, Nest, Span, WHOLE};
use crate::engine::paged::extents::{Extents, Piece};
use crate::engine::slab::NONE;

impl Leaf {
    const fn place(&self) -> (u32, u64, u64) {
        (self.cut, self.home, self.home_of_tail)
    }

    /// The addresses of what is free, and how much.
    fn free_parts(&self, span: Span) -> impl Iterator<Item = (u64, usize)> {
        let middle = self.cut.clamp(span.head, span.tail);
        let front = (self.home + u64::from(span.head), middle - span.head);
        let back = (self.home_of_tail + u64::from(middle), span.tail - middle);
        [front, back].into_iter().filter(|(_, bytes)| *bytes > 0).map(|(at, bytes)| (at, bytes as usize))
    }
}

/// Where the bytes of a leaf are, as far as these say.
fn ranges((cut, home, home_of_tail): (u32, u64, u64)) -> impl Iterator<Item = (u64, usize)> {
    let front = (home, cut);
    let back = (home_of_tail + u64::from(cut), WHOLE - cut);
    [front, back].into_iter().filter(|(_, bytes)| *bytes > 0).map(|(at, bytes)| (at, bytes as usize))
}

/// The parts of ranges that are in none of the others.
fn beyond(
    ranges: impl Iterator<Item = (u64, usize)>,
    others: impl IntoIterator<Item = (u64, usize)>,
) -> Vec<(u64, usize)> {
    others.into_iter().fold(ranges.collect(), |parts: Vec<_>, (from, bytes)| {
        let to = from + bytes as u64;
        let beside = parts.into_iter().flat_map(|(at, bytes)| {
            let end = at + bytes as u64;
            [(at, end.min(from)), (at.max(to), end)]
        });
        beside.filter(|(at, end)| at < end).map(|(at, end)| (at, (end - at) as usize)).collect()
    })
}

impl Nest {
    /// The leaves that there are, and their numbers.
    pub(super) fn leaves_and_spans(&self) -> impl Iterator<Item = (&Leaf, Span, u32)> {
        let leaves = self.leaves.iter().zip(self.spans.iter().copied()).zip(0u32..);
        let leaves = leaves.map(|((leaf, span), number)| (leaf, span, number));
        leaves.filter(|(leaf, ..)| leaf.chunk != NONE)
    }

    fn free_parts(&self) -> impl Iterator<Item = (u64, usize)> {
        self.leaves_and_spans().flat_map(|(leaf, span, _)| leaf.free_parts(span))
    }

    /// Blocks, and what is free beside them; not the pages.
    pub(in crate::engine::paged) fn pieces(&self) -> Vec<Piece> {
        let free =
            self.free_parts().map(|(address, size)| Piece { address, size, requested: None, in_page: false });
        let used = self.windows.iter().filter(|window| window.is_used).map(|window| Piece {
            address: window.block(),
            size: window.size,
            requested: Some(window.size.saturating_sub(window.unused as usize)),
            in_page: false,
        });
        free.chain(used).collect()
    }

    /// The largest block for which there is a window that can be used as it is, or a page's bytes.
    pub(in crate::engine::paged) fn largest_free(&self) -> usize {
        let part = self.free_parts().map(|(_, bytes)| bytes).max().unwrap_or(0);
        let idle = self.windows.iter().filter(|window| !window.is_used && self.is_free(window));
        let window = idle.map(|window| window.size).max();
        part.max(window.unwrap_or(0))
    }

    /// Notes where memory is that came to be elsewhere since this was done last.
    pub(in crate::engine::paged) fn show(&mut self, large: &mut Extents) {
        let mut came = Vec::new();
        for leaf in self.leaves.iter_mut().filter(|leaf| leaf.chunk != NONE) {
            let place = leaf.place();
            if leaf.shown == Some(place) {
                continue;
            }
            let before: Vec<_> = leaf.shown.replace(place).into_iter().flat_map(ranges).collect();
            // What stays where it was may be a block's, which nobody may be told is not here.
            let gone = beyond(before.iter().copied(), ranges(place));
            gone.into_iter().for_each(|(at, bytes)| large.note(at, bytes, false));
            came.extend(beyond(ranges(place), before));
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
        let leaves = self.leaves.capacity() * size_of::<Leaf>() + self.spans.capacity() * size_of::<Span>();
        let windows = self.windows.capacity() * size_of::<super::Window>();
        let places: usize = self.windows.iter().map(|window| window.leaves.len()).sum();
        // A byte for each place of a table that is up to seven eighths full.
        let lists = self.by_size.capacity() * 8 / 7 * (size_of::<(usize, u32)>() + 1);
        // Each place is in a window and in a leaf.
        leaves + windows + lists + (places * 2 + self.idle.capacity()) * size_of::<u32>()
    }
}

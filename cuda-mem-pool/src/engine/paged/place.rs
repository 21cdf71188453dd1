//! Places a large block where it breaks up the least.

use super::backend::Backend;
use super::extents::Free;
use super::heap::{Block, StreamHeap};
use super::index::BlockIndex;
use super::source::PageSource;

/// What is left of a free range counts up to here: a larger rest is no worse.
const REST: u64 = 16 << 20;

impl<B: Backend> PageSource<B> {
    /// A block out of what is free in the heap. While memory is tight it is put at the beginning or the end of a free range,
    /// wherever the least of a wholly free handle is left over: that rest could not be moved.
    pub(super) fn place(&self, mine: &mut StreamHeap, size: usize, unused: u16, index: &impl BlockIndex) -> Option<Block> {
        if size < mine.placed {
            return None;
        }
        let best = mine
            .free_ranges()
            .into_iter()
            .filter(|free| free.size >= size)
            .flat_map(|free| self.ends(free, size))
            .min_by_key(|(address, broken, free)| {
                let rest = (free.size - size) as u64;
                (rest.min(REST) + broken, free.size, *address)
            })?;
        let (address, _, free) = best;
        mine.allocate_at(free.number, address, size, unused, index)
    }

    /// The block at the beginning and at the end of a range: its address, and what it leaves of the handle it ends in.
    fn ends(&self, free: Free, size: usize) -> [(u64, u64, Free); 2] {
        let first = free.address;
        let last = free.end() - size as u64;
        let broken_behind = self.ground.covering(first + size as u64 - 1).map_or(0, |(start, map)| {
            let end = start + map.bytes as u64;
            let whole = start >= free.address && end <= free.end();
            if whole { end - (first + size as u64) } else { 0 }
        });
        let broken_before = self.ground.covering(last).map_or(0, |(start, map)| {
            let whole = start >= free.address && start + map.bytes as u64 <= free.end();
            if whole { last - start } else { 0 }
        });
        [(first, broken_behind, free), (last, broken_before, free)]
    }
}

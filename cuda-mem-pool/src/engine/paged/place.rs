//! Places a large block where it breaks up the least.

use super::backend::Backend;
use super::extents::Free;
use super::heap::StreamHeap;
use super::source::PageSource;

/// What is left of a free range counts up to here: a larger rest is no worse.
const REST: u64 = 16 << 20;

/// Where a block could lie in what is free.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) number: u32,
    pub(super) address: u64,
    /// What it would cost to get back what is broken by it, in microseconds.
    pub(super) price: i64,
}

impl<B: Backend> PageSource<B> {
    /// Where a block would lie best in what is free in the heap: at the beginning or the end of a free range, wherever the least
    /// of a wholly free handle is left over, since that rest could not be moved. None while memory is not tight.
    pub(super) fn place(&self, mine: &StreamHeap, size: usize) -> Option<Place> {
        if size < mine.placed {
            return None;
        }
        let mut best: Option<((u64, usize, u64), u64, Free)> = None;
        for free in mine.large.free_from(size) {
            let rest = ((free.size - size) as u64).min(REST);
            // They come in the order of their classes, in which sizes differ by a 32nd.
            if best.is_some_and(|((known, ..), ..)| known + size as u64 / 32 < rest) {
                break;
            }
            // It would be no better if it broke nothing.
            if best.is_some_and(|((known, size, _), ..)| (rest, free.size) > (known, size)) {
                continue;
            }
            for (address, broken) in self.ends(free, size) {
                let key = (rest + broken, free.size, address);
                if best.is_none_or(|(known, ..)| key < known) {
                    best = Some((key, broken, free));
                }
            }
        }
        let ((.., address), broken, free) = best?;
        let price = self.policy.waste(self.ground.bytes()).of(broken);
        Some(Place { number: free.number, address, price })
    }

    /// The block at the beginning and at the end of a range: its address, and what it leaves of the handle it ends in.
    fn ends(&self, free: Free, size: usize) -> [(u64, u64); 2] {
        let first = free.address;
        let last = free.end() - size as u64;
        let broken_behind = self.ground.covering(first + size as u64 - 1).map_or(0, |(start, map)| {
            let end = start + map.bytes() as u64;
            let whole = start >= free.address && end <= free.end();
            if whole { end - (first + size as u64) } else { 0 }
        });
        let broken_before = self.ground.covering(last).map_or(0, |(start, map)| {
            let whole = start >= free.address && start + map.bytes() as u64 <= free.end();
            if whole { last - start } else { 0 }
        });
        [(first, broken_behind), (last, broken_before)]
    }
}

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
            let first = self.at_beginning(free, size);
            // Where nothing is broken, nothing is better.
            let last = (first.1 > 0).then(|| self.at_end(free, size));
            for (address, broken) in [Some(first), last].into_iter().flatten() {
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

    /// The block at the beginning of a range: its address, and what it leaves of the handle it ends in.
    fn at_beginning(&self, free: Free, size: usize) -> (u64, u64) {
        let to = free.address + size as u64;
        (free.address, self.whole_at(free, to - 1).map_or(0, |(_, end)| end - to))
    }

    /// The block at the end of a range: its address, and what it leaves of the handle it begins in.
    fn at_end(&self, free: Free, size: usize) -> (u64, u64) {
        let from = free.end() - size as u64;
        (from, self.whole_at(free, from).map_or(0, |(start, _)| from - start))
    }

    /// The mapping at an address, if all of it lies in the range.
    fn whole_at(&self, free: Free, address: u64) -> Option<(u64, u64)> {
        let (start, map) = self.ground.covering(address)?;
        let end = start + map.bytes() as u64;
        (start >= free.address && end <= free.end()).then_some((start, end))
    }
}

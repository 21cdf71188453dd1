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

/// A place that is compared with others.
#[derive(Clone, Copy)]
struct Candidate {
    /// What is left of the range, as far as it counts, and what is broken.
    lost: u64,
    free: Free,
    address: u64,
    broken: u64,
}

impl Candidate {
    /// The least is the best.
    const fn key(&self) -> (u64, usize, u64) {
        (self.lost, self.free.size, self.address)
    }
}

impl<B: Backend> PageSource<B> {
    /// Where a block would lie best in what is free in the heap: at the beginning or the end of a free range, wherever the least
    /// of a wholly free handle is left over, since that rest could not be moved. None while memory is not tight.
    pub(super) fn place(&self, mine: &StreamHeap, size: usize) -> Option<Place> {
        if size < mine.placed {
            return None;
        }
        let mut best: Option<Candidate> = None;
        for free in mine.large.free_from(size) {
            let rest = ((free.size - size) as u64).min(REST);
            if let Some(best) = best {
                // They come in the order of their classes, in which sizes differ by a 32nd.
                if best.lost + size as u64 / 32 < rest {
                    break;
                }
                // It would be no better if it broke nothing.
                if (rest, free.size) > (best.lost, best.free.size) {
                    continue;
                }
            }
            let (address, broken) = self.end_of(free, size);
            let found = Candidate { lost: rest + broken, free, address, broken };
            if best.is_none_or(|best| found.key() < best.key()) {
                best = Some(found);
            }
        }
        let Candidate { free, address, broken, .. } = best?;
        let price = self.policy.waste(self.ground.bytes()).of(broken);
        Some(Place { number: free.number, address, price })
    }

    /// The end of a range, the first if both are as good, at which a block breaks up the least: its address there, and what it leaves
    /// of a handle.
    fn end_of(&self, free: Free, size: usize) -> (u64, u64) {
        let to = free.address + size as u64;
        let first = self.whole_at(free, to - 1).map_or(0, |(_, end)| end - to);
        if first == 0 {
            return (free.address, 0);
        }
        let from = free.end() - size as u64;
        let last = self.whole_at(free, from).map_or(0, |(start, _)| from - start);
        if last < first { (from, last) } else { (free.address, first) }
    }

    /// The mapping at an address, if all of it lies in the range.
    fn whole_at(&self, free: Free, address: u64) -> Option<(u64, u64)> {
        let (start, map) = self.ground.covering(address)?;
        let end = start + map.bytes() as u64;
        (start >= free.address && end <= free.end()).then_some((start, end))
    }
}

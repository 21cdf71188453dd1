//! Leaves of pages, by number. They are made in chunks, used again, and stay.

use std::sync::OnceLock;

use crate::primitive::{AtomicU32, Mutex, Ordering, lock};

/// A leaf's number: that of its chunk above, its place in the chunk below.
const PLACE_BITS: u32 = 23;
/// As many as leave two bits of a number to others.
const CHUNKS: usize = 128;

/// A chunk has an eighth of the leaves that there are, but not less than 4 KiB.
const SHARE: usize = 8;
const LEAST: usize = 4096;

type Chunk<const N: usize> = Box<[Leaf<N>]>;

/// The entries of a page. Neighbours may be other heaps', so none shares a cache line with the next.
#[derive(Debug)]
#[repr(align(64))]
struct Leaf<const N: usize>([AtomicU32; N]);

#[derive(Debug)]
pub(super) struct Leaves<const N: usize> {
    chunks: [OnceLock<Chunk<N>>; CHUNKS],
    vacant: Mutex<Vacant>,
}

#[derive(Debug)]
struct Vacant {
    numbers: Vec<u32>,
    chunks: usize,
    leaves: usize,
}

impl<const N: usize> Leaves<N> {
    pub(super) fn new() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            vacant: Mutex::new(Vacant { numbers: Vec::new(), chunks: 0, leaves: 0 }),
        }
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&[AtomicU32; N]> {
        let (chunk, place) = (number >> PLACE_BITS, number & ((1 << PLACE_BITS) - 1));
        Some(&self.chunks.get(chunk as usize)?.get()?.get(place as usize)?.0)
    }

    /// The number of an empty leaf. None if there are no more numbers, millions of them.
    pub(super) fn take(&self) -> Option<u32> {
        let mut vacant = lock(&self.vacant);
        if vacant.numbers.is_empty() {
            let place = self.chunks.get(vacant.chunks)?;
            let least = (LEAST / size_of::<[u32; N]>()).max(1);
            let count = (vacant.leaves / SHARE).clamp(least, 1 << PLACE_BITS);
            let chunk: Chunk<N> =
                (0..count).map(|_| Leaf(std::array::from_fn(|_| AtomicU32::new(0)))).collect();
            place.set(chunk).ok()?;
            let first = (vacant.chunks as u32) << PLACE_BITS;
            vacant.numbers.extend((first..first + count as u32).rev());
            vacant.chunks += 1;
            vacant.leaves += count;
        }
        vacant.numbers.pop()
    }

    /// Empties the leaf, for the next one who takes it.
    pub(super) fn give_back(&self, number: u32) {
        for entry in self.get(number).into_iter().flatten() {
            entry.store(0, Ordering::Relaxed);
        }
        lock(&self.vacant).numbers.push(number);
    }

    pub(super) fn bytes(&self) -> usize {
        let vacant = lock(&self.vacant);
        vacant.leaves * size_of::<Leaf<N>>() + vacant.numbers.capacity() * size_of::<u32>()
    }
}

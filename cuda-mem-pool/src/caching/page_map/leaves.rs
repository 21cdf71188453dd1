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
    /// The numbers of those that nobody has.
    vacant: Mutex<Vec<u32>>,
}

impl<const N: usize> Leaves<N> {
    pub(super) fn new() -> Self {
        Self { chunks: [const { OnceLock::new() }; CHUNKS], vacant: Mutex::default() }
    }

    #[inline]
    pub(super) fn get(&self, number: u32) -> Option<&[AtomicU32; N]> {
        let (chunk, place) = (number >> PLACE_BITS, number & ((1 << PLACE_BITS) - 1));
        Some(&self.chunks.get(chunk as usize)?.get()?.get(place as usize)?.0)
    }

    /// The number of an empty leaf. None if there are no more numbers, millions of them.
    pub(super) fn take(&self) -> Option<u32> {
        let mut vacant = lock(&self.vacant);
        if vacant.is_empty() {
            let number = self.chunks.iter().position(|chunk| chunk.get().is_none())?;
            let least = (LEAST / size_of::<[u32; N]>()).max(1);
            let count = (self.count() / SHARE).clamp(least, 1 << PLACE_BITS);
            let leaf = || Leaf(std::array::from_fn(|_| AtomicU32::new(0)));
            self.chunks[number].set((0..count).map(|_| leaf()).collect()).ok()?;
            let first = (number as u32) << PLACE_BITS;
            vacant.extend((first..first + count as u32).rev());
        }
        vacant.pop()
    }

    /// Empties the leaf, for the next one who takes it.
    pub(super) fn give_back(&self, number: u32) {
        for entry in self.get(number).into_iter().flatten() {
            entry.store(0, Ordering::Relaxed);
        }
        lock(&self.vacant).push(number);
    }

    pub(super) fn bytes(&self) -> usize {
        self.count() * size_of::<Leaf<N>>() + lock(&self.vacant).capacity() * size_of::<u32>()
    }

    /// How many there are.
    fn count(&self) -> usize {
        self.chunks.iter().map_while(OnceLock::get).map(|chunk| chunk.len()).sum()
    }
}

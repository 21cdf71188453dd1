//! The slots of all addresses, in regions of 512 MiB that are made when something is first entered there, and stay.

use std::sync::OnceLock;

use super::SLOT;
use super::slot::Slot;
use crate::primitive::{AtomicUsize, Mutex, Ordering, lock};

const REGION: u64 = if cfg!(all(loom, test)) { 2 * SLOT } else { 512 << 20 };
const SLOTS: usize = (REGION / SLOT) as usize;

/// A power of two. The regions of 256 GiB that lie side by side do not meet.
const BUCKETS: usize = if cfg!(all(loom, test)) { 2 } else { 512 };

/// A hash table that only grows: readers need no lock.
#[derive(Debug)]
pub(super) struct Regions {
    buckets: [OnceLock<Region>; BUCKETS],
    /// Held by the one who adds a region.
    adding: Mutex<()>,
    bytes: AtomicUsize,
}

#[derive(Debug)]
struct Region {
    number: u64,
    slots: Box<[Slot; SLOTS]>,
    next: OnceLock<Box<Region>>,
}

impl Regions {
    pub(super) fn new() -> Self {
        Self {
            buckets: [const { OnceLock::new() }; BUCKETS],
            adding: Mutex::default(),
            bytes: AtomicUsize::new(0),
        }
    }

    /// The slot of an address, if anything was ever entered near it.
    #[inline(always)]
    pub(super) fn slot(&self, address: u64) -> Option<&Slot> {
        let number = address / REGION;
        let region = match self.buckets[bucket(number)].get() {
            Some(region) if region.number == number => region,
            first => further(first?, number)?,
        };
        region.slots.get((address % REGION / SLOT) as usize)
    }

    /// The slot of an address, in a new region if there is none yet.
    pub(super) fn slot_or_new(&self, address: u64) -> Option<&Slot> {
        if self.slot(address).is_none() {
            self.add(address / REGION);
        }
        self.slot(address)
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    #[cold]
    fn add(&self, number: u64) {
        let _adding = lock(&self.adding);
        let region = || {
            self.bytes.fetch_add(size_of::<[Slot; SLOTS]>(), Ordering::Relaxed);
            Region { number, slots: Box::new(std::array::from_fn(|_| Slot::new())), next: OnceLock::new() }
        };
        let mut last = self.buckets[bucket(number)].get_or_init(region);
        // Another thread may have been first.
        while last.number != number {
            last = last.next.get_or_init(|| Box::new(region()));
        }
    }
}

/// The region of this number behind the first of its bucket.
#[inline(never)]
fn further(first: &Region, number: u64) -> Option<&Region> {
    let mut region = first.next.get()?;
    while region.number != number {
        region = region.next.get()?;
    }
    Some(region)
}

/// Neighbours have buckets of their own, and so have the beginnings of ranges that lie a power of two apart.
#[inline]
const fn bucket(number: u64) -> usize {
    const APART: usize = 77;
    let (place, lap) = (number as usize % BUCKETS, number as usize / BUCKETS);
    place.wrapping_add(lap.wrapping_mul(APART)) % BUCKETS
}

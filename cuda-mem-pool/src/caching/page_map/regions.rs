//! The slots of all addresses, in regions of 512 MiB that are made when something is first entered there, and stay.

use std::iter::successors;
use std::sync::OnceLock;

use super::SLOT;
use super::slot::Slot;

const REGION: u64 = if cfg!(all(loom, test)) { 2 * SLOT } else { 512 << 20 };
const SLOTS: usize = (REGION / SLOT) as usize;

/// A power of two. The regions of 256 GiB that lie side by side do not meet.
const BUCKETS: usize = if cfg!(all(loom, test)) { 2 } else { 512 };

/// A hash table that only grows: readers need no lock.
#[derive(Debug)]
pub(super) struct Regions {
    buckets: [OnceLock<Region>; BUCKETS],
}

#[derive(Debug)]
struct Region {
    number: u64,
    slots: Box<[Slot; SLOTS]>,
    next: OnceLock<Box<Region>>,
}

impl Regions {
    pub(super) fn new() -> Self {
        Self { buckets: [const { OnceLock::new() }; BUCKETS] }
    }

    /// The slot of an address, if anything was ever entered near it.
    #[inline(always)]
    pub(super) fn slot(&self, address: u64) -> Option<&Slot> {
        let number = address / REGION;
        let mut region = self.buckets[bucket(number)].get()?;
        while region.number != number {
            region = region.next.get()?;
        }
        region.slots.get((address % REGION / SLOT) as usize)
    }

    /// The slot of an address, in a new region if there is none yet.
    pub(super) fn slot_or_new(&self, address: u64) -> &Slot {
        let number = address / REGION;
        let slots = || Box::new(std::array::from_fn(|_| Slot::new()));
        let new = || Region { number, slots: slots(), next: OnceLock::new() };
        let mut region = self.buckets[bucket(number)].get_or_init(new);
        while region.number != number {
            region = region.next.get_or_init(|| Box::new(new()));
        }
        &region.slots[(address % REGION / SLOT) as usize]
    }

    pub(super) fn bytes(&self) -> usize {
        let first = self.buckets.iter().filter_map(OnceLock::get);
        let chain = |first| successors(Some(first), |region: &&Region| region.next.get().map(|next| &**next));
        first.flat_map(chain).map(|region| size_of_val(&*region.slots)).sum()
    }
}

/// Neighbours have buckets of their own, and so have the beginnings of ranges that lie a power of two apart.
#[inline]
const fn bucket(number: u64) -> usize {
    const APART: usize = 77;
    let (place, lap) = (number as usize % BUCKETS, number as usize / BUCKETS);
    place.wrapping_add(lap.wrapping_mul(APART)) % BUCKETS
}

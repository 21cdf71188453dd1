//! What is written about 2 MiB of addresses.

use super::{GRANULE, RECORDS, SLOT, Tier, WINDOW};
use crate::primitive::{AtomicU32, Ordering};

const HALF: u64 = SLOT / 2;

#[derive(Debug)]
#[repr(align(16))]
pub(super) struct Slot {
    /// The number of the heap that has the blocks here.
    pub(super) owner: AtomicU32,
    content: AtomicU32,
    /// Of the large blocks that start in each half.
    records: [AtomicU32; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Starts(Starts),
    /// A page, small or medium, and the number of its leaf.
    Page(Tier, u32),
}

/// Where in each half a large block starts: in granules, from 1, in 12 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Starts(u32);

const PAGE: u32 = 1 << 31;
const MEDIUM: u32 = 1 << 30;

impl Slot {
    pub(super) fn new() -> Self {
        let zero = || AtomicU32::new(0);
        Self { owner: zero(), content: zero(), records: [zero(), zero()] }
    }

    #[inline]
    pub(super) fn content(&self) -> Content {
        let word = self.content.load(Ordering::Relaxed);
        if word & PAGE == 0 {
            return Content::Starts(Starts(word));
        }
        let tier = if word & MEDIUM == 0 { Tier::Small } else { Tier::Medium };
        Content::Page(tier, word & !(PAGE | MEDIUM))
    }

    pub(super) fn set(&self, content: Content) {
        let word = match content {
            Content::Starts(Starts(word)) => word,
            Content::Page(Tier::Small, leaf) => PAGE | leaf,
            Content::Page(_, leaf) => PAGE | MEDIUM | leaf,
        };
        self.content.store(word, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn record(&self, address: u64) -> &AtomicU32 {
        &self.records[(address / HALF % 2) as usize]
    }
}

impl Content {
    pub(super) const EMPTY: Self = Self::Starts(Starts(0));
}

impl Starts {
    const MASK: u32 = 0xfff;

    #[inline]
    pub(super) fn has(self, address: u64) -> bool {
        let (shift, place) = Self::place(address);
        (self.0 >> shift) & Self::MASK == place
    }

    pub(super) fn with(self, address: u64) -> Self {
        let (shift, place) = Self::place(address);
        Self(self.without(address).0 | (place << shift))
    }

    /// Without what starts in the same half.
    pub(super) fn without(self, address: u64) -> Self {
        Self(self.0 & !(Self::MASK << Self::place(address).0))
    }

    #[inline]
    fn place(address: u64) -> (u32, u32) {
        let shift = (address / HALF % 2) as u32 * 12;
        (shift, (address % HALF / GRANULE) as u32 + 1)
    }
}

/// What a leaf says of a block that starts in one of its parts: the record, and a tag that is not 0. 0 if none starts there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry(u32);

const TAGS: u32 = u32::MAX / RECORDS + 1;

impl Entry {
    pub(super) fn new(record: u32, tag: u8) -> Option<Self> {
        let fits = record < RECORDS && (1..TAGS).contains(&u32::from(tag));
        fits.then(|| Self(record * TAGS + u32::from(tag)))
    }

    #[inline]
    pub(super) fn load(from: &AtomicU32) -> Option<Self> {
        let word = from.load(Ordering::Relaxed);
        (word != 0).then_some(Self(word))
    }

    pub(super) fn store(self, to: &AtomicU32) {
        to.store(self.0, Ordering::Relaxed);
    }

    pub(super) fn clear(to: &AtomicU32) {
        to.store(0, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn record(self) -> u32 {
        self.0 / TAGS
    }

    #[inline]
    pub(super) fn tag(self) -> u8 {
        (self.0 % TAGS) as u8
    }
}

/// The tag of a block that starts at an address: of a medium one, where in its window that is, in granules, from 1.
#[inline]
pub(super) fn tag(tier: Tier, address: u64) -> u8 {
    if tier == Tier::Small { 1 } else { (address % WINDOW / GRANULE) as u8 + 1 }
}

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

const TAGS: u32 = u32::MAX / RECORDS + 1;

/// What a leaf says of a block that starts in one of its parts: its record, and a tag that is not 0. 0 if none starts there.
pub(super) fn entry_of(record: u32, tag: u32) -> Option<u32> {
    (record < RECORDS && (1..TAGS).contains(&tag)).then(|| record * TAGS + tag)
}

/// The record of an entry, if that is of a block with this tag.
#[inline]
pub(super) fn record_of(entry: u32, tag: u32) -> Option<u32> {
    (entry % TAGS == tag).then_some(entry / TAGS)
}

/// The tag of a block that starts at an address: of a medium one, where in its window that is, in granules, from 1.
#[inline]
pub(super) fn tag(tier: Tier, address: u64) -> u32 {
    if tier == Tier::Small { 1 } else { (address % WINDOW / GRANULE) as u32 + 1 }
}

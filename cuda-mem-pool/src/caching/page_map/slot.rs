//! What is written about 2 MiB of addresses.

use super::{GRANULE, RECORDS, SLOT, Tier, WINDOW};
use crate::primitive::{AtomicU32, AtomicU64, Ordering};

const HALF: u64 = SLOT / 2;

#[derive(Debug)]
#[repr(align(32))]
pub(super) struct Slot {
    /// The number of the heap that has the blocks here.
    pub(super) owner: AtomicU32,
    /// The page that this is, or 0.
    page: AtomicU32,
    /// Of the large block that starts in each half: its record, and where it starts, as [`tag`] says. 0 if none does.
    large: [AtomicU64; 2],
}

const PAGE: u32 = 1 << 31;
const MEDIUM: u32 = 1 << 30;

/// Where a large block starts in its half takes so many bits.
const TAG_BITS: u32 = 12;

impl Slot {
    pub(super) fn new() -> Self {
        let large = [AtomicU64::new(0), AtomicU64::new(0)];
        Self { owner: AtomicU32::new(0), page: AtomicU32::new(0), large }
    }

    /// A page, small or medium, with the number of its leaf.
    #[inline]
    pub(super) fn page(&self) -> Option<(Tier, u32)> {
        let word = self.page.load(Ordering::Relaxed);
        let tier = if word & MEDIUM == 0 { Tier::Small } else { Tier::Medium };
        (word != 0).then_some((tier, word & !(PAGE | MEDIUM)))
    }

    pub(super) fn set_page(&self, page: Option<(Tier, u32)>) {
        let word = page.map_or(0, |(tier, leaf)| PAGE | if tier == Tier::Small { 0 } else { MEDIUM } | leaf);
        self.page.store(word, Ordering::Relaxed);
    }

    /// Whether no large block starts here.
    pub(super) fn is_empty(&self) -> bool {
        self.large.iter().all(|half| half.load(Ordering::Relaxed) == 0)
    }

    /// The record of the large block that starts at an address.
    #[inline]
    pub(super) fn large(&self, address: u64) -> Option<u32> {
        let entry = self.half(address).load(Ordering::Relaxed);
        let starts = entry % (1 << TAG_BITS) == u64::from(tag(Tier::Large, address));
        starts.then_some((entry >> TAG_BITS) as u32)
    }

    pub(super) fn set_large(&self, address: u64, record: Option<u32>) {
        let entry = |record| u64::from(record) << TAG_BITS | u64::from(tag(Tier::Large, address));
        self.half(address).store(record.map_or(0, entry), Ordering::Relaxed);
    }

    #[inline]
    fn half(&self, address: u64) -> &AtomicU64 {
        &self.large[(address / HALF % 2) as usize]
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

/// The tag of a block that starts at an address: where it does so in the part of its tier, of which one alone can, in granules from 1.
#[inline]
pub(super) fn tag(tier: Tier, address: u64) -> u32 {
    let part = match tier {
        Tier::Small => GRANULE,
        Tier::Medium => WINDOW,
        Tier::Large => HALF,
    };
    (address % part / GRANULE) as u32 + 1
}

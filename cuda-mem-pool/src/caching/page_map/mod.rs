//! From addresses to blocks, without a lock.
//!
//! Addresses are cut into slots of 2 MiB. A slot holds the starts of *large* blocks, which have more than 1 MiB, so that no
//! two start in one half of it; or it is one *page*, cut into small or medium blocks, whose starts are in a leaf of its own.
//!
//! A thread that looks up an address got it after its block was entered, and the entry stays until the block is freed: in
//! each atomic the value that was entered, or a later one of a neighbour that left this block's part as it was, is the
//! oldest that the reader can see. So no load needs an order of its own. Looking up anything else is not undefined, but may tell of another block.

mod leaves;
#[cfg(all(loom, test))]
mod models;
mod regions;
mod slot;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::engine::paged::Tier;
use crate::primitive::{AtomicU32, Ordering};
use leaves::Leaves;
use regions::Regions;
use slot::{Content, entry_of, record_of, tag};

/// Blocks start at multiples of this many bytes.
pub(super) const GRANULE: u64 = 512;

/// Records are smaller.
pub(super) const RECORDS: u32 = 1 << 26;

/// At most one medium block starts in a window of this many bytes.
const WINDOW: u64 = 16 << 10;

const SLOT: u64 = 2 << 20;
const SMALL: usize = (SLOT / GRANULE) as usize;
const MEDIUM: usize = (SLOT / WINDOW) as usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The number of its heap.
    pub(super) owner: u32,
    pub(super) record: u32,
    pub(super) tier: Tier,
}

/// A slot is written under the lock of the heap that has it; slots pass between heaps under a lock.
///
/// None, and nothing is entered, if an address is no multiple of 512, or not in a page, or in one where it must not be; if a record is out of
/// bounds; or if there are no more leaves.
#[derive(Debug)]
pub(super) struct PageMap {
    regions: Regions,
    small: Leaves<SMALL>,
    medium: Leaves<MEDIUM>,
}

impl PageMap {
    pub(super) fn new() -> Self {
        Self { regions: Regions::new(), small: Leaves::new(), medium: Leaves::new() }
    }

    /// The block that starts at `address`. See above for what may be asked.
    // Inlined, so that the answer stays in registers.
    #[inline(always)]
    pub(super) fn find(&self, address: u64) -> Option<Found> {
        if !address.is_multiple_of(GRANULE) {
            return None;
        }
        let slot = self.regions.slot(address)?;
        let owner = slot.owner.load(Ordering::Relaxed);
        match slot.content() {
            Content::Page(tier, leaf) => {
                let entry = self.entry(tier, leaf, address)?.load(Ordering::Relaxed);
                let record = record_of(entry, tag(tier, address))?;
                Some(Found { owner, record, tier })
            }
            Content::Starts(starts) => {
                let record = slot.record(address).load(Ordering::Relaxed);
                starts.has(address).then_some(Found { owner, record, tier: Tier::Large })
            }
        }
    }

    /// Enters a block of more than 1 MiB.
    pub(super) fn set_large(&self, address: u64, owner: u32, record: u32) -> Option<()> {
        let slot = self.regions.slot_or_new(address)?;
        let Content::Starts(starts) = slot.content() else { return None };
        if !address.is_multiple_of(GRANULE) {
            return None;
        }
        slot.owner.store(owner, Ordering::Relaxed);
        slot.record(address).store(record, Ordering::Relaxed);
        slot.set(Content::Starts(starts.with(address)));
        Some(())
    }

    /// Takes a block of more than 1 MiB out; nothing if there is none at this address.
    pub(super) fn clear_large(&self, address: u64) {
        if let Some(slot) = self.regions.slot(address)
            && let Content::Starts(starts) = slot.content()
            && address.is_multiple_of(GRANULE)
            && starts.has(address)
        {
            slot.set(Content::Starts(starts.without(address)));
        }
    }

    /// Makes the 2 MiB at `address` a page. No large block may start there.
    pub(super) fn add_page(&self, address: u64, owner: u32, tier: Tier) -> Option<()> {
        let slot = self.regions.slot_or_new(address)?;
        if !address.is_multiple_of(SLOT) || slot.content() != Content::EMPTY {
            return None;
        }
        let leaf = if tier == Tier::Small { self.small.take() } else { self.medium.take() }?;
        slot.owner.store(owner, Ordering::Relaxed);
        slot.set(Content::Page(tier, leaf));
        Some(())
    }

    /// Ends the page at `address` with all that is entered in it; nothing if there is none.
    pub(super) fn remove_page(&self, address: u64) {
        if let Some(slot) = self.regions.slot(address)
            && address.is_multiple_of(SLOT)
            && let Content::Page(tier, leaf) = slot.content()
        {
            slot.set(Content::EMPTY);
            if tier == Tier::Small { self.small.give_back(leaf) } else { self.medium.give_back(leaf) }
        }
    }

    /// Enters a block of a page; of a medium page, one that started in the same 16 KiB is no more.
    pub(super) fn set_in_page(&self, address: u64, record: u32) -> Option<()> {
        let (tier, leaf) = self.page(address).filter(|_| address.is_multiple_of(GRANULE))?;
        let entry = entry_of(record, tag(tier, address))?;
        self.entry(tier, leaf, address)?.store(entry, Ordering::Relaxed);
        Some(())
    }

    /// Takes a block of a page out; nothing if there is none at this address.
    pub(super) fn clear(&self, address: u64) {
        if let Some((tier, leaf)) = self.page(address)
            && let Some(place) = self.entry(tier, leaf, address)
            && address.is_multiple_of(GRANULE)
            && record_of(place.load(Ordering::Relaxed), tag(tier, address)).is_some()
        {
            place.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        self.regions.bytes() + self.small.bytes() + self.medium.bytes()
    }

    #[inline]
    fn page(&self, address: u64) -> Option<(Tier, u32)> {
        match self.regions.slot(address)?.content() {
            Content::Page(tier, leaf) => Some((tier, leaf)),
            Content::Starts(_) => None,
        }
    }

    #[inline]
    fn entry(&self, tier: Tier, leaf: u32, address: u64) -> Option<&AtomicU32> {
        let offset = address % SLOT;
        match tier {
            Tier::Small => self.small.get(leaf)?.get((offset / GRANULE) as usize),
            _ => self.medium.get(leaf)?.get((offset / WINDOW) as usize),
        }
    }
}

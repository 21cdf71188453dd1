//! The page map as one heap's index.

use super::page_map::{Found, PageMap};
use crate::engine::paged::{BlockIndex, BlockNumber, PageKind, Tier, small_class};

/// Where a heap enters its blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeapIndex<'m> {
    pub(super) map: &'m PageMap,
    pub(super) heap: u32,
}

impl BlockIndex for HeapIndex<'_> {
    fn set_large(&self, address: u64, number: u32) -> bool {
        self.map.set_large(address, self.heap, number).is_ok()
    }

    fn clear_large(&self, address: u64, _number: u32) {
        self.map.clear_large(address);
    }

    fn add_page(&self, address: u64, kind: PageKind) -> bool {
        self.map.add_page(address, self.heap, kind).is_ok()
    }

    fn remove_page(&self, address: u64) {
        self.map.remove_page(address);
    }

    #[inline]
    fn set_in_page(&self, address: u64, kind: PageKind, number: u32, size: usize) -> bool {
        match kind {
            // A small block has at most 32 granules.
            PageKind::Small => self.map.set_small(address, number, small_class(size) as u8).is_ok(),
            PageKind::Medium => self.map.set_medium(address, number).is_ok(),
        }
    }

    #[inline]
    fn clear_in_page(&self, address: u64, _kind: PageKind) {
        self.map.clear(address);
    }
}

/// The number that a found block has in its heap.
#[inline]
pub(super) fn number_of(found: Found) -> BlockNumber {
    BlockNumber::new(tier_of(found), found.record)
}

/// Where a found block lives.
#[inline]
pub(super) const fn tier_of(found: Found) -> Tier {
    match found.kind {
        None => Tier::Large,
        Some(PageKind::Medium) => Tier::Medium,
        Some(PageKind::Small) => Tier::Small,
    }
}

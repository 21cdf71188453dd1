//! The page map as one heap's index.

use super::page_map::{Found, PageMap};
use crate::engine::paged::{BlockIndex, BlockNumber, SlabKind, Tier, small_class};

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

    fn add_slab(&self, address: u64, kind: SlabKind) -> bool {
        self.map.add_page(address, self.heap, kind).is_ok()
    }

    fn remove_slab(&self, address: u64) {
        self.map.remove_page(address);
    }

    #[inline]
    fn set_in_slab(&self, address: u64, kind: SlabKind, number: u32, size: usize) -> bool {
        match kind {
            // A small block has at most 32 granules.
            SlabKind::Small => self.map.set_small(address, number, small_class(size) as u8).is_ok(),
            SlabKind::Medium => self.map.set_medium(address, number).is_ok(),
        }
    }

    #[inline]
    fn clear_in_slab(&self, address: u64, _kind: SlabKind) {
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
        Some(SlabKind::Medium) => Tier::Medium,
        Some(SlabKind::Small) => Tier::Small,
    }
}

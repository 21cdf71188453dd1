//! Where a block is found by its address.

use super::sizes::{GRANULE, SMALL};

/// What a page is cut into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageKind {
    Small,
    Medium,
}

/// Is told where blocks and pages begin, by whoever has the heap to himself. Numbers are those within a tier.
pub(crate) trait BlockIndex {
    fn set_large(&self, address: u64, number: u32);
    fn clear_large(&self, address: u64, number: u32);
    /// A page begins; false if there is no room for it in the index.
    fn add_page(&self, address: u64, kind: PageKind) -> bool;
    fn remove_page(&self, address: u64);
    fn set_in_page(&self, address: u64, kind: PageKind, number: u32, size: usize);
    fn clear_in_page(&self, address: u64, kind: PageKind);
}

/// The class of a small block: how many granules it has, from 1.
#[inline]
pub(crate) const fn small_class(size: usize) -> usize {
    size.div_ceil(GRANULE)
}

/// How many classes of small blocks there are.
pub(crate) const SMALL_CLASSES: usize = SMALL / GRANULE;

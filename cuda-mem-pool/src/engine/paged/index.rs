//! Where a block is found by its address.

use super::sizes::GRANULE;

/// What a page is cut into. The [module](super) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// Blocks of up to 16 KiB.
    Small,
    /// Blocks of up to 1 MiB.
    Medium,
}

/// Is told where blocks and pages begin, by whoever has the heap to himself. Numbers are those within a tier.
/// The [module](super) has an example.
pub trait BlockIndex {
    /// A block begins; false if there is no room for it in the index. So for the blocks of pages.
    fn set_large(&self, address: u64, number: u32) -> bool;
    /// A block is no longer there.
    fn clear_large(&self, address: u64, number: u32);
    /// A page begins; false if there is no room for it in the index.
    fn add_page(&self, address: u64, kind: PageKind) -> bool;
    /// A page is no longer there, nor is a block in it.
    fn remove_page(&self, address: u64);
    /// A block of `size` bytes begins in a page; false if there is no room for it in the index.
    fn set_in_page(&self, address: u64, kind: PageKind, number: u32, size: usize) -> bool;
    /// A block in a page is no longer there.
    fn clear_in_page(&self, address: u64, kind: PageKind);
}

/// An index for who keeps the blocks himself. The [module](super) has an example.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoIndex;

impl BlockIndex for NoIndex {
    fn set_large(&self, _: u64, _: u32) -> bool {
        true
    }

    fn clear_large(&self, _: u64, _: u32) {}

    fn add_page(&self, _: u64, _: PageKind) -> bool {
        true
    }

    fn remove_page(&self, _: u64) {}

    fn set_in_page(&self, _: u64, _: PageKind, _: u32, _: usize) -> bool {
        true
    }

    fn clear_in_page(&self, _: u64, _: PageKind) {}
}

/// The class of a small block: how many granules it has, from 1.
#[inline]
pub(crate) const fn small_class(size: usize) -> usize {
    size.div_ceil(GRANULE)
}

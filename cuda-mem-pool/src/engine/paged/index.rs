//! Where a block is found by its address.

use super::sizes::GRANULE;

/// What a slab is cut into. The [module](super) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlabKind {
    /// Blocks of up to 16 KiB.
    Small,
    /// Blocks of up to 1 MiB.
    Medium,
}

/// Learns where blocks and slabs begin, from the holder of the heap. Numbers are those within a tier.
/// The [module](super) has an example.
pub trait BlockIndex {
    /// A large block begins; false if there is no room for it in the index.
    fn set_large(&self, address: u64, number: u32) -> bool;
    /// A block is no longer there.
    fn clear_large(&self, address: u64, number: u32);
    /// A slab begins; false if there is no room for it in the index.
    fn add_slab(&self, address: u64, kind: SlabKind) -> bool;
    /// A slab is no longer there, nor is a block in it.
    fn remove_slab(&self, address: u64);
    /// A block of `size` bytes begins in a slab; false if there is no room for it in the index.
    fn set_in_slab(&self, address: u64, kind: SlabKind, number: u32, size: usize) -> bool;
    /// A block in a slab is no longer there.
    fn clear_in_slab(&self, address: u64, kind: SlabKind);
}

/// An index for a caller that keeps its blocks by number. The [module](super) has an example.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoIndex;

impl BlockIndex for NoIndex {
    fn set_large(&self, _: u64, _: u32) -> bool {
        true
    }

    fn clear_large(&self, _: u64, _: u32) {}

    fn add_slab(&self, _: u64, _: SlabKind) -> bool {
        true
    }

    fn remove_slab(&self, _: u64) {}

    fn set_in_slab(&self, _: u64, _: SlabKind, _: u32, _: usize) -> bool {
        true
    }

    fn clear_in_slab(&self, _: u64, _: SlabKind) {}
}

/// The class of a small block: how many granules it has, from 1.
#[inline]
pub(crate) const fn small_class(size: usize) -> usize {
    size.div_ceil(GRANULE)
}

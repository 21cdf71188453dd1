//! How large blocks are, where they live by their size, and who learns where they begin.

/// Blocks are multiples of this many bytes and start at multiples of it.
pub(crate) const GRANULE: usize = 512;

/// The slabs that small and medium blocks are cut from, and the unit of handles: 2 MiB.
pub(crate) const SLAB: usize = 2 << 20;

/// The largest small block.
pub(crate) const SMALL: usize = 16 << 10;

/// The largest medium block; larger ones lie directly in mapped ranges.
pub(crate) const MEDIUM: usize = 1 << 20;

/// The largest block: no device has as much, and sums of a few do not overflow.
pub(crate) const MAX: usize = 1 << 46;

/// The bytes of a block for `size` bytes: the next multiple of 512 above 0. None beyond 64 TiB.
#[inline]
pub(crate) const fn block_size(size: usize) -> Option<usize> {
    // 0 is rounded up too.
    if size > MAX { None } else { Some((size.saturating_sub(1) | (GRANULE - 1)) + 1) }
}

/// The class of a small block: how many granules it has, from 1.
#[inline]
pub(crate) const fn small_class(size: usize) -> usize {
    size.div_ceil(GRANULE)
}

/// Where a block lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    Small,
    Medium,
    Large,
}

impl Tier {
    #[inline]
    pub(crate) const fn of(block: usize) -> Self {
        if block <= SMALL {
            Self::Small
        } else if block <= MEDIUM {
            Self::Medium
        } else {
            Self::Large
        }
    }
}

/// What a slab is cut into: blocks up to 16 KiB, or up to 1 MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlabKind {
    Small,
    Medium,
}

/// Learns where blocks and slabs begin, from the holder of the heap. Numbers are those within a tier. What begins is refused (false) where
/// there is no room for it.
pub(crate) trait BlockIndex {
    fn set_large(&self, address: u64, number: u32) -> bool;
    fn clear_large(&self, address: u64, number: u32);
    fn add_slab(&self, address: u64, kind: SlabKind) -> bool;
    /// A slab is no longer there, nor is a block in it.
    fn remove_slab(&self, address: u64);
    fn set_in_slab(&self, address: u64, kind: SlabKind, number: u32, size: usize) -> bool;
    fn clear_in_slab(&self, address: u64, kind: SlabKind);
}

/// An index for a caller that keeps its blocks by number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NoIndex;

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

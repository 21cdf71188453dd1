//! How large blocks are, and where they live by their size.

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

/// The bytes of a block for `size` bytes: the next multiple of 512 above 0. None beyond 64 TiB.
#[inline]
#[must_use]
pub const fn block_size(size: usize) -> Option<usize> {
    // 0 is rounded up too.
    if size > MAX { None } else { Some((size.saturating_sub(1) | (GRANULE - 1)) + 1) }
}

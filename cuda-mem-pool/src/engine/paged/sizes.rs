//! How large blocks and handles are, who learns where blocks begin, and the knobs of growth, each with its unit.

pub(crate) use crate::engine::classes::MAX;

/// Blocks are multiples of this many bytes and start at multiples of it.
pub(crate) const GRANULE: usize = 512;

/// The slabs that small and medium blocks are cut from, and the unit of handles: 2 MiB.
pub(crate) const SLAB: usize = 2 << 20;

/// The largest small block.
pub(crate) const SMALL: usize = 16 << 10;

/// The largest medium block; larger ones lie directly in mapped ranges.
pub(crate) const MEDIUM: usize = 1 << 20;

/// The bytes of a block for `size` bytes: the next multiple of 512 above 0. None beyond 64 TiB.
#[inline]
#[must_use]
pub const fn block_size(size: usize) -> Option<usize> {
    // 0 is rounded up too.
    if size > MAX { None } else { Some((size.saturating_sub(1) | (GRANULE - 1)) + 1) }
}

/// Where a block lives: in a slab of blocks up to 16 KiB or up to 1 MiB, or by itself.
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

/// Learns where blocks and slabs begin, by numbers within a tier. What there is no room for is refused (false).
pub(crate) trait BlockIndex {
    fn set_large(&self, _address: u64, _number: u32) -> bool {
        true
    }
    fn clear_large(&self, _address: u64, _number: u32) {}
    fn add_slab(&self, _address: u64, _tier: Tier) -> bool {
        true
    }
    /// A slab is no longer there, nor is a block in it.
    fn remove_slab(&self, _address: u64) {}
    fn set_in_slab(&self, _address: u64, _number: u32) -> bool {
        true
    }
    fn clear_in_slab(&self, _address: u64) {}
}

/// An index for a caller that keeps its blocks by number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NoIndex;

impl BlockIndex for NoIndex {}

/// How much free memory an allocator keeps while others could use it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Hold {
    /// As much as the limit and the device leave: handles move only when the headroom is used up.
    Ample,
    /// At most a multiple of the peak of active bytes, for devices that are shared: beyond that, free handles move.
    Tight {
        /// The factor, from 1.0 on.
        over_peak: f64,
    },
}

/// How a [`PageSource`](super::PageSource) gets memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    /// The size of every new handle, a multiple of 2 MiB. The driver's time goes with the number of handles, and what a
    /// block leaves of a handle cannot be moved.
    pub(crate) handle_bytes: usize,
    /// The bytes that are left on the device for libraries, lazily loaded modules, graphs and other processes. Used last.
    pub(crate) reserve_bytes: usize,
    /// How much free memory is held.
    pub(crate) hold: Hold,
    /// Whether free handles may be mapped elsewhere at all.
    pub(crate) moves: bool,
    /// Microseconds of driver calls that moves may take in one second. Beyond that the reserve is used first.
    pub(crate) moves_us_per_s: u64,
    /// Where more is held than this many thousandths of the peak of active bytes, free handles of idle streams go before new ones.
    pub(crate) idle_permille: usize,
}

impl Policy {
    /// For an allocator that may hold so many bytes: the device's memory, or the limit where that is less.
    ///
    /// Handles have about a 640th of the memory, up to a most that goes with it. Smaller ones would take more calls to fill a device; larger
    /// ones leave more that cannot be moved because a block is in it: half a handle at each end of a run.
    pub(crate) fn for_memory(bytes: usize) -> Self {
        let most = match bytes >> 30 {
            0..12 => 12 << 20,
            12..32 => 14 << 20,
            _ => 20 << 20,
        };
        let handle_bytes = (bytes / 640).next_multiple_of(SLAB).clamp(SLAB, most);
        Self {
            handle_bytes,
            reserve_bytes: 0,
            hold: Hold::Ample,
            moves: true,
            moves_us_per_s: 20_000,
            idle_permille: 1500,
        }
    }
}

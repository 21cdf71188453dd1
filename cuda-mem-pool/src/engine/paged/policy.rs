//! How memory is got: the knobs of growth, each with its unit.

use super::sizes::SLAB;

/// A handle is about such a part of the memory, from 2 MiB on.
pub(super) const PARTS: usize = 640;

/// How much free memory an allocator keeps while others could use it.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Hold {
    /// Memory that nobody else wants is held: pages move only when the headroom is used up.
    Ample,
    /// At most so many times the most bytes that were ever active at once are held, for devices that are shared. Pages move beyond that.
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
    /// What is left to others on the device: libraries, lazily loaded modules, graphs, neighbours. It is used when nothing else helps.
    pub(crate) reserve_bytes: usize,
    /// How much is held while others could use it.
    pub(crate) hold: Hold,
    /// Whether free pages may be mapped elsewhere at all.
    pub(crate) moves: bool,
    /// The driver's time for moving pages within one second beyond which the reserve is used rather than more pages moved.
    pub(crate) moves_us_per_s: u64,
    /// What may be held, in thousandths of the most that was ever active, before free handles of idle streams are taken rather than new
    /// ones made.
    pub(crate) idle_permille: usize,
}

impl Policy {
    /// The size of the handles of a heap that has [`LARGE_FROM_BYTES`](Self::LARGE_FROM_BYTES) and goes on growing, where the memory is
    /// enough for [`PARTS`] of them.
    pub(super) const LARGE_HANDLE_BYTES: usize = 64 << 20;
    /// From here on what a large handle may leave unused is at most a 20th of what the heap has.
    pub(super) const LARGE_FROM_BYTES: usize = 20 * Self::LARGE_HANDLE_BYTES;

    /// For an allocator that may hold so many bytes: the device's memory, or the limit where that is less.
    ///
    /// Handles have about a 640th of the memory, 20 MiB from 12 GiB on. Smaller ones would take more calls to fill a device, larger ones
    /// leave more that cannot be moved because a block is in it.
    pub(crate) fn for_memory(bytes: usize) -> Self {
        let handle_bytes = (bytes / PARTS).next_multiple_of(SLAB).clamp(SLAB, 20 << 20);
        let hold = Hold::Ample;
        Self {
            handle_bytes,
            reserve_bytes: 0,
            hold,
            moves: true,
            moves_us_per_s: 20_000,
            idle_permille: 1500,
        }
    }

    /// The reserve that a device of so many bytes gets if nobody says another: a hundredth, from 256 MiB to 1 GiB.
    pub(crate) fn reserve_of(total_bytes: usize) -> usize {
        (total_bytes / 100).clamp(256 << 20, 1 << 30)
    }
}

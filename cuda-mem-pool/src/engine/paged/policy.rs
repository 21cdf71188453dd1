//! How memory is got: the knobs of growth, each with its unit.

use super::sizes::SLAB;

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

/// How a [`PageSource`](super::PageSource) gets memory. [`Policy::for_memory`] is what ships.
/// The [module](super) has an example.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// The size of every new handle, a multiple of 2 MiB. The driver's time goes with the number of handles, and what a
    /// block leaves of a handle cannot be moved.
    pub handle_bytes: usize,
    /// What is left to others on the device: libraries, lazily loaded modules, graphs, neighbours. It is used when nothing else helps.
    pub reserve_bytes: usize,
    /// How much is held while others could use it.
    pub hold: Hold,
    /// Whether free pages may be mapped elsewhere at all.
    pub moves: bool,
    /// The driver's time for moving pages within one second beyond which the reserve is used rather than more pages moved.
    pub moves_us_per_s: u64,
    /// What may be held, in thousandths of the most that was ever active, before free handles of idle streams are taken rather than new
    /// ones made.
    pub idle_permille: usize,
}

/// A small memory is made of about so many handles.
const HANDLES: usize = 640;
const LARGEST_HANDLE: usize = 20 << 20;

impl Policy {
    /// For an allocator that may hold so many bytes: the device's memory, or the limit where that is less.
    ///
    /// Handles have about a 640th of the memory, 20 MiB from 12 GiB on. Smaller ones would take more calls to fill a device, larger ones
    /// leave more that cannot be moved because a block is in it.
    #[must_use]
    pub const fn for_memory(bytes: usize) -> Self {
        let wanted = (bytes / HANDLES).next_multiple_of(SLAB);
        let handle_bytes = if wanted < LARGEST_HANDLE { wanted } else { LARGEST_HANDLE };
        let handle_bytes = if handle_bytes < SLAB { SLAB } else { handle_bytes };
        Self {
            handle_bytes,
            reserve_bytes: 0,
            hold: Hold::Ample,
            moves: true,
            moves_us_per_s: 20_000,
            idle_permille: 1500,
        }
    }

    /// Sets [`moves`](Self::moves).
    #[must_use]
    pub const fn with_moves(self, moves: bool) -> Self {
        Self { moves, ..self }
    }

    /// Sets [`hold`](Self::hold).
    #[must_use]
    pub const fn with_hold(self, hold: Hold) -> Self {
        Self { hold, ..self }
    }

    /// Sets [`reserve_bytes`](Self::reserve_bytes).
    #[must_use]
    pub const fn with_reserve_bytes(self, reserve_bytes: usize) -> Self {
        Self { reserve_bytes, ..self }
    }

    /// The reserve that a device of so many bytes gets if nobody says another: a hundredth, from 256 MiB to 1 GiB.
    #[must_use]
    pub const fn reserve_of(total_bytes: usize) -> usize {
        const LEAST: usize = 256 << 20;
        const MOST: usize = 1 << 30;
        let part = total_bytes / 100;
        if part < LEAST {
            LEAST
        } else if part > MOST {
            MOST
        } else {
            part
        }
    }
}

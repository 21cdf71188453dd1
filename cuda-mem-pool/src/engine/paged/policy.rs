//! The knobs of growth, and what each is for.

use super::sizes::PAGE;

/// How memory is got and moved. [`Policy::DEFAULT`] is what ships; `docs/allocator.md` has the measurements that chose them.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// New memory is made as long as what is held stays under so many thousandths more than the most that was ever in use at
    /// once; beyond that, free pages are moved. More costs memory, less costs calls.
    pub(crate) slack: u32,
    /// From so many thousandths on, large blocks are placed where they break up the least of free handles.
    pub(crate) tight: u32,
    /// A block is made of about so many handles: the driver's cost goes with their number, the waste with their size.
    pub(crate) handles_per_block: usize,
    /// The smallest and the largest handle, powers of two.
    pub(crate) smallest_handle: usize,
    pub(crate) largest_handle: usize,
    /// The free end of a partly used handle, if it is as large as this, may begin a block elsewhere.
    pub(crate) smallest_tail: usize,
    /// Mappings beyond which those that nobody needs are taken away. The driver's own limit is 524,072.
    pub(crate) most_mappings: usize,
    /// Whether pages may be mapped elsewhere at all.
    pub(crate) moves: bool,
}

impl Policy {
    /// What ships.
    pub const DEFAULT: Self = Self {
        slack: 10,
        tight: 12,
        handles_per_block: 24,
        smallest_handle: 2 * PAGE,
        largest_handle: 16 * PAGE,
        smallest_tail: 4 * PAGE,
        most_mappings: 100_000,
        moves: true,
    };

    /// Sets whether free pages may be mapped elsewhere rather than new memory be made.
    #[must_use]
    pub const fn with_moves(self, moves: bool) -> Self {
        Self { moves, ..self }
    }

    /// Blocks of this size and more are placed with care when memory is tight.
    pub(crate) const fn placed(&self) -> usize {
        self.largest_handle
    }

    /// The largest handle for a block of this size.
    pub(crate) const fn handle(&self, block: usize) -> usize {
        let wanted = block / self.handles_per_block;
        let wanted = if wanted < self.smallest_handle { self.smallest_handle } else { wanted };
        if wanted >= self.largest_handle { self.largest_handle } else { wanted.next_power_of_two() }
    }
}

/// What driver calls cost, in microseconds a handle, as measured on an H200.
pub(super) mod cost {
    /// Map and set access.
    pub(in crate::engine::paged) const MAP: u32 = 21;
    pub(in crate::engine::paged) const UNMAP: u32 = 13;
}

//! What there is, for those who show it.

use super::{Extent, Extents, State};

/// A piece of a heap's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) address: u64,
    pub(crate) size: usize,
    /// What was asked for of a block; none of what is free.
    pub(crate) requested: Option<usize>,
    /// Whether it lies in a page that is cut up for small or medium blocks.
    pub(crate) in_page: bool,
}

/// Memory that a heap got or lost: its addresses are as good as mapped, or as good as not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) address: u64,
    pub(crate) size: usize,
    /// Got, not lost.
    pub(crate) here: bool,
}

impl Extent {
    /// The bytes that were asked for of a block in use.
    fn requested(&self) -> usize {
        self.size.saturating_sub(self.mark as usize)
    }
}

impl Extents {
    /// Remembers from now on what is offered and withdrawn.
    pub(in crate::engine::paged) fn watch(&mut self) {
        self.moved.get_or_insert_default();
    }

    pub(in crate::engine::paged) const fn is_watched(&self) -> bool {
        self.moved.is_some()
    }

    /// What was offered and withdrawn since this was asked last, in order.
    pub(in crate::engine::paged) fn take_moved(&mut self) -> Vec<Moved> {
        self.moved.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(in crate::engine::paged) fn note(&mut self, address: u64, size: usize, here: bool) {
        if let Some(moved) = &mut self.moved {
            moved.push(Moved { address, size, here });
        }
    }

    /// The bytes that were asked for of a used extent.
    pub(in crate::engine::paged) fn requested(&self, number: u32) -> Option<usize> {
        let extent = self.records.get(number).filter(|extent| extent.state == State::Used)?;
        Some(extent.requested())
    }

    /// All extents, in no order.
    pub(in crate::engine::paged) fn pieces(&self, in_page: bool) -> impl Iterator<Item = Piece> {
        self.records.iter().map(move |(_, extent)| {
            let requested = (extent.state == State::Used).then(|| extent.requested());
            Piece { address: extent.address, size: extent.size, requested, in_page }
        })
    }
}

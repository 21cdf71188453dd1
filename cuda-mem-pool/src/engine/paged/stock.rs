//! The handles that gaps are filled with.

use std::cmp::Reverse;

use super::window::{Kind, Slot, Supply};

/// A handle that nothing is in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whole {
    pub(super) chunk: u32,
    pub(super) bytes: usize,
    /// The latest free in it, on its heap's count.
    pub(super) freed_at: u64,
}

/// The handles to fill gaps with, by size, the largest first.
#[derive(Debug, Default)]
pub(super) struct Stock(Vec<(usize, Vec<Whole>)>);

impl Stock {
    pub(super) fn of(whole: &[Whole], moves: bool) -> Self {
        let mut stock = Self::default();
        if !moves {
            return stock;
        }
        for one in whole {
            match stock.0.iter_mut().find(|(bytes, _)| *bytes == one.bytes) {
                Some((_, shelf)) => shelf.push(*one),
                None => stock.0.push((one.bytes, vec![*one])),
            }
        }
        stock.0.sort_unstable_by_key(|(bytes, _)| Reverse(*bytes));
        stock
    }

    pub(super) fn remove(&mut self, chunk: u32) {
        self.0.iter_mut().for_each(|(_, shelf)| shelf.retain(|whole| whole.chunk != chunk));
    }

    pub(super) fn get(&self, chunk: u32) -> Option<Whole> {
        self.0.iter().flat_map(|(_, shelf)| shelf).find(|whole| whole.chunk == chunk).copied()
    }

    pub(super) fn supply(&self) -> Supply {
        self.0.iter().map(|(bytes, shelf)| (*bytes, shelf.len() as u32)).collect()
    }

    pub(super) fn has(&self, chunk: u32) -> bool {
        self.0.iter().any(|(_, shelf)| shelf.iter().any(|whole| whole.chunk == chunk))
    }

    /// Of the shortest handles of more than `left` bytes the one that has been free for longest.
    pub(super) fn longest_free(&self, left: usize) -> Option<Whole> {
        let (_, shelf) = self.0.iter().rev().find(|(bytes, shelf)| *bytes > left && !shelf.is_empty())?;
        shelf.iter().min_by_key(|whole| (whole.freed_at, Reverse(whole.chunk))).copied()
    }

    /// Leaves what is in the window where it is.
    pub(super) fn without(&mut self, window: &[Slot]) {
        let mapped = window.iter().filter_map(|slot| match slot.kind {
            Kind::Mapped { chunk, .. } => Some(chunk),
            Kind::Gap { .. } => None,
        });
        let mut mapped: Vec<u32> = mapped.collect();
        mapped.sort_unstable();
        for (_, shelf) in &mut self.0 {
            shelf.retain(|whole| mapped.binary_search(&whole.chunk).is_err());
        }
    }

    /// The largest handle of at most `left` bytes; if there is none, the smallest of at most `room`. Of several of that size the one that has
    /// been free for longest.
    pub(super) fn take(&mut self, left: usize, room: usize) -> Option<Whole> {
        let at = self.0.iter().position(|(bytes, shelf)| *bytes <= left && !shelf.is_empty());
        let at =
            at.or_else(|| self.0.iter().rposition(|(bytes, shelf)| *bytes <= room && !shelf.is_empty()))?;
        let (_, shelf) = self.0.get_mut(at)?;
        // Most windows lack little or nothing, so nobody sorts what is there.
        let (oldest, _) = shelf.iter().enumerate().min_by_key(|(_, whole)| (whole.freed_at, whole.chunk))?;
        Some(shelf.swap_remove(oldest))
    }
}

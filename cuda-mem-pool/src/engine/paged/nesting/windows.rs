//! Which window of a nest a block gets.

use super::leaves::{Found, Place, Supply};
use crate::engine::paged::backend::Backend;
use crate::engine::paged::heap::StreamHeap;
use crate::engine::paged::sizes::PAGE;
use crate::engine::paged::source::{GrowError, PageSource};
use crate::engine::paged::window::whole_pages;
use crate::engine::slab::NONE;

/// With more mappings than so many for each leaf, new sizes take the windows of others.
const MAPPINGS: usize = 16;

/// So many leaves more may be mapped so often.
const FIRST: usize = 32;

/// A window, and the places of it that lack a leaf.
type Chosen = (u32, Vec<usize>);

impl<B: Backend> PageSource<B> {
    /// The idle window that lacks the fewest leaves, a new one if there is none, or one that begins behind another's block if
    /// more would be held otherwise than should be. With it, what it lacks.
    pub(super) fn window_for(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        supply: &Supply,
    ) -> Result<Chosen, GrowError<B::Error>> {
        let size = supply.size;
        let mut best: Option<Chosen> = None;
        for window in mine.nest.idle_of(size) {
            let lacks = mine.nest.lacks(window);
            let is_better = best.as_ref().is_none_or(|(_, fewest)| lacks.len() < fewest.len());
            if is_better && self.can_be_mended(mine, window, &lacks)? {
                best = Some((window, lacks));
            }
        }
        let pages = whole_pages(size as u64) as usize / PAGE;
        let lacks = best.as_ref().map_or(pages, |(_, lacks)| lacks.len());
        // Those that the window has are no supply for what it lacks.
        let missing = pages.saturating_sub(supply.leaves.len()).min(lacks) * PAGE;
        let held = self.ground.bytes().saturating_add(missing);
        let is_tight = missing > 0 && held > self.snug(size, supply.load);
        let own = MAPPINGS * (mine.nest.held_bytes() / PAGE + FIRST);
        let is_full = mine.nest.mappings() > own || self.ground.mappings() > self.policy.nested_mappings;
        if !is_full
            && (is_tight || best.is_none() && size < PAGE)
            && let Some(begun) = self.begin_inside(heap, mine, size)?
        {
            return Ok(begun);
        }
        if let Some(best) = best {
            return Ok(best);
        }
        if is_full && let Some(window) = mine.nest.spare_window(pages) {
            let every: Vec<usize> = (0..pages).collect();
            if self.can_be_mended(mine, window, &every)? {
                mine.nest.give_window(window, size);
                return Ok((window, mine.nest.lacks(window)));
            }
        }
        let window = self.add_window(mine, size, 0)?.ok_or(GrowError::OutOfMemory)?;
        Ok((window, (0..pages).collect()))
    }

    /// A new window whose block begins in a leaf behind another block.
    pub(super) fn begin_inside(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        size: usize,
    ) -> Result<Option<Chosen>, GrowError<B::Error>> {
        let rest = size % PAGE;
        let found = if rest > 0 { mine.nest.tail_for(rest, |chunk| self.may_move(chunk)) } else { None };
        let Some((leaf, chunk)) = found else { return Ok(None) };
        let Some(window) = self.add_window(mine, size, PAGE - rest)? else { return Ok(None) };
        let address = mine.nest.window(window).map_or(0, |window| window.address);
        self.map_leaf(heap, mine, Found::Leaf { leaf, chunk }, Place { window, at: 0, address })?;
        mine.nest.set_leaf(window, 0, leaf);
        Ok(Some((window, mine.nest.lacks(window))))
    }

    pub(super) fn add_window(
        &mut self,
        mine: &mut StreamHeap,
        size: usize,
        skip: usize,
    ) -> Result<Option<u32>, B::Error> {
        let bytes = whole_pages((size + skip) as u64);
        let Some(address) = self.next_window(bytes)? else { return Ok(None) };
        self.take_window(bytes);
        Ok(Some(mine.nest.add_window(address, size, skip)))
    }

    /// Whether what is mapped at places of a window may go.
    pub(super) fn can_be_mended(
        &mut self,
        mine: &StreamHeap,
        window: u32,
        places: &[usize],
    ) -> Result<bool, B::Error> {
        let Some(window) = mine.nest.window(window) else { return Ok(false) };
        for place in places {
            if *place == 0 && window.block() > window.address {
                return Ok(false);
            }
            let address = window.address + (place * PAGE) as u64;
            let Some(map) = self.ground.at(address).copied() else { continue };
            let is_mine = window.leaves.get(*place).is_some_and(|leaf| *leaf != NONE);
            let left_at = if is_mine { window.left_at } else { map.left_at };
            if is_mine == map.is_stale() || !self.may_move(map.chunk) || !self.is_done(map.heap, left_at)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Where the next new window begins; None if there are no addresses for it.
    pub(super) fn next_window(&mut self, bytes: u64) -> Result<Option<u64>, B::Error> {
        let taken = bytes + PAGE as u64;
        let (next, end) = self.windows;
        if end - next < taken {
            let Some(range) = self.reserve(taken)? else { return Ok(None) };
            self.windows = range;
        }
        Ok(Some(self.windows.0))
    }

    /// The next window is taken.
    pub(super) fn take_window(&mut self, bytes: u64) {
        self.windows.0 += bytes + PAGE as u64;
    }
}

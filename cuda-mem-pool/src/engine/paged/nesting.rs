//! Gets the nests of heaps what they lack.
//!
//! A heap that holds little goes to the page source when no window of a size can be used as it is. Of the window that lacks the
//! least what it lacks is replaced, by leaves that are wanted elsewhere last: a program that does the same again and again finds
//! everything in its place after a few rounds.

mod leaves;
mod windows;

use self::leaves::{Found, Place, Supply};
use super::backend::Backend;
use super::heap::{Block, StreamHeap};
use super::index::{BlockIndex, PageKind};
use super::sizes::{MEDIUM, PAGE, SMALL};
use super::source::{GrowError, Heaps, Load, PageSource, Wanted};
use super::stock::{Stock, Whole};
use crate::engine::slab::NONE;

/// For so many pages one is made ahead, and at most so many at once.
const PAGES: usize = 16;
const MOST_AHEAD: usize = 8;

impl<B: Backend> PageSource<B> {
    /// A block in a window of its own, or in a page that has one. None if there is none to be had.
    pub(super) fn grow_nest(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        others: &mut impl Heaps,
        wanted: Wanted,
        index: &impl BlockIndex,
    ) -> Result<Option<Block>, GrowError<B::Error>> {
        mine.release_kept_large(index);
        let grown = if wanted.size > MEDIUM {
            let block = self.nest(heap, mine, others, wanted, index);
            block.map(|block| block.or_else(|| mine.allocate_anywhere(wanted.size, wanted.unused, index)))
        } else {
            let page = self.nest_page(heap, mine, others, wanted);
            page.map(|page| mine.allocate_in_page(page?, wanted.size, wanted.unused, index))
        };
        match grown {
            Err(GrowError::OutOfMemory) => Ok(None),
            grown => grown,
        }
    }

    /// A large block in a window of its own. None if there is none to be had.
    fn nest(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        others: &mut impl Heaps,
        wanted: Wanted,
        index: &impl BlockIndex,
    ) -> Result<Option<Block>, GrowError<B::Error>> {
        let Wanted { size, unused, load } = wanted;
        let mut supply = self.supply(heap, mine, size, load);
        let (window, lacks) = self.window_for(heap, mine, &supply)?;
        let Some((has, first)) =
            mine.nest.window(window).map(|window| (window.leaves.clone(), window.address))
        else {
            return Ok(None);
        };
        supply.leaves.retain(|(leaf, _)| !has.contains(leaf));
        for at in lacks {
            let place = Place { window, at, address: first + (at * PAGE) as u64 };
            let there = self.ground.at(place.address).map(|map| map.chunk);
            let found = match there.and_then(|chunk| supply.take_this(chunk)) {
                Some(found) => Some(found),
                None if !self.can_be_mended(mine, window, &[at])? => None,
                None => self.leaf(heap, mine, others, &mut supply)?,
            };
            let Some(found) = found else { return Ok(None) };
            let leaf = self.map_leaf(heap, mine, found, place)?;
            mine.nest.set_leaf(window, at, leaf);
        }
        self.finish(heap, mine)?;
        let now = mine.now();
        let Some((number, address)) = mine.nest.use_window(window, unused, now) else { return Ok(None) };
        mine.large_block(number, address, size, index).map(Some).ok_or(GrowError::NoNumbers)
    }

    /// A page that nothing is in, for blocks of this size: its number and address. None if there is none to be had.
    fn nest_page(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        others: &mut impl Heaps,
        wanted: Wanted,
    ) -> Result<Option<(u32, u64)>, GrowError<B::Error>> {
        let kind = if wanted.size <= SMALL { PageKind::Small } else { PageKind::Medium };
        let mut supply = self.supply(heap, mine, PAGE, wanted.load);
        let Some(address) = self.next_window(PAGE as u64)? else { return Ok(None) };
        let Some(found) = self.leaf(heap, mine, others, &mut supply)? else { return Ok(None) };
        self.map_page(heap, mine, found, address)?;
        // Where there are many one more is soon too few.
        let more = (mine.nest.pages() / PAGES).min(MOST_AHEAD);
        for _ in 0..more {
            if self.ground.bytes().saturating_add(PAGE) > self.allowed(PAGE, wanted.load) {
                break;
            }
            let Some(address) = self.next_window(PAGE as u64)? else { break };
            let Some(chunk) = self.create(heap, PAGE)? else { break };
            self.map_page(heap, mine, Found::Handle { chunk, freed_at: 0 }, address)?;
        }
        self.finish(heap, mine)?;
        Ok(mine.nest.take_page(kind))
    }

    /// Has the next window be a page.
    fn map_page(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        found: Found,
        address: u64,
    ) -> Result<(), GrowError<B::Error>> {
        self.take_window(PAGE as u64);
        let leaf = self.map_leaf(heap, mine, found, Place { window: NONE, at: 0, address })?;
        mine.nest.add_page(leaf, address);
        Ok(())
    }

    /// What comes after all changes, and before a block that would be lost if it failed.
    fn finish(&mut self, heap: u32, mine: &StreamHeap) -> Result<(), GrowError<B::Error>> {
        self.mark_free(heap, mine)?;
        self.sweep()
    }

    /// Has a leaf that nothing is in be a handle like others, free where it was last.
    pub(super) fn leave_nest(&mut self, heap: u32, mine: &mut StreamHeap, leaf: u32) -> Option<Whole> {
        mine.nest.hide(leaf, &mut mine.large);
        let (chunk, home, freed_at) = mine.nest.remove_leaf(leaf)?;
        self.announce(chunk, 0);
        let maps = self.ground.chunk(chunk).map(|chunk| chunk.maps.clone()).unwrap_or_default();
        for address in maps {
            if let Some(map) = self.ground.at_mut(address).filter(|map| !map.is_stale()) {
                map.leave(heap, freed_at);
            }
        }
        if let Some(chunk) = self.ground.chunk_mut(chunk) {
            chunk.leaf = NONE;
        }
        self.ground.settle(home, heap);
        self.settle_in(chunk, home);
        mine.tick();
        mine.large.offer(home, PAGE, freed_at);
        Some(Whole { chunk, bytes: PAGE, freed_at })
    }

    /// Has all leaves that nothing is in be handles like others. Each is looked for in all the windows that it is in, which is the square
    /// of what a heap holds: of a heap that ceases to hold little, once, and next to the calls for what it got meanwhile it is nothing.
    pub(super) fn dissolve(&mut self, heap: u32, mine: &mut StreamHeap) {
        for (leaf, _) in self.free_leaves(mine) {
            self.leave_nest(heap, mine, leaf);
        }
    }

    /// The leaves that nothing is in and that may be moved, those that are wanted last first.
    pub(super) fn free_leaves(&self, mine: &StreamHeap) -> Vec<(u32, u32)> {
        if mine.nest.held_bytes() == 0 {
            return Vec::new();
        }
        let mut free = mine.nest.free_leaves(mine.now());
        free.retain(|(_, chunk)| self.may_move(*chunk));
        free
    }

    fn may_move(&self, chunk: u32) -> bool {
        self.ground.chunk(chunk).is_some_and(|chunk| chunk.pins == 0)
    }

    fn supply(&self, heap: u32, mine: &StreamHeap, size: usize, load: Load) -> Supply {
        let mut leaves = self.free_leaves(mine);
        leaves.reverse();
        let has_others = mine.large.free_bytes() >= PAGE;
        let whole = if has_others { self.wholly_free(heap, &mine.free_ranges()) } else { Vec::new() };
        Supply { size, load, leaves, stock: Stock::of(&whole, true) }
    }
}

//! The handles that nests get.

use crate::engine::paged::backend::{Backend, Change};
use crate::engine::paged::heap::StreamHeap;
use crate::engine::paged::sizes::PAGE;
use crate::engine::paged::source::{GrowError, Heaps, Load, PageSource};
use crate::engine::paged::stock::Stock;
use crate::engine::slab::NONE;

/// What leaves can be made of.
pub(super) struct Supply {
    pub(super) size: usize,
    pub(super) load: Load,
    /// Free leaves and their handles, the next one last.
    pub(super) leaves: Vec<(u32, u32)>,
    /// Free handles that are no leaves.
    pub(super) stock: Stock,
}

/// A handle that nothing is in.
#[derive(Debug, Clone, Copy)]
pub(super) enum Found {
    Leaf { leaf: u32, chunk: u32 },
    Handle { chunk: u32, freed_at: u64 },
}

/// A place of a window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) window: u32,
    pub(super) at: usize,
    pub(super) address: u64,
}

impl Supply {
    pub(super) fn take(&mut self) -> Option<Found> {
        // Handles that are no leaves are wanted by no window.
        if let Some(whole) = self.stock.take(PAGE, PAGE) {
            return Some(Found::Handle { chunk: whole.chunk, freed_at: whole.freed_at });
        }
        self.leaves.pop().map(|(leaf, chunk)| Found::Leaf { leaf, chunk })
    }

    /// A handle, if it is here.
    pub(super) fn take_this(&mut self, chunk: u32) -> Option<Found> {
        if let Some(at) = self.leaves.iter().position(|(_, of)| *of == chunk) {
            let (leaf, chunk) = self.leaves.remove(at);
            return Some(Found::Leaf { leaf, chunk });
        }
        let whole = self.stock.get(chunk).filter(|whole| whole.bytes == PAGE)?;
        self.stock.remove(chunk);
        Some(Found::Handle { chunk, freed_at: whole.freed_at })
    }
}

impl<B: Backend> PageSource<B> {
    /// A handle for a leaf: while more is held than should be one that there is, a new one else.
    pub(super) fn leaf(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        others: &mut impl Heaps,
        supply: &mut Supply,
    ) -> Result<Option<Found>, GrowError<B::Error>> {
        let held = self.ground.bytes().saturating_add(PAGE);
        let allowed = self.allowed(supply.size, supply.load);
        if held > allowed {
            if let Some(found) = supply.take() {
                return Ok(Some(found));
            }
            self.trade(heap, mine, &mut supply.stock, PAGE)?;
            // What the heap had before it had a nest is used up first.
            if mine.large.find(supply.size).is_some() {
                return Ok(None);
            }
            if self.ground.bytes().saturating_add(PAGE) > self.allowed_to_nests(supply.size, supply.load)
                && let Some(chunk) = self.steal(heap, others, PAGE, false)?
            {
                // Behind the wait for the other stream, which no point that was made before is.
                return Ok(Some(Found::Handle { chunk, freed_at: mine.tick() }));
            }
        }
        if let Some(chunk) = self.create(heap, PAGE)? {
            return Ok(Some(Found::Handle { chunk, freed_at: 0 }));
        }
        if let Some(found) = supply.take() {
            return Ok(Some(found));
        }
        let stolen = self.steal(heap, others, PAGE, true)?;
        Ok(stolen.map(|chunk| Found::Handle { chunk, freed_at: mine.tick() }))
    }

    /// From so much on blocks share leaves: half of what may be held beyond need.
    pub(super) fn snug(&self, size: usize, load: Load) -> usize {
        let most = load.peak.max(load.active.saturating_add(size));
        most.saturating_add(self.allowed(size, load).saturating_sub(most) / 2)
    }

    /// What may be held before heaps take from each other: what one has is wanted there again, and they would never come to rest.
    pub(super) fn allowed_to_nests(&self, size: usize, load: Load) -> usize {
        let most = load.peak.max(load.active.saturating_add(size));
        let share = if self.marks.len() > 1 { most / 1000 * self.policy.nests } else { 0 };
        self.allowed(size, load).max(share).min(self.limit)
    }

    /// Maps a handle, of which nothing is used against that, at a place where what is mapped may go. Its number as a leaf.
    pub(super) fn map_leaf(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        found: Found,
        place: Place,
    ) -> Result<u32, GrowError<B::Error>> {
        let (Found::Leaf { chunk, .. } | Found::Handle { chunk, .. }) = found;
        let memory = self.ground.chunk(chunk).map(|chunk| chunk.memory).ok_or(GrowError::NoNumbers)?;
        let is_leaf = matches!(found, Found::Leaf { .. });
        if !is_leaf {
            self.announce(chunk, 0);
        }
        let is_there = self.ground.at(place.address).is_some_and(|map| map.chunk == chunk);
        if !is_there {
            let mapped =
                self.vacate(mine, place).and_then(|()| Ok(self.backend.map(place.address, PAGE, memory)?));
            if let Err(error) = mapped {
                if !is_leaf {
                    self.shelter(heap, mine, chunk);
                }
                return Err(error);
            }
            self.habits.charge(heap, &self.policy);
        }
        if !is_leaf {
            self.leave(heap, mine, chunk);
        }
        if is_there {
            self.ground.settle(place.address, heap);
        } else {
            self.ground.map(place.address, chunk, 0, PAGE);
        }
        let leaf = match found {
            Found::Leaf { leaf, .. } => leaf,
            Found::Handle { freed_at, .. } => mine.nest.add_leaf(chunk, place.address, freed_at),
        };
        if let Some(chunk) = self.ground.chunk_mut(chunk) {
            chunk.leaf = leaf;
        }
        Ok(leaf)
    }

    /// Takes away what is mapped at a place.
    pub(super) fn vacate(&mut self, mine: &mut StreamHeap, place: Place) -> Result<(), GrowError<B::Error>> {
        let Some(map) = self.ground.at(place.address).copied() else { return Ok(()) };
        if !map.is_stale()
            && let Some(id) = self.ground.chunk(map.chunk).map(|chunk| chunk.id)
        {
            self.ground.renew(map.chunk);
            self.backend.before(Change { id, address: place.address, bytes: PAGE });
        }
        self.backend.unmap(place.address, map.bytes())?;
        self.ground.unmap(place.address);
        mine.nest.set_leaf(place.window, place.at, NONE);
        Ok(())
    }
}

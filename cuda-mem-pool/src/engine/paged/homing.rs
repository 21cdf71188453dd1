//! Brings handles back to their places.
//!
//! Each handle has a place in the line: where it was mapped first, behind the one that was made before it. As long as all are there,
//! free neighbours join, and a block fits nearly wherever as much is free. A handle that is mapped elsewhere, since no free range was
//! long enough, leaves its place mapped, and nothing else comes there. Once it is wholly free again it goes back, which takes no
//! call: the line is as if the block had never been.
//!
//! A handle whose end alone was mapped elsewhere ([`PageSource::lend`]) does not go back by itself: it is offered in parts, of which none is
//! the whole. It comes together again where a window takes it as a whole, and from there it goes.

use super::backend::Backend;
use super::ground::Map;
use super::heap::StreamHeap;
use super::source::{GrowError, PageSource};
use crate::engine::slab::NONE;

impl<B: Backend> PageSource<B> {
    /// A handle is offered at an address: its place, if it has none yet and others belong beside it there. A window of a nest is nobody's
    /// place, for leaves come and go there; a handle that was one is offered there until it is moved.
    pub(super) fn settle_in(&mut self, chunk: u32, address: u64) {
        let is_row = self.ground.is_row(address);
        let Some(record) = self.ground.chunk_mut(chunk) else { return };
        if record.place == 0 {
            record.place = if is_row { address } else { 0 };
        } else if record.place != address && !self.away.contains(&chunk) {
            self.away.push(chunk);
        }
    }

    /// Whether a mapping stays because its handle belongs there. Not where memory is given rather than moved: then little is, and
    /// the line is cut up by what was given.
    pub(super) fn keeps_place(&self, address: u64, map: &Map) -> bool {
        self.is_patient() && self.ground.is_place(address, map)
    }

    const fn is_patient(&self) -> bool {
        self.haste.given() == 0 && self.haste.owed() < self.policy.patience / 2
    }

    /// Brings the heap's handles back that are away and wholly free. Whether there were any.
    pub(super) fn go_home(&mut self, heap: u32, mine: &mut StreamHeap) -> Result<bool, GrowError<B::Error>> {
        if self.away.is_empty() || !self.is_patient() {
            return Ok(false);
        }
        let free = mine.free_ranges();
        let is_free = |from: u64, to: u64| {
            let next = free.partition_point(|free| free.address <= from);
            next.checked_sub(1).and_then(|at| free.get(at)).is_some_and(|free| free.end() >= to)
        };
        let mut back = Vec::new();
        let ground = &self.ground;
        self.away.retain(|number| {
            let Some(chunk) = ground.chunk(*number).filter(|chunk| chunk.place > 0) else { return false };
            if chunk.home == chunk.place && chunk.leaf == NONE {
                return false;
            }
            let whole = ground.at(chunk.home).is_some_and(|map| map.chunk == *number && map.is_whole());
            let may_go = whole && chunk.heap == heap && chunk.pins == 0 && chunk.leaf == NONE;
            if !may_go || !is_free(chunk.home, chunk.home + chunk.bytes as u64) {
                return true;
            }
            back.push((*number, chunk.place));
            false
        });
        let mut brought = Ok(());
        for (chunk, place) in &back {
            match brought {
                Ok(()) => brought = self.bring_home(heap, mine, *chunk, *place),
                // It is away yet.
                Err(_) => self.away.push(*chunk),
            }
        }
        brought.map(|()| !back.is_empty())
    }
}

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
use super::heap::StreamHeap;
use super::source::{GrowError, PageSource};
use crate::engine::slab::NONE;

impl<B: Backend> PageSource<B> {
    /// A handle is offered at an address: its place, if it has none yet and others belong beside it there. A window of a nest is nobody's
    /// place, for leaves come and go there; a handle that was one is offered there until it is moved.
    pub(super) fn settle_in(&mut self, chunk: u32, address: u64) {
        let Some(record) = self.ground.chunk(chunk) else { return };
        if record.place == 0 {
            let place = self.ground.is_row(address).then_some(address);
            self.ground.set_place(chunk, place);
        } else if record.place != address && self.away.iter().all(|away| away.chunk != chunk) {
            self.away.push(Away { chunk, blocked_by: NONE });
        }
    }

    /// Whether mappings stay where their handles belong. Not where memory is given rather than moved: then little is, and
    /// the line is cut up by what was given.
    pub(super) const fn is_patient(&self) -> bool {
        self.haste.given() == 0 && self.haste.owed() < self.policy.patience / 2
    }

    /// Brings the heap's handles back that are away and wholly free. Whether there were any.
    pub(super) fn go_home(&mut self, heap: u32, mine: &mut StreamHeap) -> Result<bool, GrowError<B::Error>> {
        if self.away.is_empty() || !self.is_patient() {
            return Ok(false);
        }
        let ground = &self.ground;
        self.away.retain(|away| {
            let chunk = ground.chunk(away.chunk).filter(|chunk| chunk.place > 0);
            chunk.is_some_and(|chunk| chunk.home != chunk.place || chunk.leaf != NONE)
        });
        let back = self.free_and_away(heap, mine);
        if back.is_empty() {
            return Ok(false);
        }
        self.away.retain(|away| back.iter().all(|(free, _)| *free != away.chunk));
        let mut brought = Ok(());
        for (chunk, place) in &back {
            match brought {
                Ok(()) => brought = self.bring_home(heap, mine, *chunk, *place),
                // It is away yet.
                Err(_) => self.away.push(Away { chunk: *chunk, blocked_by: NONE }),
            }
        }
        brought.map(|()| true)
    }

    /// The heap's handles that are away and wholly free, and their places.
    fn free_and_away(&mut self, heap: u32, mine: &StreamHeap) -> Vec<(u32, u64)> {
        let mut found = Vec::new();
        for away in &mut self.away {
            let Some(chunk) = self.ground.chunk(away.chunk) else { continue };
            // This is asked for nearly every block, and hardly any is free: the block that was in it is in it yet.
            if chunk.heap != heap || mine.large.blocks(away.blocked_by, chunk.home, chunk.bytes) {
                continue;
            }
            let may_go = chunk.pins == 0 && chunk.leaf == NONE;
            let map = self.ground.at(chunk.home).filter(|map| map.chunk == away.chunk && map.is_whole());
            if !may_go || map.is_none() {
                continue;
            }
            match mine.large.blocking(chunk.home, chunk.bytes) {
                Some(number) => away.blocked_by = number,
                None => found.push((away.chunk, chunk.place)),
            }
        }
        found
    }
}

/// A handle that may go back once it is free where it is.
#[derive(Debug)]
pub(super) struct Away {
    chunk: u32,
    /// An extent of its heap that was in it when somebody last looked. As long as one of that number has some of its bytes it is not free.
    blocked_by: u32,
}

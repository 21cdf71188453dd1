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
        } else if record.place != address && !self.away.contains(&chunk) {
            self.away.push(chunk);
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
        self.away.retain(|number| {
            let chunk = ground.chunk(*number).filter(|chunk| chunk.place > 0);
            chunk.is_some_and(|chunk| chunk.home != chunk.place || chunk.leaf != NONE)
        });
        let back = self.free_and_away(heap, mine);
        self.away.retain(|number| back.iter().all(|(free, _)| free != number));
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

    /// The heap's handles that are away and wholly free, and their places.
    fn free_and_away(&self, heap: u32, mine: &StreamHeap) -> Vec<(u32, u64)> {
        let mut away: Vec<Away> = Vec::new();
        for number in &self.away {
            let Some(chunk) = self.ground.chunk(*number) else { continue };
            let may_go = chunk.heap == heap && chunk.pins == 0 && chunk.leaf == NONE;
            if may_go && self.ground.at(chunk.home).is_some_and(|map| map.chunk == *number && map.is_whole())
            {
                let end = chunk.home + chunk.bytes as u64;
                away.push(Away {
                    number: *number,
                    place: chunk.place,
                    home: chunk.home,
                    end,
                    is_free: false,
                });
            }
        }
        let Some(least) = away.iter().map(|away| away.end - away.home).min() else { return Vec::new() };
        // This is asked for nearly every block, of heaps with hundreds of free ranges; few of them are as long.
        for free in mine.large.free_from(least as usize) {
            for away in &mut away {
                away.is_free |= free.address <= away.home && away.end <= free.end();
            }
        }
        away.iter().filter(|away| away.is_free).map(|away| (away.number, away.place)).collect()
    }
}

/// A handle that may go back once it is free where it is.
struct Away {
    number: u32,
    place: u64,
    /// Where it is, up to where.
    home: u64,
    end: u64,
    is_free: bool,
}

//! Takes handles from other heaps, and has none be lost when a call fails.

use std::cmp::Reverse;

use super::backend::{Backend, Change};
use super::heap::StreamHeap;
use super::sizes::PAGE;
use super::source::{GrowError, Heaps, PageSource};

impl<B: Backend> PageSource<B> {
    /// Takes a wholly free handle from another heap, whose stream this one's waits for. With `all` from one that somebody has
    /// right now, too.
    pub(super) fn steal(
        &mut self,
        heap: u32,
        others: &mut impl Heaps,
        left: usize,
        all: bool,
    ) -> Result<Option<u32>, GrowError<B::Error>> {
        for other in others.others() {
            let take = |theirs: &mut StreamHeap| {
                if theirs.large.free_bytes() < PAGE && theirs.nest.held_bytes() == 0 {
                    return None;
                }
                let free = theirs.free_ranges();
                let whole = self.wholly_free(other, &free);
                let fits = whole.iter().filter(|whole| whole.bytes <= left);
                let whole = match fits.max_by_key(|whole| (whole.bytes, Reverse(whole.freed_at), whole.chunk))
                {
                    Some(whole) => *whole,
                    None if left < PAGE => return None,
                    None => {
                        let (leaf, _) = *self.free_leaves(theirs).first()?;
                        self.leave_nest(other, theirs, leaf)?
                    }
                };
                self.announce(whole.chunk, 0);
                self.leave_at(other, theirs, whole.chunk, whole.freed_at);
                Some((whole, theirs.now()))
            };
            let taken = if all { others.with(other, take) } else { others.try_with(other, take) };
            let Some(Some((whole, now))) = taken else { continue };
            let handed_over = self.hand_over(heap, other, whole.freed_at, now);
            if !matches!(handed_over, Ok(true)) {
                others.with(other, |theirs| self.shelter(other, theirs, whole.chunk));
                handed_over?;
                continue;
            }
            // Between another heap's handles it would be no use.
            self.ground.set_place(whole.chunk, None);
            if let Some(chunk) = self.ground.chunk_mut(whole.chunk) {
                chunk.heap = heap;
            }
            return Ok(Some(whole.chunk));
        }
        Ok(None)
    }

    /// Lets a heap's stream wait for what another has freed up to a count. False if there is no point to wait for.
    pub(super) fn hand_over(
        &mut self,
        heap: u32,
        other: u32,
        freed_at: u64,
        now: u64,
    ) -> Result<bool, B::Error> {
        let (round, backend) = (self.round, &mut self.backend);
        let marks = self.marks.entry(other).or_default();
        if marks.is_waited_for(freed_at, heap, round) || marks.is_done(freed_at, round, backend)? {
            return Ok(true);
        }
        // A point that was made before holds the stream up for less than one that is made now.
        if marks.behind(freed_at).is_none() {
            marks.make(other, now, backend)?;
            if marks.is_done(freed_at, round, backend)? {
                return Ok(true);
            }
        }
        let Some((count, mark)) = marks.behind(freed_at) else { return Ok(false) };
        let waits = backend.wait(heap, other, mark)?;
        if waits {
            marks.waited_for(count, heap, round);
        }
        Ok(waits)
    }

    /// Finds a place for a wholly free handle of a heap with which something failed: where it is offered, where it was offered last
    /// if it is mapped there still, where else it is mapped, or among those without a home, if the driver does not take it back.
    ///
    /// Where it was offered nobody else has plans. Of its stale mappings any may lie in a gap that is about to be filled.
    pub(super) fn shelter(&mut self, heap: u32, mine: &mut StreamHeap, chunk: u32) {
        let Some(record) = self.ground.chunk(chunk) else { return };
        let (memory, bytes) = (record.memory, record.bytes);
        let is_offered = |at: &u64| self.ground.at(*at).is_some_and(|map| !map.is_stale());
        if record.maps.iter().any(is_offered) {
            return;
        }
        let home = record.maps.iter().find(|at| **at == record.home).or(record.maps.last());
        if let Some(address) = home.copied() {
            self.ground.settle(address, heap);
            self.settle_in(chunk, address);
            let now = mine.tick();
            mine.large.offer(address, bytes, now);
        } else if self.backend.release(memory, bytes).is_ok() {
            self.ground.remove(chunk);
        } else {
            self.homeless.push(chunk);
        }
    }

    /// What is behind a handle's addresses, from this byte of it on, is about to change.
    pub(super) fn announce(&mut self, chunk: u32, from: usize) {
        let Some(record) = self.ground.chunk(chunk) else { return };
        let id = record.id;
        let offered = self.ground.offered(chunk).filter_map(|(address, map)| {
            let from = map.from().max(from);
            let bytes = map.to().checked_sub(from).filter(|bytes| *bytes > 0)?;
            Some(Change { id, address: address + from as u64, bytes })
        });
        let changes: Vec<Change> = offered.collect();
        self.ground.renew(chunk);
        changes.into_iter().for_each(|change| self.backend.before(change));
    }
}

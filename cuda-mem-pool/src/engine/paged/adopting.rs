//! Lets a heap have what is free in another where it is.
//!
//! A free range of whole handles needs no call to change heaps: it stays mapped where it is, and the stream of the one that gets it waits
//! for the other's on the device. Programs with many streams leave idle heaps behind, with gigabytes in them: handles that are moved one by
//! one cost as much as new ones, and new memory is held for ever. And programs whose streams have their peaks by turns, such as one that
//! gathers weights beside what computes with them, would move the same gigabyte to and fro in each step.

use std::ops::Range;

use super::backend::Backend;
use super::extents::Free;
use super::heap::StreamHeap;
use super::policy::FEW;
use super::source::{GrowError, Heaps, Load, PageSource};
use crate::engine::slab::NONE;

/// How much of an idle heap changes hands at once, if there is so much in a row.
const AT_ONCE: usize = 128 << 20;

/// What is taken from a heap in use is no more than such a part longer than the block.
const SPARED: usize = 4;

/// How many free ranges of a heap are looked at.
const LOOKED_AT: usize = 8;

/// Handles side by side that nothing is in.
#[derive(Debug, Clone, Copy)]
struct Row {
    address: u64,
    bytes: usize,
    /// The latest free in them, on their heap's count.
    freed_at: u64,
}

impl Row {
    const fn end(&self) -> u64 {
        self.address + self.bytes as u64
    }
}

impl<B: Backend> PageSource<B> {
    /// `size` free bytes in a row out of a heap that nobody uses, rather than more memory than one heap would be allowed: where they
    /// begin.
    pub(super) fn adopt_idle(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        others: &mut impl Heaps,
        size: usize,
        load: Load,
    ) -> Result<Option<u64>, GrowError<B::Error>> {
        let most = load.peak.max(load.active.saturating_add(size));
        // What each heap may have beyond need is for those that are in use.
        let enough = most.saturating_add(self.policy.slack_bytes(most, 1)).max(self.room_of_heaps());
        let held = self.ground.bytes().saturating_add(size);
        if !self.policy.moves || self.marks.len() <= FEW || held <= enough {
            return Ok(None);
        }
        self.adopt(heap, mine, others, size, AT_ONCE..usize::MAX, StreamHeap::is_idle)
    }

    /// `size` free bytes in a row out of any other heap: where they begin. Only where the heap, which has `own` bytes that could be moved,
    /// would have to take some from others anyway: heaps in use would cut up each other's lines for ever.
    pub(super) fn adopt_lacking(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        others: &mut impl Heaps,
        size: usize,
        load: Load,
        own: usize,
    ) -> Result<Option<u64>, GrowError<B::Error>> {
        let held = self.ground.bytes().saturating_add(size);
        if !self.policy.moves || own >= size || held <= self.allowed(size, load) {
            return Ok(None);
        }
        // The rest of a handle that is much longer than the block the other heap has a use for.
        let most = size.saturating_add((size / SPARED).max(self.policy.smallest_handle));
        self.adopt(heap, mine, others, size, size..most, |_| true)
    }

    /// `size` free bytes in a row out of another heap that `serves`, and what is behind them up to where `at_once` begins; no row that is
    /// longer than where it ends.
    fn adopt(
        &mut self,
        heap: u32,
        mine: &mut StreamHeap,
        others: &mut impl Heaps,
        size: usize,
        at_once: Range<usize>,
        serves: impl Fn(&StreamHeap) -> bool,
    ) -> Result<Option<u64>, GrowError<B::Error>> {
        for other in others.others() {
            let take = |theirs: &mut StreamHeap| {
                if !serves(theirs) {
                    return None;
                }
                let mut free = theirs.large.free_from(size).take(LOOKED_AT);
                let row = free.find_map(|free| self.row_in(other, free, size, &at_once))?;
                drop(free);
                theirs.large.withdraw(row.address, row.bytes).then(|| (row, theirs.now()))
            };
            let Some(Some((row, now))) = others.try_with(other, take) else { continue };
            let handed_over = self.hand_over(heap, other, row.freed_at, now);
            if !matches!(handed_over, Ok(true)) {
                others.with(other, |theirs| theirs.large.offer(row.address, row.bytes, row.freed_at));
                handed_over?;
                continue;
            }
            self.rename(heap, row);
            mine.offer(row.address, row.bytes).ok_or(GrowError::NoNumbers)?;
            return Ok(Some(row.address));
        }
        Ok(None)
    }

    /// The first handles in a free range of a heap that are side by side, wholly free there, and `size` bytes together; and those behind
    /// them, up to where `at_once` begins. None if they are more than where it ends.
    fn row_in(&self, heap: u32, free: Free, size: usize, at_once: &Range<usize>) -> Option<Row> {
        let mut row = Row { address: free.address, bytes: 0, freed_at: free.freed_at };
        for (start, map) in self.ground.touching(free.address, free.end()) {
            if row.bytes >= size.max(at_once.start) {
                break;
            }
            let is_inside = start >= free.address && start + map.bytes() as u64 <= free.end();
            let is_its = self
                .ground
                .chunk(map.chunk)
                .is_some_and(|chunk| chunk.heap == heap && chunk.pins == 0 && chunk.leaf == NONE);
            if is_inside && is_its && map.is_whole() && (row.bytes == 0 || row.end() == start) {
                if row.bytes == 0 {
                    row.address = start;
                }
                row.bytes += map.bytes();
            } else if row.bytes >= size {
                break;
            } else {
                row.bytes = 0;
            }
        }
        (row.bytes >= size && row.bytes <= at_once.end).then_some(row)
    }

    /// Enters handles that are offered in a row as another heap's, whose line they belong to from now on.
    fn rename(&mut self, heap: u32, row: Row) {
        let maps: Vec<(u64, u32)> =
            self.ground.touching(row.address, row.end()).map(|(start, map)| (start, map.chunk)).collect();
        for (start, chunk) in maps {
            self.ground.settle(start, heap);
            let place = self.ground.is_row(start).then_some(start);
            self.ground.set_place(chunk, place);
            if let Some(chunk) = self.ground.chunk_mut(chunk) {
                chunk.heap = heap;
            }
        }
    }
}

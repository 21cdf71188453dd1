//! Where a block fits with the fewest handles more.
//!
//! A heap's addresses are runs of mapped memory with gaps between them. A *stretch* has no byte in use: free spans and gaps, one behind the
//! other. A *window* is a part of a stretch as long as the block. It lacks the slots of gaps that it has.
//!
//! ```text
//!  ▓▓▓▓░░│··gap··│░░░░░░│····gap····│░▓▓▓▓      ▓ in use  ░ free  · not mapped, or stale
//!      └───────── stretch ─────────┘
//!          └──── window ────┘ lacks one slot
//! ```

use std::collections::HashMap;

use super::memory::{Content, Memory, Range};
use super::moving;
use super::spans::{Free, Spans};

#[derive(Debug)]
pub(super) struct Window {
    pub(super) start: u64,
    pub(super) unit: usize,
    /// The free bytes of the heap in it, each with the free span that they are in.
    pub(super) parts: Vec<Free>,
    /// The slots that lack a handle.
    pub(super) lacks: Vec<u64>,
    /// The other slots, each with the handle that is stale in it and wholly free elsewhere: that can be active here again without a call.
    pub(super) returns: Vec<(moving::Free, u64)>,
}

impl Window {
    /// Whether the slot that begins at an address has free bytes of the window.
    pub(super) fn has(&self, slot: u64) -> bool {
        let end = slot + self.unit as u64;
        self.parts.iter().any(|part| part.address < end && slot < part.end())
    }
}

/// A piece of a stretch: a free span, or a gap: slots without an active handle.
#[derive(Debug, Clone, Copy)]
struct Piece {
    from: u64,
    to: u64,
    free: Option<Free>,
}

pub(super) struct Search<'s> {
    pub(super) memory: &'s Memory,
    pub(super) spans: &'s Spans,
    pub(super) size: u64,
    /// What it begins at a multiple of, a power of two.
    pub(super) alignment: u64,
    /// All work is done that used the heap's memory up to this count.
    pub(super) done: u64,
    /// The handles that are wholly free where they are active, and may be moved: also to where they are stale.
    pub(super) free: HashMap<u32, moving::Free>,
}

impl Search<'_> {
    /// The window of the heap that lacks the fewest handles of `unit` bytes, the lowest of those.
    pub(super) fn find(mut self, heap: u32, unit: usize) -> Option<Window> {
        let memory = self.memory;
        loop {
            let ranges = memory.ranges_of(heap).filter(|range| range.unit == unit);
            let ranges: Vec<_> = ranges.map(|range| (range, self.pieces(range))).collect();
            let stretches = ranges.iter().flat_map(|(range, pieces)| {
                let stretches = pieces.chunk_by(|one, next| one.to == next.from);
                stretches.map(move |stretch| (*range, stretch))
            });
            let places = stretches
                .flat_map(|(range, stretch)| self.starts(stretch).map(move |start| (range, stretch, start)));
            let lacks = |range, stretch, start| {
                self.slots(range, stretch, start)
                    .filter(|slot| self.returning(range, *slot).is_none())
                    .count()
            };
            let best = places.min_by_key(|&(range, stretch, start)| (lacks(range, stretch, start), start));
            let (range, stretch, start) = best?;
            let window = self.window(range, stretch, start);
            if window.is_some() || self.free.is_empty() {
                return window;
            }
            // A handle would have been active in two slots of it: none goes back to where it is stale.
            self.free.clear();
        }
    }

    /// The pieces of a range in the order of their addresses. Those of a stretch lie one behind the other.
    fn pieces(&self, range: &Range) -> Vec<Piece> {
        let (mut pieces, mut begin) = (Vec::new(), range.start);
        let mut add_gap = |from, to| pieces.extend((from < to).then_some(Piece { from, to, free: None }));
        let may_go = |handle: u32, left_at: u64| left_at <= self.done || self.free.contains_key(&handle);
        // Another free span lies between blocks: it is in a window only if that fits into it.
        let mut free: Vec<_> = self.spans.free_from(self.size as usize).collect();
        for (start, end, ends) in
            self.spans.runs(range.start, range.end).chain([(range.end, range.end, [None; 2])])
        {
            free.extend(ends.into_iter().flatten());
            for (slot, content) in range.mapped(begin, start) {
                if !matches!(content, Content::Stale { handle, left_at } if may_go(handle, left_at)) {
                    add_gap(begin, slot);
                    begin = slot + range.unit as u64;
                }
            }
            add_gap(begin, start);
            begin = end;
        }
        let free = free.into_iter().filter(|free| (range.start..range.end).contains(&free.address));
        pieces.extend(free.map(|free| Piece { from: free.address, to: free.end(), free: Some(free) }));
        pieces.sort_unstable_by_key(|piece| piece.from);
        pieces.dedup_by_key(|piece| piece.from);
        pieces
    }

    /// Where a window may begin in a stretch: its ends are those of pieces, at one side at least.
    fn starts(&self, stretch: &[Piece]) -> impl Iterator<Item = u64> {
        let from = stretch.first().map_or(0, |first| first.from);
        let to = stretch.last().map_or(0, |last| last.to);
        let starts = stretch.iter().flat_map(|piece| {
            let begins = piece.from.checked_next_multiple_of(self.alignment);
            let ends = piece.to.checked_sub(self.size).map(|start| start - start % self.alignment);
            begins.into_iter().chain(ends)
        });
        starts.filter(move |start| *start >= from && start + self.size <= to)
    }

    fn slots(&self, range: &Range, stretch: &[Piece], start: u64) -> impl Iterator<Item = u64> {
        let (first, end, unit) = (range.slot_of(start), start + self.size, range.unit);
        let gaps = stretch.iter().filter(|piece| piece.free.is_none());
        gaps.flat_map(move |gap| (first.max(gap.from)..end.min(gap.to)).step_by(unit))
    }

    /// The handle that is stale in a slot and may be active there again.
    fn returning(&self, range: &Range, slot: u64) -> Option<moving::Free> {
        match range.content(slot) {
            Content::Stale { handle, .. } => self.free.get(&handle).copied(),
            _ => None,
        }
    }

    /// The window at a place. None if a slot of it cannot be filled after all.
    fn window(&self, range: &Range, stretch: &[Piece], start: u64) -> Option<Window> {
        let end = start + self.size;
        let (parts, lacks, returns) = (Vec::new(), Vec::new(), Vec::new());
        let mut window = Window { start, unit: range.unit, parts, lacks, returns };
        for piece in stretch {
            let (from, to) = (piece.from.max(start), piece.to.min(end));
            let free = piece.free.filter(|_| from < to);
            window.parts.extend(free.map(|free| Free { address: from, size: (to - from) as usize, ..free }));
        }
        for address in self.slots(range, stretch, start) {
            // One that is active in the window itself stays where it is.
            let returning = self.returning(range, address).filter(|free| {
                let returns = window.returns.iter().any(|(other, _)| other.handle == free.handle);
                !window.has(free.address) && !returns
            });
            match (returning, range.content(address)) {
                (Some(free), _) => window.returns.push((free, address)),
                (None, Content::Stale { left_at, .. }) if left_at > self.done => return None,
                _ => window.lacks.push(address),
            }
        }
        Some(window)
    }
}

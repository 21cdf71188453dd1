//! Where a block fits with the fewest handles more.
//!
//! A heap's addresses are runs of mapped memory with gaps between them. A *stretch* has no byte in use: the free end of a run, gaps, runs
//! that are wholly free, the free beginning of the next run. A *window* is a part of a stretch as long as the block. It lacks the slots of
//! gaps that it has.
//!
//! ```text
//!  ▓▓▓▓░░│··gap··│░░░░░░│····gap····│░▓▓▓▓      ▓ in use  ░ free  · not mapped, or stale
//!      └───────── stretch ─────────┘
//!          └──── window ────┘ lacks one slot
//! ```

use std::collections::HashSet;

use super::memory::{Content, Memory, Range};
use super::spans::{Free, Spans};

/// A slot that a window lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fill {
    pub(super) address: u64,
    /// The handle that is stale in it and wholly free elsewhere: it can be active here again without a call.
    pub(super) returns: Option<u32>,
}

#[derive(Debug, Clone)]
pub(super) struct Window {
    pub(super) start: u64,
    pub(super) unit: usize,
    /// The free bytes of the heap in it, each with the free span that they are in.
    pub(super) parts: Vec<Free>,
    pub(super) fills: Vec<Fill>,
}

impl Window {
    /// How many handles it lacks that are not stale in their slots.
    pub(super) fn lacks(&self) -> usize {
        self.fills.iter().filter(|fill| fill.returns.is_none()).count()
    }

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

impl Piece {
    fn of(free: Free) -> Self {
        Self { from: free.address, to: free.end(), free: Some(free) }
    }
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
    pub(super) free: HashSet<u32>,
    pub(super) best: Option<Best<'s>>,
}

/// A place that lacks the fewest handles up to now, the lowest of those, with its stretch.
pub(super) struct Best<'s> {
    lacks: usize,
    start: u64,
    range: &'s Range,
    stretch: Vec<Piece>,
}

impl<'s> Search<'s> {
    /// The window of the heap that lacks the fewest handles of `unit` bytes.
    pub(super) fn find(mut self, heap: u32, unit: usize) -> Option<Window> {
        let memory = self.memory;
        loop {
            for range in memory.ranges_of(heap).filter(|range| range.unit == unit) {
                self.walk(range);
            }
            let best = self.best.take()?;
            let window = self.window(&best);
            if window.is_some() || self.free.is_empty() {
                return window;
            }
            // A handle would have been active in two slots of it: none goes back to where it is stale.
            self.free.clear();
        }
    }

    fn walk(&mut self, range: &'s Range) {
        let mut stretch = Vec::new();
        let mut at = range.start;
        for run in self.spans.runs(range.start, range.end) {
            self.pass_gap(range, &mut stretch, at, run.start);
            at = run.end;
            let is_whole = run.head.is_some_and(|head| head.end() == run.end);
            stretch.extend(run.head.map(Piece::of));
            if !is_whole {
                self.try_stretch(range, &mut stretch);
                stretch.extend(run.tail.map(Piece::of));
            }
        }
        self.pass_gap(range, &mut stretch, at, range.end);
        self.try_stretch(range, &mut stretch);
    }

    /// Adds a gap to the stretch, which ends where a slot cannot be filled.
    fn pass_gap(&mut self, range: &'s Range, stretch: &mut Vec<Piece>, from: u64, to: u64) {
        let mut begin = from;
        let mut at = from;
        while at < to {
            let usable = match range.content(at) {
                // Nothing was ever mapped from the first such slot at the end on.
                Content::Empty if range.is_behind_all(at) => break,
                Content::Empty => true,
                Content::Active(_) => false,
                Content::Stale { handle, left_at } => left_at <= self.done || self.free.contains(&handle),
            };
            if !usable {
                push_gap(stretch, begin, at);
                self.try_stretch(range, stretch);
                begin = at + range.unit as u64;
            }
            at += range.unit as u64;
        }
        push_gap(stretch, begin, to);
    }

    /// Looks for the best window in a stretch, which is empty afterwards. Its ends are those of pieces, at one side at least.
    fn try_stretch(&mut self, range: &'s Range, stretch: &mut Vec<Piece>) {
        if let (Some(from), Some(to)) =
            (stretch.first().map(|first| first.from), stretch.last().map(|last| last.to))
            && to - from >= self.size
        {
            for piece in stretch.iter() {
                let begins = piece.from.checked_next_multiple_of(self.alignment);
                let ends = piece.to.checked_sub(self.size).map(|start| start - start % self.alignment);
                for start in begins.into_iter().chain(ends) {
                    if start >= from && start + self.size <= to {
                        self.try_window(range, stretch, start);
                    }
                }
            }
        }
        stretch.clear();
    }

    fn try_window(&mut self, range: &'s Range, stretch: &[Piece], start: u64) {
        let slots = self.slots(range, stretch, start);
        let lacks = slots.filter(|at| self.returning(range, *at).is_none()).count();
        if self.best.as_ref().is_none_or(|best| (lacks, start) < (best.lacks, best.start)) {
            self.best = Some(Best { lacks, start, range, stretch: stretch.to_vec() });
        }
    }

    fn slots(&self, range: &Range, stretch: &[Piece], start: u64) -> impl Iterator<Item = u64> {
        let (first, end, unit) = (range.slot_of(start), start + self.size, range.unit);
        let gaps = stretch.iter().filter(|piece| piece.free.is_none());
        gaps.flat_map(move |gap| (first.max(gap.from)..end.min(gap.to)).step_by(unit))
    }

    /// The handle that is stale in a slot and may be active there again.
    fn returning(&self, range: &Range, slot: u64) -> Option<u32> {
        match range.content(slot) {
            Content::Stale { handle, .. } if self.free.contains(&handle) => Some(handle),
            _ => None,
        }
    }

    /// The window at a place. None if a slot of it cannot be filled after all.
    fn window(&self, Best { start, range, stretch, .. }: &Best<'_>) -> Option<Window> {
        let (start, end) = (*start, start + self.size);
        let mut window = Window { start, unit: range.unit, parts: Vec::new(), fills: Vec::new() };
        for piece in stretch {
            let (from, to) = (piece.from.max(start), piece.to.min(end));
            let free = piece.free.filter(|_| from < to);
            window.parts.extend(free.map(|free| Free { address: from, size: (to - from) as usize, ..free }));
        }
        for address in self.slots(range, stretch, start) {
            // One that is active in the window itself stays where it is.
            let returns = self.returning(range, address).filter(|handle| {
                let active = self.memory.handle(*handle).and_then(|handle| handle.active);
                active.is_some_and(|active| !window.has(active))
                    && window.fills.iter().all(|fill| fill.returns != Some(*handle))
            });
            let is_busy =
                matches!(range.content(address), Content::Stale { left_at, .. } if left_at > self.done);
            if returns.is_none() && is_busy {
                return None;
            }
            window.fills.push(Fill { address, returns });
        }
        Some(window)
    }
}

fn push_gap(stretch: &mut Vec<Piece>, from: u64, to: u64) {
    if from < to {
        stretch.push(Piece { from, to, free: None });
    }
}

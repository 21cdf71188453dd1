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

/// Free bytes of the heap in a window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    /// The free span that they are in.
    pub(super) span: u32,
    pub(super) address: u64,
    pub(super) bytes: usize,
    pub(super) freed_at: u64,
}

/// A slot that a window lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fill {
    pub(super) address: u64,
    /// The handle that is stale in it and wholly free elsewhere: it can be active here again without a call.
    pub(super) returns: Option<u32>,
}

/// A place for a block.
#[derive(Debug, Clone)]
pub(super) struct Window {
    /// Where the block begins.
    pub(super) start: u64,
    /// The bytes of each slot.
    pub(super) unit: usize,
    pub(super) parts: Vec<Part>,
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
        self.parts.iter().any(|part| part.address < end && slot < part.address + part.bytes as u64)
    }
}

/// What a block needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Need {
    pub(super) size: usize,
    /// A power of two.
    pub(super) alignment: u64,
}

/// A piece of a stretch.
#[derive(Debug, Clone, Copy)]
enum Piece {
    Free(Free),
    /// Slots without an active handle.
    Gap {
        from: u64,
        to: u64,
    },
}

impl Piece {
    const fn from(&self) -> u64 {
        match self {
            Self::Free(free) => free.address,
            Self::Gap { from, .. } => *from,
        }
    }

    fn to(&self) -> u64 {
        match self {
            Self::Free(free) => free.end(),
            Self::Gap { to, .. } => *to,
        }
    }
}

/// Looks for windows of one heap.
pub(super) struct Search<'s> {
    pub(super) memory: &'s Memory,
    pub(super) spans: &'s Spans,
    pub(super) need: Need,
    /// All work is done that used the heap's memory up to this count.
    pub(super) done: u64,
    /// The handles that are wholly free where they are active, and may be moved.
    pub(super) free: &'s HashSet<u32>,
    /// Whether stale mappings of those may be active again.
    returns: bool,
    best: Option<Best>,
}

#[derive(Debug, Clone, Copy)]
struct Best {
    lacks: usize,
    start: u64,
}

impl<'s> Search<'s> {
    pub(super) fn new(
        memory: &'s Memory,
        spans: &'s Spans,
        need: Need,
        done: u64,
        free: &'s HashSet<u32>,
    ) -> Self {
        Self { memory, spans, need, done, free, returns: !free.is_empty(), best: None }
    }

    /// The window of the heap that lacks the fewest handles of `unit` bytes, the lowest of those.
    pub(super) fn find(mut self, heap: u32, unit: usize) -> Option<Window> {
        loop {
            let mut found: Option<(&Range, Best)> = None;
            for range in self.memory.ranges_of(heap).filter(|range| range.unit == unit) {
                self.best = None;
                self.walk(range);
                let is_better = |best: &Best| found.is_none_or(|(_, known)| best.lacks < known.lacks);
                if let Some(best) = self.best.filter(is_better) {
                    found = Some((range, best));
                }
            }
            let (range, best) = found?;
            let window = self.window(range, best.start);
            if window.is_some() || !self.returns {
                return window;
            }
            // A handle would have been active in two slots of it.
            self.returns = false;
        }
    }

    fn may_return(&self, handle: u32) -> bool {
        self.returns && self.free.contains(&handle)
    }

    /// Goes along a range, stretch by stretch.
    fn walk(&mut self, range: &Range) {
        let mut stretch: Vec<Piece> = Vec::new();
        let mut at = range.start;
        for run in self.spans.runs(range.start, range.end) {
            self.pass_gap(range, &mut stretch, at, run.start);
            at = run.end;
            let is_whole = run.head.is_some_and(|head| head.end() == run.end);
            stretch.extend(run.head.map(Piece::Free));
            if !is_whole {
                self.try_stretch(range, &mut stretch);
                stretch.extend(run.tail.map(Piece::Free));
            }
        }
        self.pass_gap(range, &mut stretch, at, range.end);
        self.try_stretch(range, &mut stretch);
    }

    /// Adds a gap to the stretch, which ends where a slot cannot be filled.
    fn pass_gap(&mut self, range: &Range, stretch: &mut Vec<Piece>, from: u64, to: u64) {
        let mut begin = from;
        let mut at = from;
        while at < to {
            let usable = match range.content(at) {
                // Nothing was ever mapped from the first such slot at the end on.
                Content::Empty if range.is_behind_all(at) => break,
                Content::Empty => true,
                Content::Active(_) => false,
                Content::Stale { handle, left_at } => left_at <= self.done || self.may_return(handle),
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
    fn try_stretch(&mut self, range: &Range, stretch: &mut Vec<Piece>) {
        if let (Some(first), Some(last)) = (stretch.first(), stretch.last()) {
            let (from, to) = (first.from(), last.to());
            if to - from >= self.need.size as u64 {
                for piece in stretch.iter() {
                    let begins = piece.from().checked_next_multiple_of(self.need.alignment);
                    let ends = piece.to().checked_sub(self.need.size as u64);
                    let ends = ends.map(|start| start - start % self.need.alignment);
                    for start in begins.into_iter().chain(ends) {
                        if start >= from && start + self.need.size as u64 <= to {
                            self.try_window(range, stretch, start);
                        }
                    }
                }
            }
        }
        stretch.clear();
    }

    fn try_window(&mut self, range: &Range, stretch: &[Piece], start: u64) {
        let end = start + self.need.size as u64;
        let unit = range.unit as u64;
        let mut lacks = 0;
        for piece in stretch {
            let Piece::Gap { from, to } = *piece else { continue };
            let (from, to) = (from.max(range.slot_of(start)), to.min(end));
            if from < to {
                lacks += (to - from).div_ceil(unit) as usize;
            }
            if self.returns {
                let slots = (from..to).step_by(range.unit);
                let returns = |at: &u64| matches!(range.content(*at), Content::Stale { handle, .. } if self.may_return(handle));
                lacks -= slots.filter(returns).count();
            }
        }
        if self.best.is_none_or(|best| (lacks, start) < (best.lacks, best.start)) {
            self.best = Some(Best { lacks, start });
        }
    }

    /// The window that begins at an address. None if a slot of it cannot be filled after all.
    fn window(&self, range: &Range, start: u64) -> Option<Window> {
        let end = start + self.need.size as u64;
        let mut window = Window { start, unit: range.unit, parts: Vec::new(), fills: Vec::new() };
        for free in self.frees(range, start, end) {
            let (from, to) = (free.address.max(start), free.end().min(end));
            let Free { number: span, freed_at, .. } = free;
            window.parts.push(Part { span, address: from, bytes: (to - from) as usize, freed_at });
        }
        for at in (range.slot_of(start)..end).step_by(range.unit) {
            let returns = match range.content(at) {
                Content::Active(_) => continue,
                Content::Empty => None,
                Content::Stale { handle, left_at } => {
                    // One that is active in the window itself stays where it is.
                    let active = self.memory.handle(handle).and_then(|handle| handle.active);
                    let is_outside = active.is_some_and(|active| !window.has(active));
                    let is_first = window.fills.iter().all(|fill| fill.returns != Some(handle));
                    let returns = (is_outside && is_first && self.may_return(handle)).then_some(handle);
                    if returns.is_none() && left_at > self.done {
                        return None;
                    }
                    returns
                }
            };
            window.fills.push(Fill { address: at, returns });
        }
        Some(window)
    }

    /// The free spans in a window.
    fn frees(&self, range: &Range, start: u64, end: u64) -> Vec<Free> {
        let mut frees = Vec::new();
        // The run that the window begins in may begin long before it.
        for run in self.spans.runs(range.start, end) {
            if run.end <= start {
                continue;
            }
            let ends =
                [run.head, run.tail.filter(|tail| Some(tail.number) != run.head.map(|head| head.number))];
            frees.extend(ends.into_iter().flatten().filter(|free| free.address < end && free.end() > start));
        }
        frees
    }
}

fn push_gap(stretch: &mut Vec<Piece>, from: u64, to: u64) {
    if from < to {
        stretch.push(Piece::Gap { from, to });
    }
}

//! Mapped addresses, cut into spans that are in use or free.
//!
//! Addresses come and go: the page source offers ranges whose memory is mapped, and withdraws free ones whose memory it needs
//! elsewhere. Neighbouring ranges become one *run*, within which free spans join.

use std::collections::BTreeMap;

use super::heap::Freed;
use super::quick::QuickLists;
use super::sizes::{GRANULE, MAX, SLAB};
use crate::engine::free::{FreeLists, Links, Listed};
use crate::engine::slab::{NONE, Slab};

/// How many free spans are looked at for one that an aligned block fits into, before any that surely is large enough.
const ALIGNED_LOOKED_AT: usize = 32;

#[derive(Debug)]
pub(super) struct Spans {
    records: Slab<Span>,
    free: FreeLists,
    quick: QuickLists,
    runs: Slab<Run>,
    /// The runs by their first address.
    by_start: BTreeMap<u64, u32>,
    free_bytes: usize,
    used_bytes: usize,
}

/// Whether somebody has a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Used,
    /// Free, and kept whole on a quick list.
    Quick,
    Free,
}

/// A piece of a run, in use or free.
#[derive(Debug)]
struct Span {
    address: u64,
    size: usize,
    run: u32,
    state: State,
    /// The neighbours in the run.
    before: u32,
    after: u32,
    links: Links,
    /// When it became free, on its stream's count; of a free span that was joined, the latest. Of a block in use: how many of
    /// its bytes were not asked for.
    mark: u64,
}

impl Span {
    /// The bytes that were asked for of a block in use.
    const fn requested(&self) -> usize {
        self.size.saturating_sub(self.mark as usize)
    }

    const fn end(&self) -> u64 {
        self.address.saturating_add(self.size as u64)
    }

    const fn free(&self, number: u32) -> Free {
        Free { number, address: self.address, size: self.size, freed_at: self.mark }
    }
}

/// Addresses without a gap.
#[derive(Debug, Clone, Copy)]
struct Run {
    start: u64,
    end: u64,
    first: u32,
    last: u32,
}

/// A free span, for who looks for some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Free {
    pub(super) number: u32,
    pub(super) address: u64,
    pub(super) size: usize,
    pub(super) freed_at: u64,
}

impl Free {
    pub(super) fn end(&self) -> u64 {
        self.address.saturating_add(self.size as u64)
    }
}

/// A run with what is free at its two ends: the same span if all of it is free.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunView {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) head: Option<Free>,
    pub(super) tail: Option<Free>,
}

/// A piece of a heap's addresses, for snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) address: u64,
    pub(crate) size: usize,
    /// The bytes that were asked for of a block; None for what is free.
    pub(crate) requested: Option<usize>,
    /// Whether it lies in a slab.
    pub(crate) in_slab: bool,
}

impl Spans {
    /// Spans of pages for blocks of up to `most` bytes, or of anything.
    pub(super) fn new(most: Option<usize>) -> Self {
        Self {
            records: Slab::default(),
            free: FreeLists::new(if most.is_some() { SLAB } else { MAX }),
            quick: QuickLists::new(most),
            runs: Slab::default(),
            by_start: BTreeMap::new(),
            free_bytes: 0,
            used_bytes: 0,
        }
    }

    /// The bytes of all that is here.
    pub(super) fn held_bytes(&self) -> usize {
        self.free_bytes.saturating_add(self.used_bytes)
    }

    pub(super) fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    /// Host memory that the records take.
    pub(super) fn metadata_bytes(&self) -> usize {
        self.records.bytes() + self.runs.bytes() + self.free.bytes() + self.quick.metadata_bytes()
    }

    /// A free span of at least `size` bytes, about the smallest.
    #[inline]
    pub(super) fn find(&self, size: usize) -> Option<u32> {
        self.free.find(&self.records, size)
    }

    /// A free span with room for `size` bytes at a multiple of `alignment`, and that address.
    pub(super) fn find_aligned(&self, size: usize, alignment: u64) -> Option<(u32, u64)> {
        let fits = |(number, span): (u32, &Span)| {
            let address = span.address.checked_next_multiple_of(alignment)?;
            let end = address.checked_add(size as u64)?;
            (end <= span.end()).then_some((number, address))
        };
        let near = self.free.candidates(&self.records, size).take(ALIGNED_LOOKED_AT).find_map(fits);
        near.or_else(|| {
            let number = self.find(size.checked_add(alignment as usize)?)?;
            fits((number, self.records.get(number)?))
        })
    }

    /// Puts the first `size` bytes of a free span to use; where they begin. What is left stays free.
    #[inline]
    pub(super) fn take(&mut self, number: u32, size: usize, unused: usize) -> Option<u64> {
        let address = self.records.get(number)?.address;
        self.take_at(number, address, size, unused).map(|_| address)
    }

    /// Puts `size` bytes from `address` on, which lie in a free span, to use. The number of what is used.
    #[inline]
    pub(super) fn take_at(&mut self, number: u32, address: u64, size: usize, unused: usize) -> Option<u32> {
        let used = self.isolate(number, address, size)?;
        let span = self.records.get_mut(used)?;
        span.state = State::Used;
        span.mark = unused as u64;
        let size = span.size;
        self.free_bytes = self.free_bytes.saturating_sub(size);
        self.used_bytes = self.used_bytes.saturating_add(size);
        Some(used)
    }

    /// Makes `size` bytes from `address` on, which lie in a free span, a span of their own, which is in no list. Its number; None, and
    /// nothing is done, if they do not. What is left before them keeps the number.
    #[inline]
    fn isolate(&mut self, number: u32, address: u64, size: usize) -> Option<u32> {
        let span = self.records.get(number).filter(|span| span.state == State::Free)?;
        let head = usize::try_from(address.checked_sub(span.address)?).ok()?;
        let rest = span.size.checked_sub(head)?.checked_sub(size)?;
        self.free.remove(&mut self.records, number);
        let mut part = number;
        if head > 0 {
            let cut = self.cut(number, head);
            self.free.insert(&mut self.records, number);
            part = cut?;
        }
        if rest > 0
            && let Some(rest) = self.cut(part, size)
        {
            self.free.insert(&mut self.records, rest);
        }
        Some(part)
    }

    /// Takes a block back and joins it with its free neighbours. The first address of its run, if nothing of that is in use any more.
    #[inline]
    pub(super) fn release(&mut self, number: u32, now: u64) -> Option<u64> {
        let span = self.records.get_mut(number).filter(|span| span.state == State::Used)?;
        span.state = State::Free;
        span.mark = now;
        let (size, before, after) = (span.size, span.before, span.after);
        self.free_bytes = self.free_bytes.saturating_add(size);
        self.used_bytes = self.used_bytes.saturating_sub(size);
        let joined = self.join_neighbours(number, before, after);
        self.free.insert(&mut self.records, joined);
        let whole = self.records.get(joined).filter(|span| span.before == NONE && span.after == NONE)?;
        Some(whole.address)
    }

    /// Address and size of a used span.
    #[inline]
    pub(super) fn used(&self, number: u32) -> Option<(u64, usize)> {
        let span = self.records.get(number).filter(|span| span.state == State::Used)?;
        Some((span.address, span.size))
    }

    /// Adds a free range, which overlaps none that is here, and joins it with its neighbours. The number of the free span that has it; None
    /// if there are no more numbers.
    pub(super) fn offer(&mut self, address: u64, size: usize, freed_at: u64) -> Option<u32> {
        let (number, run) = self.add(address, size, freed_at)?;
        let before = self.by_start.range(..address).next_back().map(|(_, run)| *run);
        let before = before.filter(|run| self.runs.get(*run).is_some_and(|run| run.end == address));
        let run = before.map_or(run, |before| self.append(before, run));
        if let Some(after) = self.by_start.get(&address.saturating_add(size as u64)).copied() {
            self.append(run, after);
        }
        let (before, after) = self.records.get(number).map_or((NONE, NONE), |span| (span.before, span.after));
        let joined = self.join_neighbours(number, before, after);
        self.free.insert(&mut self.records, joined);
        Some(joined)
    }

    /// Adds a free range that stays a run of its own. None if there are no more numbers.
    pub(super) fn offer_alone(&mut self, address: u64, size: usize) -> Option<()> {
        let (number, _) = self.add(address, size, 0)?;
        self.free.insert(&mut self.records, number);
        Some(())
    }

    /// A run of one free span, which is in no list.
    fn add(&mut self, address: u64, size: usize, freed_at: u64) -> Option<(u32, u32)> {
        let end = address.checked_add(size as u64)?;
        let run = self.runs.insert(Run { start: address, end, first: NONE, last: NONE }).ok()?;
        let links = Links::NONE;
        let span =
            Span { address, size, run, state: State::Free, before: NONE, after: NONE, links, mark: freed_at };
        let Ok(number) = self.records.insert(span) else {
            self.runs.remove(run);
            return None;
        };
        if let Some(run) = self.runs.get_mut(run) {
            (run.first, run.last) = (number, number);
        }
        self.by_start.insert(address, run);
        self.free_bytes = self.free_bytes.saturating_add(size);
        Some((number, run))
    }

    /// Takes a range away that lies in a free span of this number. False, and nothing is done, if it does not. What is left before it keeps
    /// the number.
    pub(super) fn withdraw(&mut self, number: u32, address: u64, size: usize) -> bool {
        self.isolate(number, address, size).map(|part| self.remove(part)).is_some()
    }

    /// As [`Spans::withdraw`], of a range that was offered alone and is wholly free.
    pub(super) fn withdraw_alone(&mut self, address: u64, size: usize) -> bool {
        let number = self.by_start.get(&address).and_then(|run| self.runs.get(*run)).map(|run| run.first);
        number.is_some_and(|number| self.withdraw(number, address, size))
    }

    /// The runs that begin from `from` on and before `to`, in the order of their addresses.
    pub(super) fn runs(&self, from: u64, to: u64) -> impl Iterator<Item = RunView> {
        self.by_start.range(from..to).filter_map(|(_, run)| {
            let run = self.runs.get(*run)?;
            Some(RunView {
                start: run.start,
                end: run.end,
                head: self.free_span(run.first),
                tail: self.free_span(run.last),
            })
        })
    }

    fn free_span(&self, number: u32) -> Option<Free> {
        let span = self.records.get(number).filter(|span| span.state == State::Free)?;
        Some(span.free(number))
    }

    /// The free spans of at least `size` bytes, in about the order of their sizes.
    pub(super) fn free_from(&self, size: usize) -> impl Iterator<Item = Free> {
        let candidates = self.free.candidates(&self.records, size);
        candidates.map(|(number, span)| span.free(number)).filter(move |free| free.size >= size)
    }

    /// Address, size and freedom of all spans, in order.
    #[cfg(test)]
    pub(super) fn layout(&self) -> Vec<(u64, usize, bool)> {
        let mut layout: Vec<_> = self
            .records
            .iter()
            .map(|(_, span)| (span.address, span.size, span.state != State::Used))
            .collect();
        layout.sort_unstable();
        layout
    }

    /// Cuts a span, which is in no list, to `size` bytes. The number of the rest, which is as free and in no list; without
    /// a number for it the span stays as it is.
    fn cut(&mut self, number: u32, size: usize) -> Option<u32> {
        debug_assert!(size.is_multiple_of(GRANULE));
        let span = self.records.get(number)?;
        let rest = Span {
            address: span.address + size as u64,
            size: span.size - size,
            before: number,
            links: Links::NONE,
            ..*span
        };
        let (run, after) = (span.run, span.after);
        let rest = self.records.insert(rest).ok()?;
        if let Some(span) = self.records.get_mut(number) {
            (span.size, span.after) = (size, rest);
        }
        self.set_before(after, rest, run);
        Some(rest)
    }

    /// Enters which span comes before another one, or is the last of its run.
    fn set_before(&mut self, number: u32, before: u32, run: u32) {
        if let Some(span) = self.records.get_mut(number) {
            span.before = before;
        } else if let Some(run) = self.runs.get_mut(run) {
            run.last = before;
        }
    }

    /// Joins a free span, which is in no list, with its free neighbours. The number of what they are now.
    fn join_neighbours(&mut self, number: u32, before: u32, after: u32) -> u32 {
        if self.is_free(after) {
            self.free.remove(&mut self.records, after);
            self.join(number, after);
        }
        if self.is_free(before) {
            self.free.remove(&mut self.records, before);
            self.join(before, number);
            return before;
        }
        number
    }

    fn is_free(&self, number: u32) -> bool {
        self.records.get(number).is_some_and(|span| span.state == State::Free)
    }

    /// Makes one span of two neighbours that are in no list.
    fn join(&mut self, number: u32, after: u32) {
        let Some(gone) = self.records.remove(after) else { return };
        if let Some(span) = self.records.get_mut(number) {
            span.size += gone.size;
            span.after = gone.after;
            span.mark = span.mark.max(gone.mark);
        }
        self.set_before(gone.after, number, gone.run);
    }

    /// Makes one run of two neighbours; the first one's number.
    fn append(&mut self, run: u32, next: u32) -> u32 {
        let Some(gone) = self.runs.remove(next) else { return run };
        self.by_start.remove(&gone.start);
        let Some(joined) = self.runs.get_mut(run) else { return run };
        let last = std::mem::replace(&mut joined.last, gone.last);
        joined.end = gone.end;
        if let Some(last) = self.records.get_mut(last) {
            last.after = gone.first;
        }
        self.enter_run(run, gone.first, last);
        run
    }

    /// Enters a span, which comes behind `before`, and all behind it in a run.
    fn enter_run(&mut self, run: u32, first: u32, before: u32) {
        if let Some(span) = self.records.get_mut(first) {
            span.before = before;
        }
        let mut number = first;
        while let Some(span) = self.records.get_mut(number) {
            span.run = run;
            number = span.after;
        }
    }

    /// Takes a span, which is in no list, out of its run, which ends there and begins again behind it.
    fn remove(&mut self, number: u32) {
        let Some(gone) = self.records.remove(number) else { return };
        self.free_bytes = self.free_bytes.saturating_sub(gone.size);
        let end = gone.address + gone.size as u64;
        let Some(run) = self.runs.get_mut(gone.run) else { return };
        let whole = *run;
        if gone.before == NONE {
            self.by_start.remove(&whole.start);
            self.runs.remove(gone.run);
        } else {
            (run.end, run.last) = (gone.address, gone.before);
            if let Some(before) = self.records.get_mut(gone.before) {
                before.after = NONE;
            }
        }
        if gone.after == NONE {
            return;
        }
        let rest = Run { start: end, end: whole.end, first: gone.after, last: whole.last };
        // One was just removed or there is room: numbers of runs are fewer than those of spans.
        let Ok(rest) = self.runs.insert(rest) else { return };
        self.by_start.insert(end, rest);
        self.enter_run(rest, gone.after, NONE);
    }
}

/// Quick lists: blocks that are free and kept whole, for the next request of their size.
impl Spans {
    /// The bytes of blocks on quick lists.
    #[inline]
    pub(super) fn quick_bytes(&self) -> usize {
        self.quick.bytes()
    }

    /// Puts a block that is in use on its quick list. None if the number is not that of a used span.
    #[inline]
    pub(super) fn keep(&mut self, number: u32, now: u64) -> Option<Freed> {
        let span = self.records.get_mut(number).filter(|span| span.state == State::Used)?;
        let size = span.size;
        span.state = State::Quick;
        let unused = std::mem::replace(&mut span.mark, now) as usize;
        span.links.after = self.quick.push(number, size);
        Some(Freed { size, unused })
    }

    /// Puts a block of exactly `size` bytes from a quick list to use: its number and address.
    #[inline]
    pub(super) fn take_quick(&mut self, size: usize, unused: usize) -> Option<(u32, u64)> {
        let (list, number) = self.quick.first(size)?;
        // Other sizes may share the list.
        let span = self.records.get_mut(number).filter(|span| span.size == size)?;
        self.quick.pop(list, span.links.after, size);
        span.state = State::Used;
        span.mark = unused as u64;
        Some((number, span.address))
    }

    /// Takes one block off the quick lists, of each list in turn. It is in use then: its number, its address, and when it was freed.
    pub(super) fn take_any_quick(&mut self) -> Option<(u32, u64, u64)> {
        let (list, number) = self.quick.next()?;
        let span = self.records.get_mut(number)?;
        self.quick.pop(list, span.links.after, span.size);
        span.state = State::Used;
        let freed_at = std::mem::replace(&mut span.mark, 0);
        Some((number, span.address, freed_at))
    }

    /// The bytes that were asked for of a used span.
    pub(super) fn requested(&self, number: u32) -> Option<usize> {
        let span = self.records.get(number).filter(|span| span.state == State::Used)?;
        Some(span.requested())
    }

    /// All spans, in no order.
    pub(super) fn pieces(&self, in_slab: bool) -> impl Iterator<Item = Piece> {
        self.records.iter().map(move |(_, span)| {
            let requested = (span.state == State::Used).then(|| span.requested());
            Piece { address: span.address, size: span.size, requested, in_slab }
        })
    }
}

impl Listed for Span {
    #[inline]
    fn size(&self) -> usize {
        self.size
    }

    #[inline]
    fn links(&self) -> Links {
        self.links
    }

    #[inline]
    fn links_mut(&mut self) -> &mut Links {
        &mut self.links
    }
}

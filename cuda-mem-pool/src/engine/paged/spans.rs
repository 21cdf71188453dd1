//! Mapped addresses, cut into spans that are in use or free.
//!
//! Addresses come and go: the page source offers ranges whose memory is mapped, and withdraws free ones whose memory it needs
//! elsewhere. Neighbouring ranges become one *run*, within which free spans join. The pinned cache cuts its segments by them too.

use std::collections::BTreeMap;

use super::free::{FreeLists, Links};
use super::heap::Freed;
use super::quick::QuickLists;
use super::sizes::{MAX, SLAB};
use crate::engine::classes::GRANULE;
use crate::engine::slab::{NONE, Slab};

#[derive(Debug)]
pub(crate) struct Spans {
    records: Slab<Span>,
    free: FreeLists,
    quick: QuickLists,
    /// The first span of each run by its address, and the last one by the address behind it. Slabs, which join nothing, have no ends.
    starts: BTreeMap<u64, u32>,
    ends: BTreeMap<u64, u32>,
    are_slabs: bool,
    held_bytes: usize,
    used_bytes: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Used,
    /// Free, and kept whole on a quick list.
    Quick,
    Free,
}

#[derive(Debug)]
pub(super) struct Span {
    pub(super) address: u64,
    pub(super) size: usize,
    state: State,
    before: u32,
    pub(super) after: u32,
    pub(super) links: Links,
    /// When it became free, on its stream's count; of a free span that was joined, the latest. Of a block in use: how many of
    /// its bytes were not asked for.
    mark: u64,
}

impl Span {
    /// The bytes that were asked for of a block in use.
    pub(super) const fn requested(&self) -> usize {
        self.size.saturating_sub(self.mark as usize)
    }

    const fn end(&self) -> u64 {
        self.address.saturating_add(self.size as u64)
    }

    const fn free(&self, number: u32) -> Free {
        Free { number, address: self.address, size: self.size, freed_at: self.mark }
    }
}

/// A free span, for who looks for some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Free {
    pub(crate) number: u32,
    pub(crate) address: u64,
    pub(crate) size: usize,
    pub(super) freed_at: u64,
}

impl Free {
    pub(crate) fn end(&self) -> u64 {
        self.address.saturating_add(self.size as u64)
    }
}

/// A piece of a heap's addresses, for snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) address: u64,
    pub(crate) size: usize,
    /// The bytes that were asked for of a block; None for what is free.
    pub(crate) requested: Option<usize>,
    pub(crate) in_slab: bool,
}

impl Spans {
    /// Spans of pages for blocks of up to `most` bytes, or of anything. Smaller blocks get free ends of runs last from `end_bytes` on.
    pub(crate) fn new(most: Option<usize>, end_bytes: usize) -> Self {
        Self {
            records: Slab::default(),
            free: FreeLists::new(if most.is_some() { SLAB } else { MAX }, end_bytes),
            quick: QuickLists::new(most),
            starts: BTreeMap::new(),
            ends: BTreeMap::new(),
            are_slabs: most.is_some(),
            held_bytes: 0,
            used_bytes: 0,
        }
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    pub(super) fn metadata_bytes(&self) -> usize {
        self.records.bytes() + self.free.bytes() + self.quick.metadata_bytes()
    }

    /// A free span with room for `size` bytes, and where they begin: at `at`, or else with the span, of about the smallest that there is.
    #[inline]
    pub(crate) fn find(&self, size: usize, at: Option<u64>) -> Option<(u32, u64)> {
        let Some(address) = at else {
            let number = self.free.find(&self.records, size)?;
            return Some((number, self.records.get(number)?.address));
        };
        let end = address.checked_add(size as u64)?;
        let free = self.free_from(size).find(|free| free.address <= address && end <= free.end())?;
        Some((free.number, address))
    }

    /// A free span with room for a slab, which begins at a multiple of its size, and where.
    pub(super) fn find_slab(&self) -> Option<(u32, u64)> {
        self.free.candidates(&self.records, SLAB).find_map(|(number, span)| {
            let address = span.address.checked_next_multiple_of(SLAB as u64)?;
            let end = address.checked_add(SLAB as u64)?;
            (end <= span.end()).then_some((number, address))
        })
    }

    /// Puts `size` bytes from `address` on, which lie in a free span, to use. The number of what is used. What is left stays free.
    #[inline]
    pub(crate) fn take(&mut self, number: u32, address: u64, size: usize, unused: usize) -> Option<u32> {
        let used = self.isolate(number, address, size)?;
        let span = self.records.get_mut(used)?;
        span.state = State::Used;
        span.mark = unused as u64;
        let size = span.size;
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
    pub(crate) fn release(&mut self, number: u32, now: u64) -> Option<u64> {
        let span = self.records.get_mut(number).filter(|span| span.state == State::Used)?;
        span.mark = now;
        self.join_free(number)
    }

    /// Makes a block, which is in no list, free.
    #[inline]
    fn join_free(&mut self, number: u32) -> Option<u64> {
        let span = self.records.get_mut(number)?;
        span.state = State::Free;
        let (size, before, after) = (span.size, span.before, span.after);
        self.used_bytes = self.used_bytes.saturating_sub(size);
        let joined = self.join_neighbours(number, before, after);
        self.free.insert(&mut self.records, joined);
        let whole = self.records.get(joined).filter(|span| span.before == NONE && span.after == NONE)?;
        Some(whole.address)
    }

    #[inline]
    pub(super) fn used(&self, number: u32) -> Option<&Span> {
        self.records.get(number).filter(|span| span.state == State::Used)
    }

    /// Adds a free range, which nothing uses behind `freed_at` of its stream's count, and joins it with its neighbours, unless it is a slab.
    /// The number of its free span; None if there are no more.
    pub(crate) fn offer(&mut self, address: u64, size: usize, freed_at: u64) -> Option<u32> {
        let end = address.checked_add(size as u64)?;
        let (state, links, mark) = (State::Free, Links::NONE, freed_at);
        let span = Span { address, size, state, before: NONE, after: NONE, links, mark };
        let number = self.records.insert(span)?;
        self.held_bytes = self.held_bytes.saturating_add(size);
        let (before, after) = match self.are_slabs {
            true => (NONE, NONE),
            false => (self.ends.remove(&address).unwrap_or(NONE), self.starts.remove(&end).unwrap_or(NONE)),
        };
        if let Some(span) = self.records.get_mut(number) {
            (span.before, span.after) = (before, after);
        }
        self.set_after(before, number);
        self.set_before(after, number);
        let joined = self.join_neighbours(number, before, after);
        self.free.insert(&mut self.records, joined);
        Some(joined)
    }

    /// Takes a range out of a free span, which keeps its number for what is left before it. False if it is not in that.
    pub(crate) fn withdraw(&mut self, number: u32, address: u64, size: usize) -> bool {
        self.isolate(number, address, size).map(|part| self.remove(part)).is_some()
    }

    /// As [`Spans::withdraw`], of a slab that is wholly free.
    pub(super) fn withdraw_slab(&mut self, address: u64) -> bool {
        self.starts.get(&address).copied().is_some_and(|number| self.withdraw(number, address, SLAB))
    }

    /// The run that begins at an address, if all of it is free.
    pub(crate) fn free_run(&self, start: u64) -> Option<Free> {
        let number = *self.starts.get(&start)?;
        self.free_span(number).filter(|free| self.ends.get(&free.end()) == Some(&number))
    }

    /// Where the runs begin and end that begin from `from` on and before `to`, in the order of their addresses, with what is free there.
    pub(super) fn runs(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64, [Option<Free>; 2])> {
        let starts = self.starts.range(from..to);
        let first = starts.clone().next().map_or(u64::MAX, |(start, _)| start + 1);
        // Runs do not overlap: their ends come in the order of their beginnings.
        let ends = |((start, head), (end, tail)): ((&u64, &u32), (&u64, &u32))| {
            (*start, *end, [self.free_span(*head), self.free_span(*tail)])
        };
        starts.zip(self.ends.range(first..)).map(ends)
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

    /// Cuts a span, which is in no list, to `size` bytes. The number of the rest, in no list; None, uncut, without one.
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
        let after = span.after;
        let rest = self.records.insert(rest)?;
        if let Some(span) = self.records.get_mut(number) {
            (span.size, span.after) = (size, rest);
        }
        self.set_before(after, rest);
        Some(rest)
    }

    /// Enters which span comes before another one, or is the last of its run.
    fn set_before(&mut self, number: u32, before: u32) {
        if let Some(span) = self.records.get_mut(number) {
            span.before = before;
        } else if !self.are_slabs
            && let Some(last) = self.records.get(before)
        {
            self.ends.insert(last.end(), before);
        }
    }

    /// Enters which span comes behind another one, or is the first of its run.
    fn set_after(&mut self, number: u32, after: u32) {
        if let Some(span) = self.records.get_mut(number) {
            span.after = after;
        } else if let Some(first) = self.records.get(after) {
            self.starts.insert(first.address, after);
        }
    }

    /// Joins a free span, which is in no list, with its free neighbours. The number of what they are now.
    fn join_neighbours(&mut self, number: u32, before: u32, after: u32) -> u32 {
        if self.free_span(after).is_some() {
            self.free.remove(&mut self.records, after);
            self.join(number, after);
        }
        if self.free_span(before).is_some() {
            self.free.remove(&mut self.records, before);
            self.join(before, number);
            return before;
        }
        number
    }

    /// Makes one span of two neighbours that are in no list.
    fn join(&mut self, number: u32, after: u32) {
        let Some(gone) = self.records.remove(after) else { return };
        if let Some(span) = self.records.get_mut(number) {
            span.size += gone.size;
            span.after = gone.after;
            span.mark = span.mark.max(gone.mark);
        }
        self.set_before(gone.after, number);
    }

    /// Takes a span, which is in no list, out of its run, which ends there and begins again behind it.
    fn remove(&mut self, number: u32) {
        let Some(gone) = self.records.remove(number) else { return };
        self.held_bytes = self.held_bytes.saturating_sub(gone.size);
        if gone.before == NONE {
            self.starts.remove(&gone.address);
        }
        if gone.after == NONE {
            self.ends.remove(&gone.end());
        }
        self.set_after(gone.before, NONE);
        self.set_before(gone.after, NONE);
        self.set_before(NONE, gone.before);
        self.set_after(NONE, gone.after);
    }
}

/// Quick lists: blocks that are free and kept whole, for the next request of their size.
impl Spans {
    #[inline]
    pub(super) fn quick_bytes(&self) -> usize {
        self.quick.bytes()
    }

    /// Puts a block that is in use on its quick list. None if the number is not that of a used span.
    #[inline(always)]
    pub(super) fn keep(&mut self, number: u32, now: u64) -> Option<Freed> {
        let span = self.records.get_mut(number).filter(|span| span.state == State::Used)?;
        let size = span.size;
        span.state = State::Quick;
        let unused = std::mem::replace(&mut span.mark, now) as usize;
        span.links.after = self.quick.push(number, size);
        Some(Freed { size, unused })
    }

    /// Puts a block of exactly `size` bytes from a quick list to use: its number and address.
    #[inline(always)]
    pub(super) fn take_quick(&mut self, size: usize, unused: usize) -> Option<(u32, u64)> {
        let (list, number) = self.quick.first(size)?;
        // Other sizes may share the list.
        let span = self.records.get_mut(number).filter(|span| span.size == size)?;
        self.quick.pop(list, span.links.after, size);
        span.state = State::Used;
        span.mark = unused as u64;
        Some((number, span.address))
    }

    /// Joins one block of the quick lists, of each list in turn, with its free neighbours: its number and address, and the first address of
    /// its run, if nothing of that is in use any more.
    pub(super) fn join_one_quick(&mut self) -> Option<(u32, u64, Option<u64>)> {
        let (list, number) = self.quick.next()?;
        let span = self.records.get_mut(number)?;
        self.quick.pop(list, span.links.after, span.size);
        let address = span.address;
        Some((number, address, self.join_free(number)))
    }

    pub(crate) fn pieces(&self, in_slab: bool) -> impl Iterator<Item = Piece> {
        self.records.iter().map(move |(_, span)| {
            let requested = (span.state == State::Used).then(|| span.requested());
            Piece { address: span.address, size: span.size, requested, in_slab }
        })
    }
}

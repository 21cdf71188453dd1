//! Ranges of addresses, cut into extents that are in use or free.
//!
//! Addresses come and go: the page source offers ranges whose pages are mapped, and withdraws free ones whose pages it needs
//! elsewhere. Neighbouring ranges become one *run*, within which free extents join.

use std::collections::BTreeMap;

mod kept;
mod shown;

use self::kept::Kept;
pub(crate) use self::shown::{Moved, Piece};
use super::sizes::{GRANULE, MAX, PAGE};
use crate::engine::free::{FreeLists, Links, Listed};
use crate::engine::slab::{NONE, Slab};

/// How many free extents are looked at for one that an aligned block fits into, before any that surely is large enough.
const ALIGNED_LOOKED_AT: usize = 32;

#[derive(Debug)]
pub(super) struct Extents {
    records: Slab<Extent>,
    free: FreeLists,
    kept: Kept,
    runs: Slab<Run>,
    /// The runs by their first address.
    by_start: BTreeMap<u64, u32>,
    free_bytes: usize,
    used_bytes: usize,
    /// What was offered and withdrawn lately, if anybody wants to know.
    moved: Option<Vec<Moved>>,
}

/// Whether somebody has an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Used,
    /// Nobody has it, and it stays what it is, for the next one who wants as much.
    Kept,
    Free,
}

/// A piece of a run, in use or free.
#[derive(Debug)]
struct Extent {
    address: u64,
    size: usize,
    run: u32,
    state: State,
    /// The neighbours in the run.
    before: u32,
    after: u32,
    links: Links,
    /// When it became free, on its stream's count; of a free extent that was joined, the latest. Of a block in use: how many of
    /// its bytes were not asked for.
    mark: u64,
}

impl Extent {
    const fn end(&self) -> u64 {
        self.address.saturating_add(self.size as u64)
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

/// A free extent, as [`Extents::free_extents`] lists it.
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

/// What a free did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Released {
    pub(super) size: usize,
    pub(super) unused: usize,
    /// The run's first address, if nothing of it is in use any more.
    pub(super) whole_run: Option<u64>,
}

impl Extents {
    /// Extents of pages for blocks of up to `most` bytes, or of anything.
    pub(super) fn new(most: Option<usize>) -> Self {
        Self {
            records: Slab::new(),
            free: FreeLists::new(if most.is_some() { PAGE } else { MAX }),
            kept: Kept::new(most),
            runs: Slab::new(),
            by_start: BTreeMap::new(),
            free_bytes: 0,
            used_bytes: 0,
            moved: None,
        }
    }

    pub(super) fn free_bytes(&self) -> usize {
        self.free_bytes
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
        self.records.bytes() + self.runs.bytes() + self.free.bytes() + self.kept.metadata_bytes()
    }

    /// A free extent of at least `size` bytes, about the smallest.
    #[inline]
    pub(super) fn find(&self, size: usize) -> Option<u32> {
        self.free.find(&self.records, size)
    }

    /// A free extent with room for `size` bytes at a multiple of `alignment`, and that address.
    pub(super) fn find_aligned(&self, size: usize, alignment: u64) -> Option<(u32, u64)> {
        let fits = |(number, extent): (u32, &Extent)| {
            let address = extent.address.checked_next_multiple_of(alignment)?;
            let end = address.checked_add(size as u64)?;
            (end <= extent.end()).then_some((number, address))
        };
        let near = self.free.candidates(&self.records, size).take(ALIGNED_LOOKED_AT).find_map(fits);
        near.or_else(|| {
            let number = self.find(size.checked_add(alignment as usize)?)?;
            fits((number, self.records.get(number)?))
        })
    }

    /// Puts the first `size` bytes of a free extent to use. Its number; what is left stays free.
    #[inline]
    pub(super) fn take(&mut self, number: u32, size: usize, unused: usize) -> Option<u64> {
        let extent = self
            .records
            .get_mut(number)
            .filter(|extent| extent.state == State::Free && extent.size >= size)?;
        let (address, held) = (extent.address, extent.size);
        self.free.remove(&mut self.records, number);
        if held > size
            && let Some(rest) = self.cut(number, size)
        {
            self.free.insert(&mut self.records, rest);
        }
        let extent = self.records.get_mut(number)?;
        extent.state = State::Used;
        extent.mark = unused as u64;
        let size = extent.size;
        self.free_bytes = self.free_bytes.saturating_sub(size);
        self.used_bytes = self.used_bytes.saturating_add(size);
        Some(address)
    }

    /// Puts `size` bytes from `address` on, which lie in a free extent, to use. The number of what is used.
    pub(super) fn take_at(&mut self, number: u32, address: u64, size: usize, unused: usize) -> Option<u32> {
        let extent = self.records.get(number).filter(|extent| extent.state == State::Free)?;
        let head = usize::try_from(address.checked_sub(extent.address)?).ok()?;
        if extent.size.checked_sub(head)? < size {
            return None;
        }
        if head == 0 {
            return self.take(number, size, unused).map(|_| number);
        }
        self.free.remove(&mut self.records, number);
        let used = self.cut(number, head);
        self.free.insert(&mut self.records, number);
        let used = used?;
        self.free.insert(&mut self.records, used);
        self.take(used, size, unused).map(|_| used)
    }

    /// Takes a block back and joins it with its free neighbours. None if the number is not that of a used extent.
    #[inline]
    pub(super) fn release(&mut self, number: u32, now: u64) -> Option<Released> {
        let extent = self.records.get_mut(number).filter(|extent| extent.state == State::Used)?;
        extent.state = State::Free;
        let unused = std::mem::replace(&mut extent.mark, now) as usize;
        let size = extent.size;
        let (run, before, after) = (extent.run, extent.before, extent.after);
        self.free_bytes = self.free_bytes.saturating_add(size);
        self.used_bytes = self.used_bytes.saturating_sub(size);
        let joined = self.join_neighbours(number, before, after);
        self.free.insert(&mut self.records, joined);
        let whole =
            self.records.get(joined).is_some_and(|extent| extent.before == NONE && extent.after == NONE);
        let whole_run = if whole { self.runs.get(run).map(|run| run.start) } else { None };
        Some(Released { size, unused, whole_run })
    }

    /// Address and size of a used extent.
    #[inline]
    pub(super) fn used(&self, number: u32) -> Option<(u64, usize)> {
        let extent = self.records.get(number).filter(|extent| extent.state == State::Used)?;
        Some((extent.address, extent.size))
    }

    /// Adds a free range, which overlaps none that is here and joins its neighbours. False if there are no more numbers.
    pub(super) fn offer(&mut self, address: u64, size: usize, freed_at: u64) -> bool {
        let Some((number, run)) = self.add(address, size, freed_at) else { return false };
        let before = self.by_start.range(..address).next_back().map(|(_, run)| *run);
        let before = before.filter(|run| self.runs.get(*run).is_some_and(|run| run.end == address));
        let run = before.map_or(run, |before| self.append(before, run));
        if let Some(after) = self.by_start.get(&address.saturating_add(size as u64)).copied() {
            self.append(run, after);
        }
        let (before, after) =
            self.records.get(number).map_or((NONE, NONE), |extent| (extent.before, extent.after));
        let joined = self.join_neighbours(number, before, after);
        self.free.insert(&mut self.records, joined);
        self.note(address, size, true);
        true
    }

    /// Adds a free range that stays a run of its own. False if there are no more numbers.
    pub(super) fn offer_alone(&mut self, address: u64, size: usize) -> bool {
        let Some((number, _)) = self.add(address, size, 0) else { return false };
        self.free.insert(&mut self.records, number);
        true
    }

    /// A run of one free extent, which is in no list.
    fn add(&mut self, address: u64, size: usize, freed_at: u64) -> Option<(u32, u32)> {
        let end = address.checked_add(size as u64)?;
        let run = self.runs.insert(Run { start: address, end, first: NONE, last: NONE }).ok()?;
        let links = Links::NONE;
        let extent = Extent {
            address,
            size,
            run,
            state: State::Free,
            before: NONE,
            after: NONE,
            links,
            mark: freed_at,
        };
        let Ok(number) = self.records.insert(extent) else {
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

    /// Takes a range away that lies in one free extent. False, and nothing is done, if it does not.
    pub(super) fn withdraw(&mut self, address: u64, size: usize) -> bool {
        let is_gone = self.withdraw_alone(address, size);
        if is_gone {
            self.note(address, size, false);
        }
        is_gone
    }

    /// As [`Extents::withdraw`], of what was offered alone.
    pub(super) fn withdraw_alone(&mut self, address: u64, size: usize) -> bool {
        let Some(number) = self.free_at(address, size) else { return false };
        let Some(extent) = self.records.get(number) else { return false };
        let head = (address - extent.address) as usize;
        self.free.remove(&mut self.records, number);
        let mut middle = number;
        if head > 0 {
            let cut = self.cut(number, head);
            self.free.insert(&mut self.records, number);
            let Some(cut) = cut else { return false };
            middle = cut;
        }
        if self.records.get(middle).is_some_and(|extent| extent.size > size)
            && let Some(rest) = self.cut(middle, size)
        {
            self.free.insert(&mut self.records, rest);
        }
        self.remove(middle);
        true
    }

    /// The free extents in the order of their addresses.
    pub(super) fn free_extents(&self) -> Vec<Free> {
        let mut free: Vec<Free> = self.free_from(0).collect();
        free.sort_unstable_by_key(|free| free.address);
        free
    }

    /// The free extents of at least `size` bytes, in about the order of their sizes.
    pub(super) fn free_from(&self, size: usize) -> impl Iterator<Item = Free> {
        let free = |(number, extent): (u32, &Extent)| {
            let Extent { address, size, mark, .. } = *extent;
            Free { number, address, size, freed_at: mark }
        };
        self.free.candidates(&self.records, size).map(free).filter(move |free| free.size >= size)
    }

    /// Address, size and freedom of all extents, in order.
    #[cfg(test)]
    pub(super) fn layout(&self) -> Vec<(u64, usize, bool)> {
        let mut layout: Vec<_> = self
            .records
            .iter()
            .map(|(_, extent)| (extent.address, extent.size, extent.state != State::Used))
            .collect();
        layout.sort_unstable();
        layout
    }

    /// The free extent that has these bytes.
    pub(super) fn free_at(&self, address: u64, size: usize) -> Option<u32> {
        let (number, extent) = self.covering(address)?;
        let is_inside = address.checked_add(size as u64)? <= extent.end();
        (extent.state == State::Free && is_inside).then_some(number)
    }

    /// The extent that has this address, and its number.
    fn covering(&self, address: u64) -> Option<(u32, &Extent)> {
        let (_, run) = self.by_start.range(..=address).next_back()?;
        let mut number = self.runs.get(*run)?.first;
        loop {
            let extent = self.records.get(number)?;
            if address < extent.end() {
                return Some((number, extent));
            }
            number = extent.after;
        }
    }

    /// Whether an extent is not free and has some of these bytes.
    pub(super) fn blocks(&self, number: u32, address: u64, size: usize) -> bool {
        self.records.get(number).is_some_and(|extent| {
            extent.state != State::Free
                && extent.address < address.saturating_add(size as u64)
                && address < extent.end()
        })
    }

    /// What keeps these bytes from being one free extent's: one that is not free and has some of them, or [`NONE`] where there is nothing.
    /// None if they are.
    pub(super) fn blocking(&self, address: u64, size: usize) -> Option<u32> {
        let Some((number, extent)) = self.covering(address) else { return Some(NONE) };
        if extent.state != State::Free {
            return Some(number);
        }
        // Free neighbours join, so the next one is not free.
        (extent.end() < address.saturating_add(size as u64)).then_some(extent.after)
    }

    /// Cuts an extent, which is in no list, to `size` bytes. The number of the rest, which is as free and in no list; without
    /// a number for it the extent stays as it is.
    fn cut(&mut self, number: u32, size: usize) -> Option<u32> {
        debug_assert!(size.is_multiple_of(GRANULE));
        let extent = self.records.get(number)?;
        let rest = Extent {
            address: extent.address + size as u64,
            size: extent.size - size,
            before: number,
            links: Links::NONE,
            ..*extent
        };
        let (run, after) = (extent.run, extent.after);
        let rest = self.records.insert(rest).ok()?;
        if let Some(extent) = self.records.get_mut(number) {
            (extent.size, extent.after) = (size, rest);
        }
        match self.records.get_mut(after) {
            Some(after) => after.before = rest,
            None => {
                if let Some(run) = self.runs.get_mut(run) {
                    run.last = rest;
                }
            }
        }
        Some(rest)
    }

    /// Joins a free extent, which is in no list, with its free neighbours. The number of what they are now.
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
        self.records.get(number).is_some_and(|extent| extent.state == State::Free)
    }

    /// Makes one extent of two neighbours that are in no list.
    fn join(&mut self, number: u32, after: u32) {
        let Some(gone) = self.records.remove(after) else { return };
        if let Some(extent) = self.records.get_mut(number) {
            extent.size += gone.size;
            extent.after = gone.after;
            extent.mark = extent.mark.max(gone.mark);
        }
        match self.records.get_mut(gone.after) {
            Some(next) => next.before = number,
            None => {
                if let Some(run) = self.runs.get_mut(gone.run) {
                    run.last = number;
                }
            }
        }
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
        let mut number = gone.first;
        if let Some(first) = self.records.get_mut(number) {
            first.before = last;
        }
        while let Some(extent) = self.records.get_mut(number) {
            extent.run = run;
            number = extent.after;
        }
        run
    }

    /// Takes an extent, which is in no list, out of its run, which ends there and begins again behind it.
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
        // One was just removed or there is room: numbers of runs are fewer than those of extents.
        let Ok(rest) = self.runs.insert(rest) else { return };
        self.by_start.insert(end, rest);
        let mut number = gone.after;
        if let Some(first) = self.records.get_mut(number) {
            first.before = NONE;
        }
        while let Some(extent) = self.records.get_mut(number) {
            extent.run = rest;
            number = extent.after;
        }
    }
}

impl Listed for Extent {
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

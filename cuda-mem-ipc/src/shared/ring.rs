//! Rings in memory that both processes have, of hand-overs and of releases: one writes, the other reads, and no system call is made
//! unless the reader sleeps.
//!
//! Neither believes the other's number: each counts by itself, and reads the other's only to see how far it is.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use cuda_mem_pool::cuda_mem_core::host::SharedMapping;

use super::wire::RING_ENTRIES;

/// Words of an entry.
pub(super) const ENTRY: usize = 7;

/// Where things are, in words; what one side writes has a cache line of its own, and so has each entry.
const TAIL: usize = 0;
/// How many frames of the connection the writer has sent that have to be heard: beside the tail, for who looks at one sees both.
const SENT: usize = 1;
const HEAD: usize = 8;
const SLEEPERS: usize = 16;
/// How many frames the reader has heard.
const HEARD: usize = 17;
const ENTRIES: usize = 24;
const LINE: usize = 8;

/// How often a thread tries to raise a number. Others of this side may have been faster, each of them once a frame; who is kept from it so often
/// is kept from it by the other side.
const TRIES: usize = 64;

/// The words that both have. The models have others.
pub(super) trait Cells {
    fn load(&self, cell: usize, order: Ordering) -> u64;
    fn store(&self, cell: usize, value: u64, order: Ordering);
    fn add(&self, cell: usize, value: u64);
    /// Writes a number in place of another one. False if that is not there any more.
    fn replace(&self, cell: usize, found: u64, value: u64) -> bool;
    fn fence(&self);
}

/// What the other side wrote cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Corrupt;

/// What became of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pushed {
    /// It is there, and the reader will look.
    Quietly,
    /// It is there, and the reader sleeps and was not called.
    ToASleeper,
    /// There is no room.
    Full,
}

/// The writing end.
#[derive(Debug)]
pub(super) struct Producer<C> {
    cells: C,
    entries: u64,
    next: u64,
    /// How many the reader had taken when that was looked at last.
    taken: u64,
}

/// The reading end.
#[derive(Debug)]
pub(super) struct Consumer<C> {
    cells: C,
    entries: u64,
    next: u64,
}

impl<C: Cells> Producer<C> {
    pub(super) fn new(cells: C, entries: u64) -> Self {
        Self { cells, entries, next: 0, taken: 0 }
    }

    /// Has what [`push`](Self::push) will write at hand, the line of the next entry, which the other processor has read: for who has to
    /// do something else before.
    pub(super) fn prepare(&self) {
        if self.has_room() {
            // Nobody reads it before it is counted, and then it is written over.
            self.cells.store(place(self.next, self.entries), 0, Ordering::Relaxed);
        }
    }

    /// By what the reader had taken when that was looked at last. What was free then stays free: the number only grows.
    fn has_room(&self) -> bool {
        self.next.wrapping_sub(self.taken) < self.entries
    }

    /// `called` is the number of the frame that called the reader for this entry, before it was there: it need not be called again
    /// unless it has heard that one already, and may have found nothing.
    pub(super) fn push(&mut self, entry: [u64; ENTRY], called: Option<u64>) -> Result<Pushed, Corrupt> {
        if !self.has_room() {
            // The line that the other processor writes is looked at only now.
            let taken = self.cells.load(HEAD, Ordering::Acquire);
            if self.next.wrapping_sub(taken) > self.entries {
                return Err(Corrupt);
            }
            self.taken = taken;
            if !self.has_room() {
                return Ok(Pushed::Full);
            }
        }
        for (cell, word) in (place(self.next, self.entries)..).zip(entry) {
            self.cells.store(cell, word, Ordering::Relaxed);
        }
        self.next = self.next.wrapping_add(1);
        // After the entry: whoever sees the number sees that.
        self.cells.store(TAIL, self.next, Ordering::Release);
        // Either the reader sees the number before it sleeps, or this sees that it does. In the same way either a reader that has
        // heard the call sees the number when it looks behind that, or this sees that it has heard it.
        self.cells.fence();
        let is_called = called.is_some_and(|number| self.cells.load(HEARD, Ordering::Relaxed) <= number);
        Ok(if sleeps(&self.cells) && !is_called { Pushed::ToASleeper } else { Pushed::Quietly })
    }
}

impl<C: Cells> Consumer<C> {
    pub(super) fn new(cells: C, entries: u64) -> Self {
        Self { cells, entries, next: 0 }
    }

    /// The next entry, which stays.
    pub(super) fn peek(&self) -> Result<Option<[u64; ENTRY]>, Corrupt> {
        let there = self.cells.load(TAIL, Ordering::Acquire).wrapping_sub(self.next);
        if there > self.entries {
            return Err(Corrupt);
        }
        let first = place(self.next, self.entries);
        let entry = || std::array::from_fn(|word| self.cells.load(first + word, Ordering::Relaxed));
        Ok((there > 0).then(entry))
    }

    /// Takes the entry that was looked at.
    pub(super) fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
        // After the entry was read: it may be written again.
        self.cells.store(HEAD, self.next, Ordering::Release);
    }

    /// How many entries were taken.
    pub(super) fn position(&self) -> u64 {
        self.next
    }
}

/// Whether there is more than `position` entries, or nonsense.
pub(super) fn has_more(cells: &impl Cells, position: u64) -> bool {
    cells.load(TAIL, Ordering::Acquire) != position
}

/// Whether somebody sleeps, who may have woken up by now.
pub(super) fn sleeps(cells: &impl Cells) -> bool {
    cells.load(SLEEPERS, Ordering::Relaxed) > 0
}

/// Says that so many frames were sent which the reader has to hear. If that does not succeed, it hears them all the same, later.
pub(super) fn say_sent(cells: &impl Cells, frames: u64) {
    for _ in 0..TRIES {
        let said = cells.load(SENT, Ordering::Relaxed);
        if said >= frames || cells.replace(SENT, said, frames) {
            return;
        }
    }
}

/// Whether there are said to be frames that were not heard. It is a hint: frames are believed when they come.
pub(super) fn has_unheard(cells: &impl Cells, heard: u64) -> bool {
    cells.load(SENT, Ordering::Relaxed) > heard
}

/// Says that so many frames were heard. Whoever has heard one looks at the ring afterwards, for it may have been a call.
pub(super) fn say_heard(cells: &impl Cells, frames: u64) {
    cells.store(HEARD, frames, Ordering::Relaxed);
    // As in `push`.
    cells.fence();
}

/// Says that somebody is about to sleep behind `position` entries. If it is false, there is more; either way `awake` is called
/// afterwards.
pub(super) fn may_sleep(cells: &impl Cells, position: u64) -> bool {
    cells.add(SLEEPERS, 1);
    // As in `push`.
    cells.fence();
    !has_more(cells, position)
}

pub(super) fn awake(cells: &impl Cells) {
    cells.add(SLEEPERS, u64::MAX);
}

/// As [`may_sleep`], for the only one who reads. Behind it comes [`rise`].
pub(super) fn may_doze(cells: &impl Cells, position: u64) -> bool {
    cells.store(SLEEPERS, 1, Ordering::Relaxed);
    // As in `push`.
    cells.fence();
    !has_more(cells, position)
}

pub(super) fn rise(cells: &impl Cells) {
    cells.store(SLEEPERS, 0, Ordering::Relaxed);
}

/// Whether it is this one of all who write that has to wake the only reader: what others write until it is awake costs nothing more.
pub(super) fn is_to_wake(cells: &impl Cells) -> bool {
    let found = cells.load(SLEEPERS, Ordering::Relaxed);
    // What is 0 is not written.
    found > 0 && cells.replace(SLEEPERS, found, 0)
}

/// The first word of an entry.
fn place(number: u64, entries: u64) -> usize {
    // Fewer than there are words of memory.
    ENTRIES + usize::try_from(number % entries).unwrap_or_default() * LINE
}

/// A ring of a connection.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    mapping: SharedMapping,
    /// The slot of 64 bytes where it begins.
    first: usize,
}

impl Shared {
    /// Of memory that has room for it.
    pub(super) fn new(mapping: &SharedMapping, first: usize) -> Self {
        Self { mapping: mapping.clone(), first }
    }

    pub(super) fn producer(&self) -> Producer<Self> {
        Producer::new(self.clone(), RING_ENTRIES)
    }

    pub(super) fn consumer(&self) -> Consumer<Self> {
        Consumer::new(self.clone(), RING_ENTRIES)
    }

    /// All of the memory, for who writes there what is none of its business.
    #[cfg(any(test, fuzzing))]
    pub(super) fn mapping(&self) -> &SharedMapping {
        &self.mapping
    }

    /// None outside of the mapping, where nothing of a ring is.
    fn word(&self, cell: usize) -> Option<&AtomicU64> {
        self.mapping.word(self.first * 64 + cell * 8).ok()
    }
}

impl Cells for Shared {
    fn load(&self, cell: usize, order: Ordering) -> u64 {
        self.word(cell).map_or(0, |word| word.load(order))
    }

    fn store(&self, cell: usize, value: u64, order: Ordering) {
        if let Some(word) = self.word(cell) {
            word.store(value, order);
        }
    }

    fn add(&self, cell: usize, value: u64) {
        if let Some(word) = self.word(cell) {
            word.fetch_add(value, Ordering::Relaxed);
        }
    }

    fn replace(&self, cell: usize, found: u64, value: u64) -> bool {
        let (written, not) = (Ordering::Relaxed, Ordering::Relaxed);
        self.word(cell).is_some_and(|word| word.compare_exchange(found, value, written, not).is_ok())
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests;

//! Rings in memory of both processes, of hand-overs and of releases: one side writes, the other reads, by no system call unless it sleeps.
//!
//! Neither side believes the other's number: each counts by itself, and reads the other's only to see how far it is. Readers of hand-overs
//! sleep on a word of the memory, [`sleep`]; the one reader of releases sleeps on its connections, and is sent a message.
//!
//! # Safety
//!
//! Relies on one half of a word of the mapping being touched as a 32-bit atomic by [`sleep`] and [`wake`] alone.

#![allow(unsafe_code, reason = "names half a word as a futex")]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use cuda_mem_pool::cuda_mem_core::host::SharedMapping;
use rustix::thread::futex;

use super::wire::RING_ENTRIES;
use crate::transport::Deadline;

/// Words of an entry.
pub(super) const ENTRY: usize = 7;

/// Where things are, in words; what one side writes has a cache line of its own, and so has each entry.
const TAIL: usize = 0;
const HEAD: usize = 8;
/// 1 when a reader sleeps or is about to. The thread that clears it wakes the reader.
const SLEEPS: usize = 16;
/// How often readers were woken: what they sleep on, touched as 32 bits.
const BELL: usize = 17;
const ENTRIES: usize = 24;
const LINE: usize = 8;

/// The words that both have. The models have others.
pub(super) trait Cells {
    fn load(&self, cell: usize, order: Ordering) -> u64;
    fn store(&self, cell: usize, value: u64, order: Ordering);
    /// Writes a number in place of another one. False if that is not there any more.
    fn replace(&self, cell: usize, found: u64, value: u64) -> bool;
    fn fence(&self);
    /// How often readers were woken.
    fn rung(&self) -> u32;
    /// Counts one more wake, before [`rung`](Self::rung)'s waiters are let go.
    fn ring(&self);
}

/// What the other side wrote cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Corrupt;

#[derive(Debug)]
pub(super) struct Producer<C> {
    cells: C,
    entries: u64,
    next: u64,
    /// How many of the free places are reserved for a later [`push`](Self::push).
    reserved: u64,
    /// How many the reader had taken when that was looked at last.
    taken: u64,
}

#[derive(Debug)]
pub(super) struct Consumer<C> {
    cells: C,
    entries: u64,
    next: u64,
}

impl<C: Cells> Producer<C> {
    pub(super) fn new(cells: C, entries: u64) -> Self {
        Self { cells, entries, next: 0, reserved: 0, taken: 0 }
    }

    /// Sets a place aside. False if there is none.
    pub(super) fn reserve(&mut self) -> Result<bool, Corrupt> {
        if !self.has_room() {
            // The line that the other processor writes is looked at only now.
            let taken = self.cells.load(HEAD, Ordering::Acquire);
            if self.next.wrapping_sub(taken) > self.entries {
                return Err(Corrupt);
            }
            self.taken = taken;
            if !self.has_room() {
                return Ok(false);
            }
        }
        self.reserved += 1;
        // So that the line of the entry, which the other processor has read, is at hand: nobody reads it before it is counted.
        self.cells.store(place(self.next, self.entries), 0, Ordering::Relaxed);
        Ok(true)
    }

    /// Gives a place back that [`reserve`](Self::reserve) has set aside.
    pub(super) fn cancel(&mut self) {
        self.reserved = self.reserved.saturating_sub(1);
    }

    /// By what the reader had taken when that was looked at last. What was free then stays free: the number only grows.
    fn has_room(&self) -> bool {
        self.next.wrapping_sub(self.taken).saturating_add(self.reserved) < self.entries
    }

    /// Writes an entry to a place that [`reserve`](Self::reserve) has set aside. Behind it comes [`claim`].
    pub(super) fn push(&mut self, entry: [u64; ENTRY]) {
        for (cell, word) in (place(self.next, self.entries)..).zip(entry) {
            self.cells.store(cell, word, Ordering::Relaxed);
        }
        self.cancel();
        self.next = self.next.wrapping_add(1);
        // After the entry: a reader that sees the number sees the entry.
        self.cells.store(TAIL, self.next, Ordering::Release);
        // Either the reader sees the number before it sleeps, or `claim` sees that it does.
        self.cells.fence();
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

    pub(super) fn position(&self) -> u64 {
        self.next
    }
}

/// Whether there is more than `position` entries, or nonsense.
pub(super) fn has_more(cells: &impl Cells, position: u64) -> bool {
    cells.load(TAIL, Ordering::Acquire) != position
}

/// Says that a reader is about to sleep behind `position` entries. None if there is more; else what [`sleep`] takes.
pub(super) fn prepare_sleep(cells: &impl Cells, position: u64) -> Option<u32> {
    // First: a thread that clears the flag after this also counts, and the sleep ends.
    let rung = cells.rung();
    cells.store(SLEEPS, 1, Ordering::Release);
    // As in `push`.
    cells.fence();
    (!has_more(cells, position)).then_some(rung)
}

/// Says that the only reader is awake.
pub(super) fn awake(cells: &impl Cells) {
    cells.store(SLEEPS, 0, Ordering::Relaxed);
}

/// Whether this caller has to wake the readers: others do not, until one sleeps again.
pub(super) fn claim(cells: &impl Cells) -> bool {
    // What is 0 is not written.
    let found = cells.load(SLEEPS, Ordering::Relaxed);
    if found == 0 || !cells.replace(SLEEPS, found, 0) {
        return false;
    }
    cells.ring();
    true
}

fn place(number: u64, entries: u64) -> usize {
    // Fewer than there are words of memory.
    ENTRIES + usize::try_from(number % entries).unwrap_or_default() * LINE
}

#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) mapping: SharedMapping,
    /// The slot of 64 bytes where it begins.
    first: usize,
}

impl Shared {
    pub(super) fn new(mapping: &SharedMapping, first: usize) -> Self {
        Self { mapping: mapping.clone(), first }
    }

    pub(super) fn producer(&self) -> Producer<Self> {
        Producer::new(self.clone(), RING_ENTRIES)
    }

    pub(super) fn consumer(&self) -> Consumer<Self> {
        Consumer::new(self.clone(), RING_ENTRIES)
    }

    /// None outside of the mapping, where nothing of a ring is.
    fn word(&self, cell: usize) -> Option<&AtomicU64> {
        self.mapping.word(self.first * 64 + cell * 8).ok()
    }

    fn bell(&self) -> Option<&AtomicU32> {
        let word = self.word(BELL)?.as_ptr().cast::<u32>();
        // SAFETY: half of an aligned word that lives as long as the mapping, which `self` keeps; this half is touched here alone, and so
        // always as 32 bits. The peer may write it at any time, which is an atomic access of another process.
        Some(unsafe { AtomicU32::from_ptr(word) })
    }
}

/// Sleeps until [`wake`], unless that came since `rung` was read. Any reason ends it, and the deadline too. The other side may turn the bell
/// back: the caller looks again from time to time.
pub(super) fn sleep(ring: &Shared, rung: u32, deadline: Deadline) {
    if let Some(bell) = ring.bell() {
        let left = deadline.remaining().min(std::time::Duration::from_secs(10));
        let left = rustix::fs::Timespec::try_from(left).ok();
        let _ = futex::wait(bell, futex::Flags::empty(), rung, left.as_ref());
    }
}

/// Wakes all readers, in whichever process, if this caller [has to](claim); whether it had to.
pub(super) fn wake(ring: &Shared) -> bool {
    let is_asleep = claim(ring);
    if is_asleep && let Some(bell) = ring.bell() {
        let _ = futex::wake(bell, futex::Flags::empty(), i32::MAX.cast_unsigned());
    }
    is_asleep
}

/// Wakes all readers, whatever the other side has made of the sign that they sleep.
pub(super) fn wake_all(ring: &Shared) {
    if let Some(bell) = ring.bell() {
        ring.ring();
        let _ = futex::wake(bell, futex::Flags::empty(), i32::MAX.cast_unsigned());
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

    fn replace(&self, cell: usize, found: u64, value: u64) -> bool {
        let (written, not) = (Ordering::AcqRel, Ordering::Relaxed);
        self.word(cell).is_some_and(|word| word.compare_exchange(found, value, written, not).is_ok())
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn rung(&self) -> u32 {
        self.bell().map_or(0, |bell| bell.load(Ordering::Acquire))
    }

    fn ring(&self) {
        if let Some(bell) = self.bell() {
            bell.fetch_add(1, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests;

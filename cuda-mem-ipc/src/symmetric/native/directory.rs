//! What the ranks tell each other without a message: host memory that all of them map.
//!
//! | offset | what |
//! |---|---|
//! | 0 | which rank broke the group: 0, or the rank plus 1 and from bit 32 on the reason |
//! | 8 | how many steps were ended, from bit 32 on, and how the last one was: [`super::sleep`] |
//! | 256 + 16 r | which step rank r has come to |
//! | 264 + 16 r | 1 when rank r begins to leave, 2 when it has left |
//! | 4096 + 64 (r · 32768 + s mod 32768) | entry of rank r for allocation s |
//! | behind the entries, 16 (r · ranks + s) | how many segments of rank s rank r has mapped |
//! | 8 more | how many pieces of words |
//!
//! An entry is eight words: generation, sequence, size, segment, offset, pad, signal words, and where these begin to count. The generation,
//! `s / 32768 + 1`, is written last. All numbers are those of other processes, and are taken for nothing but numbers.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use cuda_mem_pool::cuda_mem_core::host::SharedMapping;
use cuda_mem_pool::cuda_mem_core::{Error as CoreError, Result};

use crate::symmetric::Why;

pub(super) const MAX_RANKS: usize = 128;
/// How many allocations of each rank are kept.
pub(super) const KEPT: usize = 1 << 15;

/// Where it is how many steps were ended.
pub(super) const ENDED: usize = 8;
const COME: usize = 256;
const LEFT: usize = COME + 8;
/// What a rank says that leaves: before it gives up what it waits for, and behind its last signal.
pub(super) const LEAVING: u64 = 1;
pub(super) const GONE: u64 = 2;
const ENTRIES: usize = 4096;
const ENTRY: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) sequence: u64,
    pub(super) size: u64,
    pub(super) segment: u64,
    pub(super) offset: u64,
    pub(super) pad: u64,
    /// Where the words of its signals are.
    pub(super) words: u64,
    /// The number before the first signal's.
    pub(super) base: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    NotYet,
    There(Entry),
    Overtaken,
}

#[derive(Debug)]
pub(super) struct Directory {
    pub(super) mapping: SharedMapping,
    ranks: usize,
}

impl Directory {
    pub(super) fn create(ranks: usize) -> Result<Self> {
        Ok(Self { mapping: SharedMapping::create(bytes(ranks))?, ranks })
    }

    pub(super) fn open(mapping: SharedMapping, ranks: usize) -> Result<Self> {
        let needed = bytes(ranks);
        if mapping.bytes() < needed {
            return Err(CoreError::OutOfRange { range: 0..needed, len: mapping.bytes() });
        }
        Ok(Self { mapping, ranks })
    }

    /// A word, which is inside: all offsets are made of a rank and a number that are.
    pub(super) fn word(&self, offset: usize) -> Result<&AtomicU64> {
        self.mapping.word(offset)
    }

    /// Which step a rank says that it has come to.
    pub(super) fn come(&self, rank: usize) -> Result<&AtomicU64> {
        self.word(COME + 16 * rank)
    }

    /// How far a rank says that it is with leaving.
    pub(super) fn leaving(&self, rank: usize) -> Result<&AtomicU64> {
        self.word(LEFT + 16 * rank)
    }

    pub(super) fn has_left(&self, rank: usize) -> bool {
        self.leaving(rank).is_ok_and(|word| word.load(Ordering::SeqCst) >= GONE)
    }

    /// The rank that broke the group, if one did and the word is valid.
    pub(super) fn broken(&self) -> Option<(usize, Why)> {
        let word = self.word(0).ok()?.load(Ordering::SeqCst);
        let rank = usize::try_from((word & 0xffff_ffff).checked_sub(1)?).ok()?;
        let why = usize::try_from(word >> 32).ok()?.checked_sub(1)?;
        Some((rank, *WHYS.get(why)?)).filter(|&(rank, _)| rank < self.ranks)
    }

    /// Enters the rank that broke the group, unless another one is there.
    pub(super) fn break_by(&self, rank: usize, why: Why) {
        if let Ok(word) = self.word(0) {
            let number = WHYS.iter().take_while(|known| **known != why).count() as u64 + 1;
            let value = (number << 32) | (rank as u64 + 1);
            // Another rank was faster.
            let _ = word.compare_exchange(0, value, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// How much of rank `of` rank `by` says that it has mapped, of what has this place.
    pub(super) fn mapped(&self, by: usize, of: usize, place: usize) -> Result<&AtomicU64> {
        self.word(mapped(self.ranks) + 16 * (by * self.ranks + of) + place)
    }

    pub(super) fn publish(&self, rank: usize, entry: Entry) -> Result<()> {
        let (at, generation) = place(rank, entry.sequence);
        let Entry { sequence, size, segment, offset, pad, words, base } = entry;
        let said = [sequence, size, segment, offset, pad, words, base];
        let [head, words @ ..] = self.mapping.words::<8>(at)?;
        // A reader finds neither the old nor the new entry meanwhile: if it has read a word of the new one, it sees this 0 behind its fence.
        head.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        for (word, value) in words.into_iter().zip(said) {
            word.store(value, Ordering::Relaxed);
        }
        head.store(generation, Ordering::Release);
        Ok(())
    }

    pub(super) fn entry(&self, rank: usize, sequence: u64) -> Result<Found> {
        let (at, generation) = place(rank, sequence);
        let [head, words @ ..] = self.mapping.words::<8>(at)?;
        let found = head.load(Ordering::Acquire);
        if found < generation {
            return Ok(Found::NotYet);
        }
        let words = words.map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        if found > generation || head.load(Ordering::Relaxed) != generation {
            return Ok(Found::Overtaken);
        }
        let [sequence, size, segment, offset, pad, words, base] = words;
        Ok(Found::There(Entry { sequence, size, segment, offset, pad, words, base }))
    }
}

/// Where it begins what ranks have mapped of each other.
fn mapped(ranks: usize) -> usize {
    ENTRIES + ranks * KEPT * ENTRY
}

fn bytes(ranks: usize) -> usize {
    mapped(ranks) + 16 * ranks * ranks
}

/// Where an entry is, and the generation that it has when it is there.
fn place(rank: usize, sequence: u64) -> (usize, u64) {
    let slot = usize::try_from(sequence % KEPT as u64).unwrap_or(0);
    (ENTRIES + (rank * KEPT + slot) * ENTRY, sequence / KEPT as u64 + 1)
}

/// The reasons by their numbers, from 1 on.
const WHYS: [Why; 5] = [Why::Died, Why::Left, Why::TimedOut, Why::Unreachable, Why::Failed];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_there_until_it_is_overtaken() {
        let directory = Directory::create(2).unwrap();
        let entry = Entry { sequence: 3, size: 4, segment: 5, offset: 6, pad: 7, words: 8, base: 9 };
        assert_eq!(directory.entry(1, 3).unwrap(), Found::NotYet);
        directory.publish(1, entry).unwrap();
        assert_eq!(directory.entry(1, 3).unwrap(), Found::There(entry));
        assert_eq!(directory.entry(0, 3).unwrap(), Found::NotYet);
        let later = Entry { sequence: 3 + KEPT as u64, ..entry };
        assert_eq!(directory.entry(1, later.sequence).unwrap(), Found::NotYet);
        directory.publish(1, later).unwrap();
        assert_eq!(directory.entry(1, later.sequence).unwrap(), Found::There(later));
        assert_eq!(directory.entry(1, 3).unwrap(), Found::Overtaken);
    }

    #[test]
    fn the_first_who_breaks_a_group_is_named_and_nonsense_is_nobody() {
        let directory = Directory::create(3).unwrap();
        assert_eq!(directory.broken(), None);
        directory.break_by(2, Why::TimedOut);
        directory.break_by(1, Why::Died);
        assert_eq!(directory.broken(), Some((2, Why::TimedOut)));
        for nonsense in [u64::MAX, 4 | (1 << 32), 1, 1 << 32, 1 | (9 << 32)] {
            directory.word(0).unwrap().store(nonsense, Ordering::SeqCst);
            assert_eq!(directory.broken(), None, "{nonsense:#x}");
        }
    }

    #[test]
    fn a_directory_that_is_too_small_is_refused() {
        let small = SharedMapping::create(4096).unwrap();
        assert!(matches!(Directory::open(small, 2), Err(CoreError::OutOfRange { .. })));
    }
}

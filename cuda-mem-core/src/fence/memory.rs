//! Where the words of a line are: in memory of the process's own, or in a slot that another process maps too.
//!
//! # Safety
//!
//! Relies on a pinned buffer of two words keeping them until the streams that it was told of have passed, which is what its
//! release waits for; and on whoever touches them doing so atomically.

#![allow(unsafe_code, reason = "reads and writes words atomically")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use cuda_mem_sys::CUdeviceptr;

use super::words::Page;
use crate::driver::Driver;
use crate::error::Result;
use crate::host::{HostMemory, PinnedBuffer};
use crate::stream::{Stream, StreamId};
use crate::uses::OpenUse;

/// What completes every generation of a line: as a signed number it is ahead of all that are given out.
pub(super) const POISON: u64 = i64::MAX as u64;

/// The last generation of a line. Above it a word is poison, whoever wrote it.
pub(super) const LAST: u64 = 1 << 62;

/// The generation word, and a word that is not zero once the line is poisoned.
#[derive(Debug)]
pub(super) enum Memory {
    Own { words: PinnedBuffer<u64>, address: CUdeviceptr, state: State },
    Shared { page: Arc<Page>, slot: usize },
}

/// What this process knows of a line.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Held while a fence is recorded, so that generations are written in order.
    pub(super) issued: Mutex<Issued>,
    /// Whether poison was seen, which nobody takes back.
    pub(super) poisoned: AtomicBool,
    /// The last generation that a stream of this process was made to wait for.
    pub(super) awaited: AtomicU64,
}

/// What was given out last.
#[derive(Debug, Default)]
pub(super) struct Issued {
    pub(super) generation: u64,
    /// The stream that writes it.
    pub(super) writer: Option<StreamId>,
}

/// One of a line's two words.
#[derive(Debug, Clone, Copy)]
pub(super) enum Word {
    Generation,
    Flag,
}

impl Memory {
    pub(super) fn driver(&self) -> Driver {
        match self {
            Self::Own { words, .. } => words.context().driver(),
            Self::Shared { page, .. } => page.driver(),
        }
    }

    /// Where devices find the generation word.
    pub(super) fn address(&self) -> CUdeviceptr {
        match self {
            Self::Own { address, .. } => *address,
            Self::Shared { page, slot } => page.address(*slot),
        }
    }

    /// Enters `stream` as a user of the words, without ordering it behind anything.
    pub(super) fn note<'m>(&'m self, stream: &'m Stream) -> Result<OpenUse<'m>> {
        match self {
            Self::Own { words, .. } => words.note(stream),
            Self::Shared { page, .. } => page.note(stream),
        }
    }

    pub(super) fn state(&self) -> &State {
        match self {
            Self::Own { state, .. } => state,
            Self::Shared { page, slot } => page.state(*slot),
        }
    }

    pub(super) fn word(&self, word: Word) -> &AtomicU64 {
        match self {
            Self::Own { words, .. } => {
                let first = words.as_ptr().cast::<u64>();
                // SAFETY: the buffer has two words, and `Word` counts to one.
                let word = unsafe { first.add(word as usize) };
                // SAFETY: aligned, initialised, and alive as long as `self`; host and device only ever access it atomically,
                // 64 bits at a time.
                unsafe { AtomicU64::from_ptr(word.cast_mut()) }
            }
            Self::Shared { page, slot } => page.word(*slot, word),
        }
    }

    /// Completes every generation, for good.
    pub(super) fn poison(&self) {
        self.state().poisoned.store(true, Ordering::SeqCst);
        poison(self.word(Word::Generation), self.word(Word::Flag));
    }

    /// Whether the line is poisoned. If so, it is once more: a writer that lives on after the poison moves the word back, and
    /// whoever waits would wait again.
    pub(super) fn is_poisoned(&self) -> bool {
        let seen = self.state().poisoned.load(Ordering::SeqCst)
            || self.word(Word::Flag).load(Ordering::SeqCst) != 0
            || self.word(Word::Generation).load(Ordering::SeqCst).cast_signed() > LAST.cast_signed();
        if seen {
            self.poison();
        }
        seen
    }

    /// Whether the word has come to a generation.
    pub(super) fn has_come_to(&self, generation: u64) -> bool {
        let word = self.word(Word::Generation).load(Ordering::SeqCst);
        // As the device compares: the difference as a signed number.
        word.wrapping_sub(generation).cast_signed() >= 0
    }

    pub(super) fn issued(&self) -> std::sync::MutexGuard<'_, Issued> {
        self.state().issued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes poison to the two words of a line.
pub(super) fn poison(generation: &AtomicU64, flag: &AtomicU64) {
    flag.store(1, Ordering::SeqCst);
    // After the flag: whoever sees the word must see why.
    generation.store(POISON, Ordering::SeqCst);
}

//! Where the words of a line are: in memory of the process's own, or in a slot that another process maps too.
//!
//! # Safety
//!
//! Relies on a pinned buffer of two words keeping them until the streams that it was told of have passed, which is what its
//! release waits for; and on whoever touches them doing so atomically.

#![allow(unsafe_code, reason = "reads and writes words atomically")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use cuda_mem_sys::CUdeviceptr;

use super::words::Page;
use crate::driver::deferred::Release;
use crate::driver::{Driver, Event, lock, refusal_in_host_function};
use crate::error::Result;
use crate::host::{HostMemory, PinnedBuffer};
use crate::stream::idle::{Awaited, WhenIdle};
use crate::stream::{Stream, StreamId};
use crate::uses::{OpenUse, Uses};

/// What completes every generation of a line: as a signed number it is ahead of all that are given out.
pub(super) const POISON: u64 = i64::MAX as u64;

/// The last generation of a line. Above it a word is poison, whoever wrote it.
pub(super) const LAST: u64 = 1 << 62;

/// The generation word, and a word that is not zero once the line is poisoned.
#[derive(Debug)]
pub(super) enum Memory {
    /// Kept by its line, and for moments by who looks whether it is awaited.
    Own(Arc<Own>),
    Shared {
        page: Arc<Page>,
        slot: usize,
        /// Whether one stream alone records there, so that no event is needed behind its fences.
        of_one_stream: bool,
    },
}

/// Words in memory of this process.
#[derive(Debug)]
pub(super) struct Own {
    words: PinnedBuffer<u64>,
    address: CUdeviceptr,
    state: State,
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
    /// A point of that stream behind the write, in memory that others can write: what they write there must keep no stream from going on.
    pub(super) behind: Option<Event>,
}

/// One of a line's two words.
#[derive(Debug, Clone, Copy)]
pub(super) enum Word {
    Generation,
    Flag,
}

impl State {
    /// Whether a stream here was made to wait for what the word has not come to. If none was, another process may store anything.
    pub(super) fn is_awaited(&self, word: &AtomicU64) -> bool {
        let awaited = self.awaited.load(Ordering::SeqCst);
        awaited > 0 && !has_come_to(word, awaited)
    }

    /// As [`State::is_awaited`], for who looks again and again: each look poisons a poisoned line once more whose word was moved back.
    pub(super) fn is_awaited_still(&self, generation: &AtomicU64, flag: &AtomicU64) -> bool {
        let is_awaited = self.is_awaited(generation);
        if is_awaited && self.poisoned.load(Ordering::SeqCst) {
            poison(generation, flag);
        }
        is_awaited
    }
}

impl Own {
    fn word(&self, word: Word) -> &AtomicU64 {
        let first = self.words.as_ptr().cast::<u64>();
        // SAFETY: the buffer has two words, and `Word` counts to one.
        let word = unsafe { first.add(word as usize) };
        // SAFETY: aligned, initialised, and alive as long as `self`; host and device access all 64 bits of it atomically.
        unsafe { AtomicU64::from_ptr(word.cast_mut()) }
    }
}

impl LineWords for Own {
    fn driver(&self) -> Driver {
        self.words.context().driver()
    }

    fn poison(&self) {
        poison(self.word(Word::Generation), self.word(Word::Flag));
    }

    fn uses(&mut self) -> &mut Uses {
        self.words.uses_mut()
    }
}

impl Awaited for Own {
    fn is_awaited(&self) -> bool {
        self.state.is_awaited_still(self.word(Word::Generation), self.word(Word::Flag))
    }
}

impl Memory {
    /// Two words that are 0, and where devices find them.
    pub(super) fn own(words: PinnedBuffer<u64>, address: CUdeviceptr) -> Self {
        let driver = words.context().driver();
        let own = Arc::new(Own { words, address, state: State::default() });
        let watched: Weak<Own> = Arc::downgrade(&own);
        driver.service::<WhenIdle>().watch(watched);
        Self::Own(own)
    }

    pub(super) fn driver(&self) -> Driver {
        match self {
            Self::Own(own) => own.driver(),
            Self::Shared { page, .. } => page.slots.driver(),
        }
    }

    /// Where devices find the generation word.
    pub(super) fn address(&self) -> CUdeviceptr {
        match self {
            Self::Own(own) => own.address,
            Self::Shared { page, slot, .. } => page.slots.address(*slot),
        }
    }

    /// Enters `stream` as a user of the words, without ordering it behind anything.
    pub(super) fn note<'m>(&'m self, stream: &'m Stream) -> Result<OpenUse<'m>> {
        match self {
            Self::Own(own) => own.words.note(stream),
            Self::Shared { page, .. } => page.slots.note(stream),
        }
    }

    pub(super) fn state(&self) -> &State {
        match self {
            Self::Own(own) => &own.state,
            Self::Shared { page, slot, .. } => page.slots.state(*slot),
        }
    }

    pub(super) fn word(&self, word: Word) -> &AtomicU64 {
        match self {
            Self::Own(own) => own.word(word),
            Self::Shared { page, slot, .. } => page.slots.word(*slot, word),
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
        has_come_to(self.word(Word::Generation), generation)
    }

    pub(super) fn issued(&self) -> std::sync::MutexGuard<'_, Issued> {
        lock(&self.state().issued)
    }
}

/// As the device compares: the difference as a signed number.
fn has_come_to(word: &AtomicU64, generation: u64) -> bool {
    word.load(Ordering::SeqCst).wrapping_sub(generation).cast_signed() >= 0
}

/// The words of one line or of many, with the uses of their memory by streams of this process.
pub(super) trait LineWords: Send + Sync + 'static {
    fn driver(&self) -> Driver;

    /// Completes what is waited for.
    fn poison(&self);

    fn uses(&mut self) -> &mut Uses;
}

/// Poisons words that nobody else has any more until none of their uses runs. A writer that lives on may move a word back before a stream
/// has come to its wait, also below a fence that was recorded: poison ends the waits by which the writers of a line follow each other. What
/// those streams are given later does not count, or one that is kept busy would keep the caller. A stream that captures nobody can wait
/// for: what waits to be released goes on with it then.
pub(super) fn let_go<W: LineWords>(words: &mut Arc<W>) {
    let Some(own) = Arc::get_mut(words) else { return };
    let mut pause = Duration::from_micros(10);
    // In a host function, whose stream may be one of theirs, no use can be asked about: that stream goes on behind the function.
    while refusal_in_host_function(own.driver()).is_none() {
        match own.uses().have_passed() {
            Ok(false) => {}
            Err(error) if error.may_pass() => break,
            // After any other error the words' own release waits.
            Ok(true) | Err(_) => return,
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
        own.poison();
    }
    let (driver, uses) = (own.driver(), std::mem::take(own.uses()));
    driver.release_or_defer(LettingGo { words: Arc::clone(words), uses });
}

/// Words whose owner is gone, until their uses are over.
struct LettingGo<W> {
    words: Arc<W>,
    uses: Uses,
}

impl<W: LineWords> Release for LettingGo<W> {
    fn release(&mut self, _waits: bool) -> Result<()> {
        self.words.poison();
        // Not waited for: between the poison and the wait a writer may move the word back.
        self.uses.expect_over()
    }
}

/// Writes poison to the two words of a line.
pub(super) fn poison(generation: &AtomicU64, flag: &AtomicU64) {
    flag.store(1, Ordering::SeqCst);
    // After the flag: whoever sees the word must see why.
    generation.store(POISON, Ordering::SeqCst);
}

//! Words in memory of both processes: how far each is, and when something happened. Both read the same clock.

use std::error::Error;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::host::SharedMapping;
use rustix::thread::futex;
use rustix::time::{ClockId, clock_gettime};

use crate::team::LIMIT;

/// A word, in a cache line of its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Word {
    /// The last round that the other process waits for.
    Ready,
    /// The last round that it has.
    Done,
    /// When it had it.
    Time,
    /// How long ordering its stream took of that.
    Order,
    /// How long a bare wait took behind it.
    Wait,
    /// The last round that it may take.
    Go,
    /// Either has failed.
    Failed,
}

#[derive(Debug)]
pub(crate) struct Table {
    mapping: SharedMapping,
}

impl Table {
    pub(crate) fn create() -> Result<Self, Box<dyn Error>> {
        Ok(Self { mapping: SharedMapping::create(4096)? })
    }

    pub(crate) fn open(descriptor: OwnedFd) -> Result<Self, Box<dyn Error>> {
        Ok(Self { mapping: SharedMapping::open(descriptor)? })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.mapping.as_fd()
    }

    fn word(&self, word: Word) -> Result<&AtomicU64, Box<dyn Error>> {
        Ok(self.mapping.word(word as usize * 64)?)
    }

    /// All from the beginning.
    pub(crate) fn clear(&self) -> Result<(), Box<dyn Error>> {
        for word in [Word::Ready, Word::Done, Word::Time, Word::Order, Word::Wait, Word::Go, Word::Failed] {
            self.set(word, 0)?;
        }
        Ok(())
    }

    pub(crate) fn get(&self, word: Word) -> Result<u64, Box<dyn Error>> {
        Ok(self.word(word)?.load(Ordering::Acquire))
    }

    pub(crate) fn set(&self, word: Word, value: u64) -> Result<(), Box<dyn Error>> {
        self.word(word)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Waits until a word has come to a value, without a system call.
    pub(crate) fn spin(&self, word: Word, value: u64) -> Result<(), Box<dyn Error>> {
        let (word, failed) = (self.word(word)?, self.word(Word::Failed)?);
        for turn in 1u64.. {
            if word.load(Ordering::Acquire) >= value {
                break;
            }
            std::hint::spin_loop();
            // The one seldom; the other is a line of the cache that nobody writes.
            if turn % (1 << 24) == 0 || failed.load(Ordering::Relaxed) > 0 {
                self.expect_patience(turn)?;
            }
        }
        Ok(())
    }

    fn expect_patience(&self, turn: u64) -> Result<(), Box<dyn Error>> {
        if self.get(Word::Failed)? > 0 {
            return Err("the other process failed".into());
        }
        // Many seconds, whatever the processor makes of a turn.
        if turn >= 1 << 30 { Err("the other process does not go on".into()) } else { Ok(()) }
    }

    /// Waits until a word has a value, asleep.
    pub(crate) fn sleep(&self, word: Word, value: u32) -> Result<(), Box<dyn Error>> {
        let word = self.half(word)?;
        loop {
            let found = word.load(Ordering::Acquire);
            if found == value {
                return Ok(());
            }
            let limit = rustix::time::Timespec { tv_sec: i64::try_from(LIMIT.as_secs())?, tv_nsec: 0 };
            match futex::wait(word, futex::Flags::empty(), found, Some(&limit)) {
                // It changed before the thread slept, or a signal came.
                Ok(()) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sets a word and wakes who sleeps for it.
    pub(crate) fn wake(&self, word: Word, value: u32) -> Result<(), Box<dyn Error>> {
        let word = self.half(word)?;
        word.store(value, Ordering::Release);
        futex::wake(word, futex::Flags::empty(), 1)?;
        Ok(())
    }

    /// The lower half of a word, which is what a futex is.
    fn half(&self, word: Word) -> Result<&AtomicU32, Box<dyn Error>> {
        let word = self.word(word)?;
        // SAFETY: aligned and as long-lived as the word; while it is a futex nobody uses the whole of it.
        Ok(unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) })
    }

    /// Bytes behind the words.
    pub(crate) fn put(&self, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
        Ok(self.mapping.write(2048, bytes)?)
    }

    pub(crate) fn take(&self, bytes: &mut [u8]) -> Result<(), Box<dyn Error>> {
        Ok(self.mapping.read(2048, bytes)?)
    }
}

/// `CLOCK_MONOTONIC`, in nanoseconds: the same for all processes of a host.
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // Since the machine started: never negative.
    (time.tv_sec * 1_000_000_000 + time.tv_nsec).unsigned_abs()
}

/// Lets time pass and stays awake.
pub(crate) fn linger(time: Duration) {
    let start = now();
    while u128::from(now() - start) < time.as_nanos() {
        std::hint::spin_loop();
    }
}

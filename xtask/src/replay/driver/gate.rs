//! Holds a real device so many operations behind the host.
//!
//! The streams wait for a word that the host moves on as it goes: a stream that was given a wait at operation N goes on when
//! the host has come to N plus the lag. The wait stands for the kernels of the program.
//!
//! # Safety
//!
//! Relies on the word never being freed, so that no stream can wait for memory that is gone.

#![allow(unsafe_code, reason = "has streams wait for a word, and writes it")]

use std::mem::ManuallyDrop;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use cuda_mem_core::host::{HostMemory, PinnedFlags};
use cuda_mem_core::pointer::device_address;
use cuda_mem_core::stream_mem::{self, WaitFlags};
use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{Context, PinnedBuffer, Stream};

/// A host that stands still for so long waits for the device, which then catches up.
const PATIENCE: Duration = Duration::from_millis(200);

/// Wakes every wait there is.
const OPEN: u64 = i64::MAX as u64;

/// The word, and where the host is.
#[derive(Debug)]
pub(super) struct Gate {
    lag: u64,
    /// In pinned memory of its own that is never freed: some stream may wait for it as long as the process lives.
    word: ManuallyDrop<PinnedBuffer<u64>>,
    address: CUdeviceptr,
    /// The operation that the host is at.
    now: AtomicU64,
    over: AtomicBool,
    /// Operations that the device caught up with because the host stood still.
    caught_up: Mutex<Caught>,
}

/// Times that the device caught up, and by how many operations in all.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Caught {
    pub(super) times: u64,
    pub(super) operations: u64,
}

impl Gate {
    pub(super) fn new(context: &Context, lag: u64) -> Result<Self> {
        let word = PinnedBuffer::zeroed(context, 1, PinnedFlags::PORTABLE | PinnedFlags::MAPPED)?;
        let address = device_address(context, word.as_ptr())?;
        Ok(Self {
            lag,
            word: ManuallyDrop::new(word),
            address,
            now: AtomicU64::new(0),
            over: AtomicBool::new(false),
            caught_up: Mutex::default(),
        })
    }

    fn word(&self) -> &AtomicU64 {
        let word = self.word.as_ptr().cast::<u64>().cast_mut();
        // SAFETY: one aligned, initialised word that is never freed; host and device access it atomically, 64 bits at a time.
        unsafe { AtomicU64::from_ptr(word) }
    }

    /// The host comes to an operation: work of the one `lag` before may end.
    pub(super) fn begin(&self, operation: u64) {
        self.now.store(operation, Ordering::SeqCst);
        // Operation 0 waits for 1, so that a new word holds it.
        if let Some(done) = (operation + 1).checked_sub(self.lag) {
            self.word().fetch_max(done, Ordering::SeqCst);
        }
    }

    /// Holds a stream until the host has come to operation `now + lag`, and to `until` if that is later.
    pub(super) fn hold(&self, stream: &Stream, until: u64) -> Result<()> {
        let now = self.now.load(Ordering::SeqCst);
        let value = (now + 1).max((until + 1).saturating_sub(self.lag));
        if value <= self.word().load(Ordering::SeqCst) {
            return Ok(());
        }
        // SAFETY: an aligned word that is never freed, read by the device alone through this.
        unsafe { stream_mem::wait_value64(stream, self.address, value, WaitFlags::empty()) }?;
        Ok(())
    }

    /// Lets the device catch up whenever the host stands still, until the replay is over; tells before it does. For a thread of
    /// its own.
    pub(super) fn watch(&self, tell: impl Fn()) {
        let mut seen = u64::MAX;
        while !self.over.load(Ordering::SeqCst) {
            thread::park_timeout(PATIENCE);
            let now = self.now.load(Ordering::SeqCst);
            let word = self.word().load(Ordering::SeqCst);
            if now == seen && word <= now {
                tell();
                self.word().fetch_max(now + 1, Ordering::SeqCst);
                let mut caught = self.caught_up.lock().unwrap_or_else(PoisonError::into_inner);
                caught.times += 1;
                caught.operations += now + 1 - word;
            }
            seen = now;
        }
    }

    pub(super) fn caught_up(&self) -> Caught {
        *self.caught_up.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all waits.
    pub(super) fn open(&self) {
        self.over.store(true, Ordering::SeqCst);
        self.word().store(OPEN, Ordering::SeqCst);
    }
}

//! How a stager is made.

use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::thread;

use super::pool::Pool;
use super::ring::Ring;
use super::tuning::{
    PAGE, SLOT_BYTES, SLOT_BYTES_ACCEPTED, SLOTS, SLOTS_ACCEPTED, THREADS, THREADS_ACCEPTED,
};
use super::{Inner, Stager, copy_parts};
use crate::driver::{Context, refuse_forked};
use crate::error::{Error, Result};

/// How many threads a [`Stager`] has, and how large its ring is. From [`Stager::builder`].
///
/// ```
/// use cuda_mem_core::{Driver, copy::Stager};
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // with a GPU: Driver::system()?
/// let stager = Stager::builder(&context).threads(4).slots(4).slot_bytes(1 << 20).build()?;
/// assert_eq!((stager.threads(), stager.slots(), stager.slot_bytes()), (4, 4, 1 << 20));
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "it makes a stager when it is built"]
pub struct StagerBuilder<'c> {
    context: &'c Context,
    threads: usize,
    slots: usize,
    slot_bytes: usize,
}

impl<'c> StagerBuilder<'c> {
    pub(super) fn new(context: &'c Context) -> Self {
        let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(THREADS);
        Self { context, threads, slots: SLOTS, slot_bytes: SLOT_BYTES }
    }

    /// How many threads copy, the one that calls among them: with 1, none is started. By default 9, or as many as the process
    /// may run at once if that is less.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// How many pieces are on their way at a time. By default 8.
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots;
        self
    }

    /// The largest piece in bytes, rounded up to whole pages of 4 KiB. By default 4 MiB.
    pub fn slot_bytes(mut self, slot_bytes: usize) -> Self {
        self.slot_bytes = slot_bytes;
        self
    }

    /// Allocates the ring and starts the threads.
    ///
    /// Wraps [`cuMemHostAlloc`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    ///
    /// # Errors
    ///
    /// [`Error::NotAccepted`] for a value that is not, [`Error::Io`] if a thread cannot be started.
    pub fn build(self) -> Result<Stager> {
        refuse_forked()?;
        expect("threads", self.threads, THREADS_ACCEPTED)?;
        expect("slots", self.slots, SLOTS_ACCEPTED)?;
        expect("slot_bytes", self.slot_bytes, SLOT_BYTES_ACCEPTED)?;
        let ring = Ring::new(self.context, self.slots, self.slot_bytes.next_multiple_of(PAGE))?;
        let pool = Pool::start(ring.board(), self.threads.saturating_sub(1), copy_parts)
            .map_err(|error| Error::Io { call: "pthread_create", source: error.into() })?;
        Ok(Stager { inner: Arc::new(Inner { pool, ring }), cancel: None })
    }
}

fn expect(option: &'static str, value: usize, accepted: RangeInclusive<usize>) -> Result<()> {
    if accepted.contains(&value) { Ok(()) } else { Err(Error::NotAccepted { option, value, accepted }) }
}

//! NVSHMEM.
//!
//! # Safety
//!
//! Relies on the contract of `cuda_mem_sys::nvshmem::Table`, on NVSHMEM's documentation for what each function takes, and on no other code of the
//! process finalising an instance that is used here. The library's functions are called one at a time, as it asks for: behind a lock. Its one
//! instance in a process has one [`EngineBackend`] at a time, by the claim.

#![allow(unsafe_code, reason = "calls NVSHMEM's functions")]

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::sys::nvshmem::{self as sys, InitAttributes, Table, nvshmemx_uniqueid_v1};
use cuda_mem_pool::cuda_mem_core::{Context, Stream};

use super::agreement::{Calls, Introduction, Talk};
use super::{Engine, EngineBackend, Traits, Words, address, number};
use crate::primitive::{lock, refuse_forked};
use crate::symmetric::memory::Operation;
use crate::symmetric::{CHANNELS, Error, Exchange, Result};

const NAME: &str = "NVSHMEM";

/// Whether the process has a backend over its instance.
static CLAIMED: AtomicBool = AtomicBool::new(false);

#[derive(Debug)]
struct Claim;

impl Claim {
    fn new() -> Result<Self> {
        if CLAIMED.swap(true, Ordering::AcqRel) {
            return Err(Error::EngineInUse { backend: NAME });
        }
        Ok(Self)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        CLAIMED.store(false, Ordering::Release);
    }
}

#[derive(Debug)]
struct Nvshmem {
    table: Table,
    /// One call at a time; none without the claim.
    claim: Mutex<Option<Claim>>,
    /// Whether the instance was initialised here.
    is_ours: bool,
    rank: usize,
    ranks: usize,
}

impl EngineBackend {
    /// A backend over NVSHMEM.
    ///
    /// An instance that is initialised in the process already, by any code, is used as it is: it must have the same ranks, in the same order, on
    /// the context's device, its owner must not finalise it before [`close`](EngineBackend::close), and it stays afterwards. Otherwise one is
    /// initialised by a unique id that travels over `exchange`. What the library reads from the environment, such as the size of its heap
    /// (`NVSHMEM_SYMMETRIC_SIZE`), is the library's.
    ///
    /// # Errors
    ///
    /// [`Error::EngineInUse`], [`Error::OtherInstance`]; [`Error::Disagrees`] for ranks with another version, or of which only some have
    /// an instance, before any is initialised; those of the exchange; [`Error::Engine`], and
    /// [`Error::FailedElsewhere`] or [`Error::Uneven`] when another rank fails: what only some ranks have stays until the process ends.
    pub fn nvshmem(
        table: Table,
        context: &Context,
        exchange: Arc<dyn Exchange>,
        timeout: Duration,
    ) -> Result<Self> {
        refuse_forked()?;
        let claim = Claim::new()?;
        let (rank, ranks) = (exchange.rank(), exchange.world_size());
        let stream = Stream::new(context)?;
        // SAFETY: may be called at any time.
        let status = unsafe { table.nvshmemx_init_status()() };
        let initialised = sys::NVSHMEM_STATUS_IS_INITIALIZED..sys::NVSHMEM_STATUS_INVALID;
        let is_initialised = initialised.contains(&status);
        let mut id = nvshmemx_uniqueid_v1::new();
        if rank == 0 && !is_initialised {
            // SAFETY: an id to write; may be called before the initialisation.
            let get = || unsafe { table.nvshmemx_get_uniqueid()(&mut id) };
            expect("nvshmemx_get_uniqueid", context.with_current(get)?)?;
        }
        let ours = Introduction::new(table.version(), Some(is_initialised), id.to_bytes());
        let mut calls = Calls::default();
        let talk = Talk { exchange: &*exchange, backend: NAME, timeout };
        let id = calls.start(talk, &ours)?;
        let claim = Mutex::new(Some(claim));
        let engine = Nvshmem { table, claim, is_ours: !is_initialised, rank, ranks };
        let begun = if engine.is_ours {
            let id = nvshmemx_uniqueid_v1::from_bytes(&id);
            context.with_current(|| engine.initialise(&id)).map_err(Error::from).and_then(|begun| begun)
        } else {
            Ok(())
        };
        let leaves = begun.is_ok() && engine.is_ours;
        let begun = begun.and_then(|()| engine.expect_members());
        calls.settle(talk, "the initialisation", begun, leaves).inspect_err(|_| {
            // An instance that only some ranks have stays: its end is a call of all.
            if leaves && !calls.has_ended() {
                let _ = context.with_current(|| engine.close());
            }
        })?;
        Ok(Self::over(Box::new(engine), stream, exchange, calls, timeout))
    }
}

impl Nvshmem {
    /// Collective. A new instance, with the current context's device.
    fn initialise(&self, id: &nvshmemx_uniqueid_v1) -> Result<()> {
        let mut attributes = InitAttributes::new(self.table.version());
        let attributes = attributes.as_mut_ptr();
        let (rank, ranks) = (number(self.rank), number(self.ranks));
        // SAFETY: an id, which outlives the initialisation below, and attributes with the layout of the library's version.
        let set = unsafe { self.table.nvshmemx_set_attr_uniqueid_args()(rank, ranks, id, attributes) };
        expect("nvshmemx_set_attr_uniqueid_args", set)?;
        // SAFETY: attributes as above; the id that they name is `id`; a device is current.
        let begun =
            unsafe { self.table.nvshmemx_hostlib_init_attr()(sys::NVSHMEMX_INIT_WITH_UNIQUEID, attributes) };
        expect("nvshmemx_hostlib_init_attr", begun)
    }

    fn expect_members(&self) -> Result<()> {
        // SAFETY: the instance is initialised.
        let found = unsafe { self.table.nvshmem_my_pe()() };
        // SAFETY: as above.
        let found_size = unsafe { self.table.nvshmem_n_pes()() };
        let (rank, world_size) = (self.rank, self.ranks);
        if (found, found_size) == (number(rank), number(world_size)) {
            return Ok(());
        }
        Err(Error::OtherInstance { backend: NAME, found, found_size, rank, world_size })
    }

    /// The lock, if the instance may be called.
    fn entered(&self) -> Result<impl Drop> {
        let claim = lock(&self.claim);
        if claim.is_some() { Ok(claim) } else { Err(Error::EngineClosed { backend: NAME }) }
    }

    /// Has `stream` write the next signal for rank `to`. The caller has the lock.
    fn put(&self, words: &Words, stream: &Stream, to: usize, operation: Operation, channel: usize) {
        let mut counts = lock(&words.counts);
        let [sent, _] = &mut *counts;
        let Some(count) = sent.get_mut(operation.word(channel, self.ranks, to)) else { return };
        *count += 1;
        let word = words.word(operation.word(channel, self.ranks, self.rank));
        let set = sys::NVSHMEM_SIGNAL_SET;
        // SAFETY: a word of symmetric memory, which the allocation that has `words` keeps; a rank that there is; a live stream of the current context.
        unsafe {
            self.table.nvshmemx_signal_op_on_stream()(word, *count, set, number(to), stream.as_raw().cast());
        }
    }

    /// Has `stream` wait for the next signal of rank `from`. The caller has the lock.
    fn take(&self, words: &Words, stream: &Stream, from: usize, operation: Operation, channel: usize) {
        let mut counts = lock(&words.counts);
        let [_, waited] = &mut *counts;
        let slot = operation.word(channel, self.ranks, from);
        let Some(count) = waited.get_mut(slot) else { return };
        *count += 1;
        let (word, reached) = (words.word(slot), sys::NVSHMEM_CMP_GE);
        // SAFETY: a word of this rank, as in `put`.
        unsafe {
            self.table.nvshmemx_signal_wait_until_on_stream()(word, reached, *count, stream.as_raw().cast());
        }
    }

    /// What the stream was given before, stores of other ranks' memory included, is done before what it is given now.
    fn quiet(&self, stream: &Stream) {
        // SAFETY: the instance is initialised; a live stream of the current context.
        unsafe { self.table.nvshmemx_quiet_on_stream()(stream.as_raw().cast()) };
    }
}

impl Words {
    fn word(&self, slot: usize) -> *mut u64 {
        address(self.address + 8 * slot as u64).cast()
    }
}

impl Engine for Nvshmem {
    fn name(&self) -> &'static str {
        NAME
    }

    fn traits(&self) -> Traits {
        Traits { channels: CHANNELS, connections: 0, frees_alone: false }
    }

    fn refuses_rendezvous(&self) -> Option<Error> {
        None
    }

    fn alloc(&self, bytes: usize) -> Result<CUdeviceptr> {
        let _entered = self.entered()?;
        // SAFETY: all ranks are at this call, with as many bytes; the context is current.
        let made = unsafe { self.table.nvshmem_malloc()(bytes) };
        if made.is_null() {
            let text = format!("for {bytes} bytes: no room in the symmetric heap (NVSHMEM_SYMMETRIC_SIZE)");
            return Err(Error::Engine { backend: NAME, call: "nvshmem_malloc", code: 0, text });
        }
        Ok(made.expose_provenance() as u64)
    }

    /// The heap is every rank's from the start.
    fn register(&self, _memory: CUdeviceptr, _bytes: usize) -> Result<Option<usize>> {
        Ok(None)
    }

    fn addresses(&self, memory: CUdeviceptr, _window: Option<usize>) -> Result<Vec<CUdeviceptr>> {
        let _entered = self.entered()?;
        let at = |rank| {
            // SAFETY: symmetric memory, and a rank that there is; nothing is read.
            let there = unsafe { self.table.nvshmem_ptr()(address(memory), number(rank)) };
            there.expose_provenance() as u64
        };
        Ok((0..self.ranks).map(at).collect())
    }

    unsafe fn unregister(&self, _window: usize) -> Result<()> {
        Ok(())
    }

    unsafe fn free(&self, memory: CUdeviceptr, _window: Option<usize>) -> Result<()> {
        let _entered = self.entered()?;
        // SAFETY: the caller's promise.
        unsafe { self.table.nvshmem_free()(address(memory)) };
        Ok(())
    }

    fn close(&self) -> Result<()> {
        let Some(_claim) = lock(&self.claim).take() else {
            return Err(Error::EngineClosed { backend: NAME });
        };
        if self.is_ours {
            // SAFETY: initialised here, all memory was given back; all ranks are at this call.
            unsafe { self.table.nvshmemx_hostlib_finalize()() };
        }
        Ok(())
    }

    fn abandon(&self) {
        lock(&self.claim).take();
    }

    fn signal(&self, words: &Words, stream: &Stream, to: usize, channel: usize) -> Result<()> {
        let _entered = self.entered()?;
        self.quiet(stream);
        self.put(words, stream, to, Operation::Signal, channel);
        Ok(())
    }

    fn wait(&self, words: &Words, stream: &Stream, from: usize, channel: usize) -> Result<()> {
        let _entered = self.entered()?;
        self.take(words, stream, from, Operation::Signal, channel);
        Ok(())
    }

    /// By signals, so that each channel has its own: NVSHMEM's barrier has no channels.
    fn barrier(&self, words: &Words, stream: &Stream, channel: usize) -> Result<()> {
        let _entered = self.entered()?;
        self.quiet(stream);
        let others = || (0..self.ranks).filter(|&rank| rank != self.rank);
        // All signals first: a stream that waits holds up more than itself.
        others().for_each(|to| self.put(words, stream, to, Operation::Barrier, channel));
        others().for_each(|from| self.take(words, stream, from, Operation::Barrier, channel));
        Ok(())
    }
}

fn expect(call: &'static str, code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    Err(Error::Engine { backend: NAME, call, code, text: String::new() })
}

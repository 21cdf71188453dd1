//! NCCL.
//!
//! # Safety
//!
//! Relies on the contract of `cuda_mem_sys::nccl::Table`, and on NCCL's documentation for what each function takes. The communicator is called by
//! one thread at a time: behind a lock, which has it while it lives.

#![allow(unsafe_code, reason = "calls NCCL's functions")]

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::sys::nccl::{
    self as sys, Table, ncclComm, ncclComm_t, ncclResult_t, ncclUniqueId, ncclWaitSignalDesc_t,
};
use cuda_mem_pool::cuda_mem_core::{Context, Stream};

use super::agreement::{Calls, Introduction, Talk};
use super::{Engine, EngineBackend, Traits, Words, address, number};
use crate::primitive::{lock, refuse_forked};
use crate::symmetric::{Error, Exchange, Result};

const NAME: &str = "NCCL";
/// `ncclInvalidArgument`, of a communicator without one-sided calls.
const NO_SIGNALS: i32 = 4;

#[derive(Debug)]
struct Nccl {
    table: Table,
    communicator: Mutex<Option<AtomicPtr<ncclComm>>>,
    rank: usize,
    ranks: usize,
}

impl EngineBackend {
    /// A backend over NCCL, with a communicator of its own, by a unique id that travels over `exchange`.
    /// [`rendezvous`](crate::symmetric::SymmetricBackend::rendezvous) takes NCCL 2.29, which tells the addresses of other ranks; allocating and
    /// freeing does not.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::time::Duration;
    ///
    /// use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Driver;
    /// use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::nccl;
    /// use cuda_mem_ipc::symmetric::{EngineBackend, Group, GroupOptions, SymmetricBackend};
    ///
    /// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
    /// let context = driver.device(0)?.primary_context()?;
    /// # let directory = std::env::temp_dir().join(format!("nccl-{}", std::process::id()));
    /// let (rank, ranks) = (0, 1);
    /// let group = Arc::new(Group::join(&context, "training", rank, ranks, &directory, &GroupOptions::default())?);
    /// match nccl::Table::system() {
    ///     Ok(table) => {
    ///         let backend = EngineBackend::nccl(table, &context, group, Duration::from_secs(60))?;
    ///         println!("{} allocates", backend.name());
    ///     }
    ///     Err(error) => println!("{error}"), // where the library was looked for, or which version is needed
    /// }
    /// # std::fs::remove_dir(directory)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Disagrees`] for ranks with another version, before any communicator is made; those of the exchange; [`Error::Engine`], and
    /// [`Error::FailedElsewhere`] when another rank's communicator fails.
    pub fn nccl(
        table: Table,
        context: &Context,
        exchange: Arc<dyn Exchange>,
        timeout: Duration,
    ) -> Result<Self> {
        refuse_forked()?;
        let (rank, ranks) = (exchange.rank(), exchange.world_size());
        let stream = Stream::new(context)?;
        let engine = Nccl { table, communicator: Mutex::default(), rank, ranks };
        let mut id = ncclUniqueId::from_bytes(&[0; 128]);
        if rank == 0 {
            // SAFETY: an id to write; may be called at any time.
            let get = || unsafe { table.ncclGetUniqueId()(&mut id) };
            engine.expect("ncclGetUniqueId", context.with_current(get)?)?;
        }
        let ours = Introduction::new(table.version(), None, id.to_bytes());
        let mut calls = Calls::default();
        let talk = Talk { exchange: &*exchange, backend: NAME, timeout };
        let id = ncclUniqueId::from_bytes(&calls.start(talk, &ours)?);
        let mut communicator = ptr::null_mut();
        let (rank, number) = (number(rank), number(ranks));
        // SAFETY: a communicator to write, an id that all ranks pass; all of them are at this call, with a device current.
        let init = || unsafe { table.ncclCommInitRank()(&mut communicator, number, id, rank) };
        let made = context.with_current(init).map_err(Error::from);
        let made = made.and_then(|code| engine.expect("ncclCommInitRank", code));
        if made.is_ok() {
            *lock(&engine.communicator) = Some(AtomicPtr::new(communicator));
        }
        calls.settle(talk, "ncclCommInitRank", made, false).inspect_err(|_| {
            // Each rank ends its own: no rank is asked. It fails with the context, and then there is nothing to end either.
            let _ = context.with_current(|| engine.abandon());
        })?;
        Ok(Self::over(Box::new(engine), stream, exchange, calls, timeout))
    }
}

impl Nccl {
    fn expect(&self, call: &'static str, result: ncclResult_t) -> Result<()> {
        if result == ncclResult_t::ncclSuccess {
            return Ok(());
        }
        Err(Error::Engine { backend: NAME, call, code: result.0, text: self.table.error_string(result) })
    }

    /// The communicator, which may be used while the lock is held.
    fn entered(&self) -> Result<(ncclComm_t, impl Drop)> {
        let lock = lock(&self.communicator);
        let communicator = lock.as_ref().map(|communicator| communicator.load(Ordering::Acquire));
        Ok((communicator.ok_or(Error::EngineClosed { backend: NAME })?, lock))
    }

    fn missing(source: sys::MissingFunction) -> Error {
        Error::NotAvailable { backend: NAME, source: Arc::new(source) }
    }
}

impl Engine for Nccl {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Before 2.31 there is one signal.
    fn traits(&self) -> Traits {
        Traits { channels: 1, connections: 3, frees_alone: true }
    }

    fn refuses_rendezvous(&self) -> Option<Error> {
        self.table.ncclGetPeerDevicePointer().err().map(Self::missing)
    }

    fn alloc(&self, bytes: usize) -> Result<CUdeviceptr> {
        let (_, _lock) = self.entered()?;
        let mut made = ptr::null_mut();
        // SAFETY: an address to write; the context is current.
        self.expect("ncclMemAlloc", unsafe { self.table.ncclMemAlloc()(&mut made, bytes) })?;
        Ok(made.expose_provenance() as u64)
    }

    fn register(&self, memory: CUdeviceptr, bytes: usize) -> Result<Option<usize>> {
        let (communicator, _lock) = self.entered()?;
        let (mut window, flags) = (ptr::null_mut(), sys::NCCL_WIN_COLL_SYMMETRIC);
        let register = self.table.ncclCommWindowRegister();
        // SAFETY: the communicator lives while its lock is held; memory of `alloc` with so many bytes; all ranks are at this call, with as many.
        let registered = unsafe { register(communicator, address(memory), bytes, &mut window, flags) };
        self.expect("ncclCommWindowRegister", registered)?;
        Ok(Some(window.expose_provenance()))
    }

    fn addresses(&self, memory: CUdeviceptr, window: Option<usize>) -> Result<Vec<CUdeviceptr>> {
        let (_, _lock) = self.entered()?;
        let peer_pointer = self.table.ncclGetPeerDevicePointer().map_err(Self::missing)?;
        let window = ptr::with_exposed_provenance_mut(window.unwrap_or(0));
        let at = |rank| {
            // NCCL maps the memory of all ranks anew, this one's too: here it has the address that `alloc` gave.
            if rank == self.rank {
                return Ok(memory);
            }
            let mut there = ptr::null_mut();
            // SAFETY: a window of `register`, a rank that there is, an address to write.
            let found = unsafe { peer_pointer(window, 0, number(rank), &mut there) };
            self.expect("ncclGetPeerDevicePointer", found)?;
            Ok(there.expose_provenance() as u64)
        };
        (0..self.ranks).map(at).collect()
    }

    /// A sum, a signal from each rank to the next, and the wait for it: NCCL makes what it needs for sums, and for signals, inside the first
    /// such call, with all ranks. A stream's wait for a signal, unlike a sum, outlasts the communicator: it is put when all have signalled.
    fn connect(&self, number: usize, words: &Words, stream: &Stream) -> Result<()> {
        let (next, last) = ((self.rank + 1) % self.ranks, (self.rank + self.ranks - 1) % self.ranks);
        let connected = match number {
            0 => return self.barrier(words, stream, 0),
            1 => self.signal(words, stream, next, 0),
            _ => self.wait(words, stream, last, 0),
        };
        match connected {
            // No rank was asked. Ranks on hosts that reach each other over a network alone may have no signals, and have the rest.
            Err(Error::Engine { code: NO_SIGNALS, .. }) => Ok(()),
            connected => connected,
        }
    }

    unsafe fn unregister(&self, window: usize) -> Result<()> {
        let (communicator, _lock) = self.entered()?;
        let window = ptr::with_exposed_provenance_mut(window);
        // SAFETY: the communicator lives while its lock is held; the caller's promise.
        let ended = unsafe { self.table.ncclCommWindowDeregister()(communicator, window) };
        self.expect("ncclCommWindowDeregister", ended)
    }

    unsafe fn free(&self, memory: CUdeviceptr, window: Option<usize>) -> Result<()> {
        if let Some(window) = window {
            // SAFETY: the caller's promise.
            unsafe { self.unregister(window) }?;
        }
        let (_, _lock) = self.entered()?;
        // SAFETY: the caller's promise; no window has it any more.
        self.expect("ncclMemFree", unsafe { self.table.ncclMemFree()(address(memory)) })
    }

    fn close(&self) -> Result<()> {
        let communicator = lock(&self.communicator).take().ok_or(Error::EngineClosed { backend: NAME })?;
        let communicator = communicator.into_inner();
        // SAFETY: a communicator that no other code can reach any more; all ranks are at this call.
        let finalised = unsafe { self.table.ncclCommFinalize()(communicator) };
        // SAFETY: as above.
        let destroyed = unsafe { self.table.ncclCommDestroy()(communicator) };
        self.expect("ncclCommFinalize", finalised)?;
        self.expect("ncclCommDestroy", destroyed)
    }

    fn abandon(&self) {
        if let Some(communicator) = lock(&self.communicator).take() {
            // SAFETY: a communicator that no other code can reach any more, and whose windows are not used. Its memory stays for other ranks.
            let _ = unsafe { self.table.ncclCommAbort()(communicator.into_inner()) };
        }
    }

    fn signal(&self, _words: &Words, stream: &Stream, to: usize, _channel: usize) -> Result<()> {
        let (communicator, _lock) = self.entered()?;
        let signal = self.table.ncclSignal().map_err(Self::missing)?;
        // SAFETY: the communicator lives while its lock is held; a rank that there is, a live stream of the current context.
        let put = unsafe { signal(number(to), 0, 0, 0, communicator, stream.as_raw().cast()) };
        self.expect("ncclSignal", put)
    }

    fn wait(&self, _words: &Words, stream: &Stream, from: usize, _channel: usize) -> Result<()> {
        let (communicator, _lock) = self.entered()?;
        let wait = self.table.ncclWaitSignal().map_err(Self::missing)?;
        let mut awaited = ncclWaitSignalDesc_t { opCnt: 1, peer: number(from), sigIdx: 0, ctx: 0 };
        // SAFETY: as in `signal`; one description, which is read by the call.
        let waits = unsafe { wait(1, &mut awaited, communicator, stream.as_raw().cast()) };
        self.expect("ncclWaitSignal", waits)
    }

    /// A sum of one number of each rank: NCCL has no barrier, and its signals are those of `signal`.
    fn barrier(&self, words: &Words, stream: &Stream, _channel: usize) -> Result<()> {
        let (communicator, _lock) = self.entered()?;
        let word = address(words.address);
        // SAFETY: as in `signal`; a word of the allocation, which the caller keeps until the stream has passed.
        let summed = unsafe {
            self.table.ncclAllReduce()(
                word,
                word,
                1,
                sys::NCCL_UINT32,
                sys::NCCL_SUM,
                communicator,
                stream.as_raw().cast(),
            )
        };
        self.expect("ncclAllReduce", summed)
    }
}

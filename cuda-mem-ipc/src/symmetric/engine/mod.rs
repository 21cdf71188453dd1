//! Symmetric memory of NVSHMEM and NCCL: what both have in common.
//!
//! Their calls are collective: one that not all ranks make holds up those that do for ever. So no such call is made before all ranks
//! have said, in an [`Exchange`], that they are about to make it, with the same size and for the same allocation.
//!
//! # Safety
//!
//! Relies on the library giving no memory twice before it is given back.

#![allow(unsafe_code, reason = "implements an unsafe trait")]

mod agreement;
mod allocation;
#[cfg(feature = "nccl")]
mod nccl;
#[cfg(feature = "nvshmem")]
mod nvshmem;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{fmt, ptr};

use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::{Device, Stream, forked};

use super::{Allocated, Error, Exchange, Result, SymmetricBackend, SymmetricMemory};
use crate::primitive::{lock, lock_over_calls, refuse_forked, try_lock};
use agreement::{Agreed, Calls, Kind, Proposal, Talk};
use allocation::{Allocation, EngineMemory, Shared};

/// NVSHMEM or NCCL as a backend, called `"NVSHMEM"` and `"NCCL"`, for one set of ranks, each with a device.
///
/// [`alloc`](SymmetricBackend::alloc), [`rendezvous`](SymmetricBackend::rendezvous) and [`close`](Self::close) are calls of all ranks, which are
/// made once all have agreed on them: on the call, its number, its size and the allocation. Ranks that differ all get an error and nothing was
/// called; a rank that does not come is named, and the backend is of no further use then. A call that fails on some ranks fails on all: what
/// they can undo together is undone, and else the backend is of no further use. [`free`](SymmetricBackend::free) is a call of this rank alone:
/// what all ranks have freed is given back to the library with the next call of all ranks.
///
/// Every rank calls the constructor, with the functions of the library (`Table::system` has those of the process, and says where the library is
/// looked for), its device's primary context, which the library uses, and the same `timeout`: how long ranks are waited for, to agree on a
/// call and to come out of it. The call itself takes as long as the library lets it.
///
/// What the library does when a rank dies inside one of its calls is the library's: see `docs/symmetric.md`. Dropped without
/// [`close`](Self::close) the memory, and an instance of NVSHMEM, stay until the process ends: giving them back takes all ranks.
pub struct EngineBackend {
    shared: Arc<Shared>,
    exchange: Arc<dyn Exchange>,
    /// How long all ranks are waited for, to agree on a call and to come out of it.
    timeout: Duration,
    /// The order of calls is the order of this lock.
    calls: Mutex<Calls>,
    allocations: Mutex<BTreeMap<CUdeviceptr, Arc<Allocation>>>,
}

/// What a library has to do. Those that are marked are collective, and made when all ranks have agreed; the context is current.
trait Engine: fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;

    fn traits(&self) -> Traits;

    /// Why ranks cannot be brought together, before any is asked.
    fn refuses_rendezvous(&self) -> Option<Error>;

    /// Collective. New memory.
    fn alloc(&self, bytes: usize) -> Result<CUdeviceptr>;

    /// Collective. Brings the ranks together; what the memory is registered as, if it takes that.
    fn register(&self, address: CUdeviceptr, bytes: usize) -> Result<Option<usize>>;

    /// Where each rank has the memory, 0 where it cannot be reached.
    fn addresses(&self, address: CUdeviceptr, window: Option<usize>) -> Result<Vec<CUdeviceptr>>;

    /// Collective, and made once for each number below [`Traits::connections`]: what the library would else do with all ranks
    /// inside the first signal or barrier of one, which is held up then by a rank that comes to it later. The stream waits for all ranks.
    fn connect(&self, _number: usize, _words: &Words, _stream: &Stream) -> Result<()> {
        Ok(())
    }

    /// Collective. Undoes [`register`](Self::register).
    ///
    /// # Safety
    ///
    /// A window of `register`, which no rank uses any more; all ranks are at this call.
    unsafe fn unregister(&self, window: usize) -> Result<()>;

    /// Collective. Gives memory back, by what it is registered as if it is.
    ///
    /// # Safety
    ///
    /// Memory of [`alloc`](Self::alloc) and its window, which no rank uses any more; all ranks are at this call.
    unsafe fn free(&self, address: CUdeviceptr, window: Option<usize>) -> Result<()>;

    /// Collective, and the last call.
    fn close(&self) -> Result<()>;

    /// Nothing in this process uses it any more, and the other ranks are not asked. Nothing, after a [`close`](Self::close).
    fn abandon(&self);

    fn signal(&self, words: &Words, stream: &Stream, to: usize, channel: usize) -> Result<()>;

    fn wait(&self, words: &Words, stream: &Stream, from: usize, channel: usize) -> Result<()>;

    fn barrier(&self, words: &Words, stream: &Stream, channel: usize) -> Result<()>;
}

/// What sets libraries apart.
struct Traits {
    channels: usize,
    /// How many times ranks that have an allocation are to be connected.
    connections: usize,
    /// Whether memory that was never registered is given back by this rank alone.
    frees_alone: bool,
}

/// An allocation that all ranks have.
#[derive(Debug)]
struct Opened {
    window: Option<usize>,
    addresses: Vec<CUdeviceptr>,
}

/// The words of an allocation, on this rank: zero at first, and the library's to use.
#[cfg_attr(not(feature = "nvshmem"), allow(dead_code, reason = "NCCL counts its signals itself"))]
#[derive(Debug)]
struct Words {
    address: CUdeviceptr,
    /// The last signals, by slot: those that were sent, and those that were waited for.
    counts: Mutex<[Vec<u64>; 2]>,
}

impl EngineBackend {
    /// A backend over a library that all ranks have initialised.
    fn over(
        engine: Box<dyn Engine>,
        stream: Stream,
        exchange: Arc<dyn Exchange>,
        calls: Calls,
        timeout: Duration,
    ) -> Self {
        let shared = Arc::new(Shared::new(engine, stream, &*exchange));
        let (calls, allocations) = (Mutex::new(calls), Mutex::default());
        Self { shared, exchange, timeout, calls, allocations }
    }

    /// Frees what is left, with all ranks, and ends the library's part: an instance of NVSHMEM if it was initialised here, a communicator
    /// of NCCL. Every rank has to call it. It waits for work with memory that was freed, for at most half of the backend's timeout.
    ///
    /// # Errors
    ///
    /// [`Error::StillUsed`] on all ranks if one of them has memory in use, after which all may call it again; those of an agreement:
    /// [`Error::Disagrees`], [`Error::Broken`]; [`Error::Engine`]; [`Error::EngineClosed`] from the second time on.
    pub fn close(&self) -> Result<()> {
        refuse_forked()?;
        let (_reports, mut calls) = lock_over_calls(&self.calls);
        loop {
            // Half of what the others wait, so that they hear of it.
            let retired = self.shared.ready(self.timeout / 2);
            let in_use = self.shared.count().saturating_sub(retired.len() as u64);
            let proposal = Proposal { kind: Kind::Close, size: in_use, sequence: 0, retired };
            let agreed = self.agree(&mut calls, proposal)?;
            if let Some((rank, &allocations)) =
                agreed.sizes.iter().enumerate().find(|(_, in_use)| **in_use > 0)
            {
                return Err(Error::StillUsed { rank, allocations });
            }
            if self.shared.count() == 0 {
                break;
            }
        }
        calls.end(&Error::EngineClosed { backend: self.shared.engine.name() });
        self.shared.close()
    }

    fn talk(&self) -> Talk<'_> {
        Talk { exchange: &*self.exchange, backend: self.shared.engine.name(), timeout: self.timeout }
    }

    /// Has all ranks agree on a call, and gives back what all have freed.
    fn agree(&self, calls: &mut Calls, proposal: Proposal) -> Result<Agreed> {
        let agreed = calls.agree(self.talk(), proposal)?;
        self.shared.give_back(&agreed.freed);
        Ok(agreed)
    }

    /// Brings the ranks together over an allocation, all of them being at it.
    fn open(&self, calls: &mut Calls, allocation: &Allocation) -> Result<()> {
        let (shared, address) = (&*self.shared, allocation.address);
        let registered = shared.call(|| shared.engine.register(address, allocation.layout.whole));
        let window = registered.as_ref().ok().copied().flatten();
        let opened = registered.and_then(|window| {
            let addresses = shared.call(|| shared.engine.addresses(address, window))?;
            Ok(Opened { window, addresses })
        });
        let opened = calls.settle(self.talk(), "rendezvous", opened, window.is_some());
        let opened = opened.and_then(|opened| self.connect(calls, allocation).map(|()| opened));
        if let (Err(_), Some(window), false) = (&opened, window, calls.has_ended()) {
            // SAFETY: registered above, and no rank has opened it: all have heard of the failure, and are here.
            shared.note_failure(shared.call(|| unsafe { shared.engine.unregister(window) }));
        }
        // Under the lock of all calls: no other thread was faster.
        let _ = allocation.opened.set(opened?);
        Ok(())
    }

    /// Connects the ranks with the first allocation that all have.
    fn connect(&self, calls: &mut Calls, allocation: &Allocation) -> Result<()> {
        let shared = &*self.shared;
        while calls.connected < shared.engine.traits().connections {
            let stream = &shared.stream;
            let connect = || shared.engine.connect(calls.connected, &allocation.words, stream);
            let connected = shared.call(connect);
            // A stream may wait for a rank that failed: nothing undoes that but the library's end.
            let leaves = connected.is_ok();
            calls.settle(self.talk(), "connect", connected, leaves)?;
            // What was put into it on all ranks. Here a rank may fail alone.
            stream.synchronize().map_err(Error::from).inspect_err(|error| calls.end(error))?;
            calls.connected += 1;
        }
        Ok(())
    }

    fn lying_at(&self, address: CUdeviceptr) -> Result<Arc<Allocation>> {
        let allocations = lock(&self.allocations);
        let found = allocations.range(..=address).next_back();
        let found = found.filter(|(start, found)| address - **start < found.layout.size.max(1) as u64);
        let backend = self.shared.engine.name();
        found.map(|(_, found)| Arc::clone(found)).ok_or(Error::UnknownAddress { address, backend })
    }
}

// SAFETY: what the library gives is counted from then on until it is given back, and each address is given once.
unsafe impl SymmetricBackend for EngineBackend {
    fn name(&self) -> &str {
        self.shared.engine.name()
    }

    /// Every rank has to call it, with the same size: it is collective. Zero bytes are an allocation of their own too.
    ///
    /// # Errors
    ///
    /// [`Error::GroupRefused`] for a group, [`Error::WrongDevice`]; those of an agreement, after which nothing was called:
    /// [`Error::OrderDiffers`], [`Error::Disagrees`], [`Error::Broken`] and others of the exchange; [`Error::Engine`] when the library
    /// has no memory, and [`Error::FailedElsewhere`] or [`Error::Uneven`] when that is so on another rank; [`Error::EngineClosed`].
    fn alloc(&self, size: usize, device: Device, group: Option<&str>) -> Result<Allocated> {
        refuse_forked()?;
        if let Some(group) = group {
            let (backend, group) = (self.name().to_owned(), group.to_owned());
            return Err(Error::GroupRefused { backend, group });
        }
        let accepted = self.shared.context.device();
        accepted.driver().expect_same(device.driver(), "the device")?;
        if device != accepted {
            let (device, accepted) = (device.as_raw(), accepted.as_raw());
            return Err(Error::WrongDevice { group: self.exchange.name().to_owned(), device, accepted });
        }
        let layout = self.shared.layout(size)?;
        let (_reports, mut calls) = lock_over_calls(&self.calls);
        let sequence = calls.allocated;
        let (size, retired) = (size as u64, self.shared.ready(Duration::ZERO));
        self.agree(&mut calls, Proposal { kind: Kind::Alloc, size, sequence, retired })?;
        calls.allocated += 1;
        // From here on the number is taken on all ranks: without memory it is one that was freed.
        let made = Shared::allocate(&self.shared, layout, sequence);
        let leaves = made.is_ok() && !self.shared.engine.traits().frees_alone;
        let made = made.and_then(|allocation| allocation.clear().map(|()| allocation));
        // If it is dropped, it was freed: on all ranks.
        let allocation = calls.settle(self.talk(), "alloc", made, leaves)?;
        let allocated = allocation.allocated();
        lock(&self.allocations).insert(allocated.address, Arc::new(allocation));
        Ok(allocated)
    }

    fn find(&self, address: CUdeviceptr) -> Result<Allocated> {
        refuse_forked()?;
        self.lying_at(address).map(|found| found.allocated())
    }

    /// Waits for nothing: the memory goes back to the library with the first call of all ranks that finds it freed by all, no
    /// [`SymmetricMemory`] of it left on any, and their uses of it over. Such a call does not wait for streams either: a program that needs the room
    /// waits for its streams before it allocates.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAddress`].
    unsafe fn free(&self, allocated: Allocated) -> Result<()> {
        refuse_forked()?;
        let (address, backend) = (allocated.address, self.shared.engine.name());
        let freed = match lock(&self.allocations).entry(address) {
            Entry::Occupied(found) if found.get().allocated() == allocated => Some(found.remove()),
            _ => None,
        };
        freed.map(drop).ok_or(Error::UnknownAddress { address, backend })
    }

    /// Whether it was closed, or ended by a call that not all ranks made. One that is in a call has not ended yet.
    fn has_ended(&self) -> bool {
        !forked() && try_lock(&self.calls).is_some_and(|calls| calls.has_ended())
    }

    /// Every rank has to call it, for the same allocation: the first time is collective. The backend's first one also makes the connections of
    /// NCCL's ranks, so that no signal or barrier waits for another rank on the host.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAddress`], [`Error::WrongGroup`]; [`Error::NotAvailable`] with an NCCL that does not tell addresses of other ranks, which
    /// names the versions; those of an agreement as for [`alloc`](SymmetricBackend::alloc); [`Error::Engine`], [`Error::FailedElsewhere`].
    fn rendezvous(&self, address: CUdeviceptr, group: Option<&str>) -> Result<Arc<dyn SymmetricMemory>> {
        refuse_forked()?;
        let allocated = self.exchange.name();
        if let Some(asked) = group.filter(|name| *name != allocated) {
            return Err(Error::WrongGroup { allocated: allocated.to_owned(), asked: asked.to_owned() });
        }
        let allocation = self.lying_at(address)?;
        if let Some(refusal) = self.shared.engine.refuses_rendezvous() {
            return Err(refusal);
        }
        if allocation.opened.get().is_none() {
            let (_reports, mut calls) = lock_over_calls(&self.calls);
            // Another thread may have been faster.
            if allocation.opened.get().is_none() {
                let (size, sequence) = (allocation.layout.size as u64, allocation.sequence);
                let retired = self.shared.ready(Duration::ZERO);
                self.agree(&mut calls, Proposal { kind: Kind::Rendezvous, size, sequence, retired })?;
                self.open(&mut calls, &allocation)?;
            }
        }
        let offset = usize::try_from(address - allocation.address).unwrap_or(0);
        Ok(Arc::new(EngineMemory::new(allocation, Arc::clone(&self.exchange), offset)))
    }
}

fn number(rank: usize) -> c_int {
    c_int::try_from(rank).unwrap_or(c_int::MAX)
}

fn address(memory: CUdeviceptr) -> *mut c_void {
    ptr::with_exposed_provenance_mut(usize::try_from(memory).unwrap_or(0))
}

crate::impl_debug!(EngineBackend, |it| engine: it.shared.engine, exchange: it.exchange);

//! One allocation of this rank, what becomes of it when it is freed, and what a rank has of it after the rendezvous.
//!
//! Behind the data, from a multiple of 512 bytes on, lie the signal pad and the words of the library's signals. Both are zero when
//! all ranks have come to the rendezvous.
//!
//! # Safety
//!
//! Relies on what `Engine` returns as memory having the bytes that were asked for, until it is given back.

#![allow(unsafe_code, reason = "sets memory at addresses")]

use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::{Context, Driver, Error as CoreError, Stream, Uses, copy, forked};

use super::{Engine, Opened, Words};
use crate::primitive::{lock, refuse_forked};
use crate::symmetric::memory::{self, Operation, Used};
use crate::symmetric::{Allocated, Error, Exchange, Result, SIGNAL_PAD_BYTES, SymmetricMemory};

/// The signal pad begins at a multiple of this.
const GRANULE: usize = 512;

/// Between two looks at a stream at the end.
const PAUSE: Duration = Duration::from_millis(1);

/// What a backend and its allocations have in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) engine: Box<dyn Engine>,
    pub(super) context: Context,
    /// Made before the ranks agree on the start, so that nothing of the library's is there when it fails.
    pub(super) stream: Stream,
    rank: usize,
    ranks: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Allocations that the library has not got back.
    count: u64,
    retired: Vec<Retired>,
    /// The first failure to give something back.
    failed: Option<Error>,
}

/// Memory that this rank has freed.
#[derive(Debug)]
struct Retired {
    sequence: u64,
    /// 0 where the library had no memory.
    address: CUdeviceptr,
    window: Option<usize>,
    uses: Vec<Uses>,
}

impl Retired {
    /// Whether nothing uses the memory any more. What streams, which may be busy for ever, are given after the first question does not count.
    fn is_quiet(&mut self) -> Result<bool, CoreError> {
        let passed = self.uses.iter_mut().map(Uses::have_passed);
        passed.collect::<Result<Vec<_>, _>>().map(|passed| passed.into_iter().all(|has_passed| has_passed))
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) size: usize,
    pad: usize,
    pub(super) whole: usize,
}

#[derive(Debug)]
pub(super) struct Allocation {
    shared: Arc<Shared>,
    pub(super) address: CUdeviceptr,
    pub(super) layout: Layout,
    pub(super) sequence: u64,
    pub(super) words: Words,
    /// Of each rank's memory, by this process.
    uses: Vec<Uses>,
    /// Once all ranks have come together over it.
    pub(super) opened: OnceLock<Opened>,
}

impl Shared {
    pub(super) fn new(engine: Box<dyn Engine>, stream: Stream, exchange: &dyn Exchange) -> Self {
        let (rank, ranks, context) = (exchange.rank(), exchange.world_size(), stream.context().clone());
        Self { engine, context, stream, rank, ranks, state: Mutex::default() }
    }

    /// Calls the library, with the context current.
    pub(super) fn call<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        self.context.with_current(body)?
    }

    pub(super) fn layout(&self, size: usize) -> Result<Layout> {
        let pad = size.checked_next_multiple_of(GRANULE);
        let whole = pad.and_then(|pad| pad.checked_add(SIGNAL_PAD_BYTES + 8 * Operation::words(self.ranks)));
        let too_large = CoreError::TooLarge { count: size, size: 1 };
        let (Some(pad), Some(whole)) = (pad, whole) else { return Err(too_large.into()) };
        Ok(Layout { size, pad, whole })
    }

    /// New memory of the library's, all ranks being at it.
    pub(super) fn allocate(shared: &Arc<Self>, layout: Layout, sequence: u64) -> Result<Allocation> {
        lock(&shared.state).count += 1;
        let address = shared.call(|| shared.engine.alloc(layout.whole)).inspect_err(|_| {
            let retired = Retired { sequence, address: 0, window: None, uses: Vec::new() };
            lock(&shared.state).retired.push(retired);
        })?;
        let counts = || vec![0; Operation::words(shared.ranks)];
        let counts = Mutex::new([counts(), counts()]);
        let words = Words { address: address + (layout.pad + SIGNAL_PAD_BYTES) as u64, counts };
        let uses = (0..shared.ranks).map(|_| Uses::new()).collect();
        let (shared, opened) = (Arc::clone(shared), OnceLock::new());
        Ok(Allocation { shared, address, layout, sequence, words, uses, opened })
    }

    pub(super) fn count(&self) -> u64 {
        lock(&self.state).count
    }

    /// What this rank has freed and does not use any more. What streams still use, or a capturing stream may, stays for later.
    ///
    /// A call of all ranks must not wait for a stream: that may wait for a signal which another rank sends after the call. Only at the end,
    /// behind which nothing comes, it waits with `patience`.
    pub(super) fn ready(&self, patience: Duration) -> Vec<u64> {
        let mut state = lock(&self.state);
        let mut retired = std::mem::take(&mut state.retired);
        // Asked outside the lock, which drops take.
        drop(state);
        retired.sort_by_key(|retired| retired.sequence);
        let start = Instant::now();
        let is_quiet = |retired: &mut Retired| loop {
            match retired.is_quiet() {
                Ok(false) if start.elapsed() < patience => thread::sleep(PAUSE),
                answer => return answer.unwrap_or(false),
            }
        };
        let quiet = |retired: &mut Retired| is_quiet(retired).then_some(retired.sequence);
        let ready = retired.iter_mut().filter_map(quiet).collect();
        lock(&self.state).retired.append(&mut retired);
        ready
    }

    /// Gives back what all ranks have freed, all ranks being at it.
    pub(super) fn give_back(&self, freed: &[u64]) {
        for sequence in freed {
            let mut state = lock(&self.state);
            let found = state.retired.iter().position(|retired| retired.sequence == *sequence);
            let Some(retired) = found.map(|found| state.retired.swap_remove(found)) else { continue };
            state.count = state.count.saturating_sub(1);
            drop(state);
            if retired.address == 0 {
                continue;
            }
            // SAFETY: all ranks have freed it, no stream of theirs uses it, and all are at this call.
            self.note_failure(self.call(|| unsafe { self.engine.free(retired.address, retired.window) }));
        }
    }

    /// What [`close`](Self::close) tells of.
    pub(super) fn note_failure(&self, result: Result<()>) {
        if let Err(error) = result {
            lock(&self.state).failed.get_or_insert(error);
        }
    }

    /// Ends the library's part, all ranks being at it.
    pub(super) fn close(&self) -> Result<()> {
        let failed = lock(&self.state).failed.take();
        let closed = self.call(|| self.engine.close());
        failed.map_or(Ok(()), Err).and(closed)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !forked() {
            // It fails with the context, and then there is nothing to give up either.
            let _ = self.context.with_current(|| self.engine.abandon());
        }
    }
}

impl Allocation {
    pub(super) fn allocated(&self) -> Allocated {
        Allocated { address: self.address, serial: self.sequence }
    }

    pub(super) fn clear(&self) -> Result<()> {
        let (stream, Layout { pad, whole, .. }) = (&self.shared.stream, self.layout);
        // SAFETY: the end of new memory, which no other code uses yet; waited for below.
        let cleared = unsafe { copy::memset_async(stream, self.address + pad as u64, 0, whole - pad) };
        stream.synchronize()?;
        Ok(cleared?)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let window = self.opened.get().and_then(|opened| opened.window);
        let (sequence, address, uses) = (self.sequence, self.address, std::mem::take(&mut self.uses));
        lock(&self.shared.state).retired.push(Retired { sequence, address, window, uses });
    }
}

pub(super) struct EngineMemory {
    allocation: Arc<Allocation>,
    exchange: Arc<dyn Exchange>,
    layout: memory::Layout,
}

impl Used for Allocation {
    fn driver(&self) -> Driver {
        self.shared.context.driver()
    }

    fn uses(&self, rank: usize) -> &Uses {
        // As many as ranks, of which this is one.
        &self.uses[rank]
    }
}

impl EngineMemory {
    pub(super) fn new(allocation: Arc<Allocation>, exchange: Arc<dyn Exchange>, offset: usize) -> Self {
        let Shared { context, rank, ranks, .. } = &*allocation.shared;
        let addresses = allocation.opened.get().map_or(&[][..], |opened| &opened.addresses);
        let part = (allocation.layout.size, offset);
        let layout =
            memory::Layout::new(*rank, *ranks, context.device(), part, |rank| match addresses.get(rank) {
                None | Some(0) => [0; 2],
                Some(address) => [*address, address + allocation.layout.pad as u64],
            });
        Self { allocation, exchange, layout }
    }

    fn shared(&self) -> &Shared {
        &self.allocation.shared
    }

    /// What must hold before anything is put into a stream.
    fn begin(
        &self,
        call: &'static str,
        stream: &Stream,
        rank: usize,
        channel: usize,
        timeout: Option<Duration>,
    ) -> Result<&dyn Engine> {
        refuse_forked()?;
        let engine = &*self.shared().engine;
        self.layout.begin(call, stream, rank, (channel, engine.traits().channels))?;
        if timeout.is_some() {
            let what = "timeout of a stream's wait, which only the library could end";
            return Err(Error::NotSupported { backend: engine.name(), what });
        }
        if stream.context() != &self.shared().context {
            return Err(CoreError::ForeignContext { what: "the stream" }.into());
        }
        self.check()?;
        Ok(engine)
    }

    /// Calls the library, as a user of this rank's memory.
    fn enqueue(&self, stream: &Stream, body: impl FnOnce() -> Result<()>) -> Result<()> {
        let open = self.allocation.uses[self.rank()].on(self.allocation.address, stream)?;
        let done = self.shared().call(body);
        drop(open);
        done
    }
}

impl SymmetricMemory for EngineMemory {
    fn layout(&self) -> &memory::Layout {
        &self.layout
    }

    fn owner(&self) -> Arc<dyn Used> {
        Arc::<Allocation>::clone(&self.allocation)
    }

    fn check(&self) -> Result<()> {
        self.exchange.check()
    }

    fn barrier(&self, stream: &Stream, channel: usize, timeout: Option<Duration>) -> Result<()> {
        let engine = self.begin("barrier", stream, self.rank(), channel, timeout)?;
        self.enqueue(stream, || engine.barrier(&self.allocation.words, stream, channel))
    }

    fn put_signal(&self, stream: &Stream, to: usize, channel: usize) -> Result<()> {
        let engine = self.begin("put_signal", stream, to, channel, None)?;
        self.enqueue(stream, || engine.signal(&self.allocation.words, stream, to, channel))
    }

    fn wait_signal(
        &self,
        stream: &Stream,
        from: usize,
        channel: usize,
        timeout: Option<Duration>,
    ) -> Result<()> {
        let engine = self.begin("wait_signal", stream, from, channel, timeout)?;
        self.enqueue(stream, || engine.wait(&self.allocation.words, stream, from, channel))
    }
}

crate::impl_debug!(EngineMemory, |it| engine: it.shared().engine, allocation: it.allocation.sequence, layout: it.layout);

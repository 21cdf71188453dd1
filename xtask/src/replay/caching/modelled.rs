//! The crate's own growth and ladder over the model, without threads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, anyhow, ensure};
use cuda_mem_pool::paged::{Climb, Replay, block_size, climb, goes_first};

use super::super::candidate::{Candidate, Refused, Tally};
use super::super::model::{Fence, Model, Refusal};
use super::super::uses::Uses;
use super::pages::Pages;

/// The memory of the device whose handles are replayed.
const DEVICE: usize = 80 << 30;

/// The engine over a model.
pub(crate) struct Modelled {
    model: Arc<Model>,
    inner: Mutex<Inner>,
}

struct Inner {
    engine: Replay<Pages>,
    /// The heap of each stream.
    numbers: HashMap<u64, u32>,
    /// Given-out blocks by address.
    live: HashMap<u64, Owned>,
    /// Freed ones that another stream still uses.
    pending: Uses<Owned>,
    retries: u64,
    metadata: usize,
}

/// A block by the numbers of its heap and in it, and the bytes that were asked for.
#[derive(Debug, Clone, Copy)]
struct Owned {
    heap: u32,
    number: u32,
    bytes: usize,
}

impl Modelled {
    pub(crate) fn new(model: Arc<Model>, moves: bool) -> Self {
        let pages = Pages { model: Arc::clone(&model), streams: Vec::new() };
        let limit = usize::try_from(model.capacity()).unwrap_or(usize::MAX);
        let inner = Inner {
            engine: Replay::new(pages, DEVICE, limit, moves),
            numbers: HashMap::new(),
            live: HashMap::new(),
            pending: Uses::default(),
            retries: 0,
            metadata: 0,
        };
        Self { model, inner: Mutex::new(inner) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// The number of a stream's heap, which is made when the stream comes for the first time.
    fn heap(&mut self, stream: u64) -> u32 {
        *self.numbers.entry(stream).or_insert_with(|| {
            self.engine.backend().streams.push(stream);
            self.engine.add_heap()
        })
    }

    /// A block's number and its address.
    fn allocate(&mut self, model: &Model, heap: u32, bytes: usize) -> Result<(u32, u64), Refused> {
        // As the allocator does: of what other streams are done with some comes back first, and all before more is asked for.
        let size = |bytes| block_size(bytes).unwrap_or(usize::MAX);
        self.take_done(model, |owned| owned.heap == heap && goes_first(size(owned.bytes), size(bytes)))?;
        if let Some(block) = self.engine.allocate(heap, bytes) {
            return Ok(block);
        }
        self.take_done(model, |_| true)?;
        let block = match self.engine.grow(heap, bytes).map_err(refused)? {
            Some(block) => block,
            None => {
                self.retries += 1;
                climb(&mut Climber { inner: self, model, heap, bytes })?.ok_or(Refused::OutOfMemory)?
            }
        };
        let live = self.live.capacity() * size_of::<(u64, Owned)>();
        self.metadata = self.metadata.max(self.engine.metadata_bytes() + live);
        Ok(block)
    }

    /// A freed block is free now.
    fn complete(&mut self, owned: Owned) -> Result<()> {
        ensure!(self.engine.free(owned.heap, owned.number), "{owned:?} is not the heap's");
        Ok(())
    }

    fn take_done(&mut self, model: &Model, is_wanted: impl Fn(&Owned) -> bool) -> Result<()> {
        let done = self.pending.take_done(model, is_wanted);
        done.into_iter().try_for_each(|owned| self.complete(owned))
    }
}

/// What the engine says where it fails.
fn refused(refusal: Option<Refusal>) -> Refused {
    match refusal {
        Some(refusal) => refusal.into(),
        None => anyhow!("the engine's records have a fault").into(),
    }
}

/// A request that climbs the ladder.
struct Climber<'i> {
    inner: &'i mut Inner,
    model: &'i Model,
    heap: u32,
    bytes: usize,
}

impl Climb for Climber<'_> {
    type Found = (u32, u64);
    type Error = Refused;

    fn take_elsewhere(&mut self) -> Result<bool, Refused> {
        self.inner.take_done(self.model, |_| true)?;
        self.inner.engine.trim(self.heap, self.bytes).map_err(refused)?;
        Ok(true)
    }

    fn take_pending(&mut self) -> Result<bool, Refused> {
        let Self { inner, model, .. } = self;
        let pending: Vec<(Fence, Owned)> = inner.pending.take();
        let helped = !pending.is_empty();
        for (fence, owned) in pending {
            let stream = inner.engine.backend().stream(owned.heap)?;
            model.make_wait(stream, &fence);
            inner.complete(owned)?;
        }
        Ok(helped)
    }

    fn wait(&mut self) -> Result<bool, Refused> {
        for stream in self.inner.engine.backend().streams.clone() {
            self.model.wait(&self.model.record(stream));
        }
        self.inner.engine.trim(self.heap, self.bytes).map_err(refused)?;
        Ok(true)
    }

    fn attempt(&mut self) -> Result<Option<(u32, u64)>, Refused> {
        self.inner.engine.grow(self.heap, self.bytes).map_err(refused)
    }
}

impl Candidate for Modelled {
    fn allocate(&self, size: u64, stream: u64) -> Result<u64, Refused> {
        let mut inner = self.inner();
        let bytes = usize::try_from(size).map_err(anyhow::Error::from)?;
        let heap = inner.heap(stream);
        let (number, address) = inner.allocate(&self.model, heap, bytes)?;
        inner.live.insert(address, Owned { heap, number, bytes });
        Ok(address)
    }

    fn free(&self, address: u64, side: Option<u64>) -> Result<(), Refused> {
        let mut inner = self.inner();
        let owned = inner.live.remove(&address).with_context(|| format!("no block at {address}"))?;
        match side {
            None => inner.complete(owned)?,
            Some(side) => inner.pending.add(self.model.record(side), owned),
        }
        Ok(())
    }

    fn tally(&self) -> Result<Tally> {
        let inner = self.inner();
        Ok(Tally { retries: inner.retries, metadata_bytes: inner.metadata as u64, unconfirmed: None })
    }
}

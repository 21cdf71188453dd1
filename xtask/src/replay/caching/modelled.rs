//! The crate's own growth and ladder over the model, without threads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, anyhow};
use cuda_mem_pool::paged::{
    Block, Climb, GrowError, Heaps, Load, NoIndex, PageSource, Policy, Step, StreamHeap, Wanted, block_size,
    climb,
};

use super::super::candidate::{Candidate, Refused, Tally};
use super::super::model::{Fence, Model, Refusal};
use super::super::uses::Uses;
use super::pages::Pages;

/// The memory of the device whose handles are replayed.
const DEVICE: usize = 80 << 30;

/// The engine over a model.
pub(super) struct Modelled {
    model: Arc<Model>,
    inner: Mutex<Inner>,
}

struct Inner {
    source: PageSource<Pages>,
    heaps: AllHeaps,
    /// The heap of each stream.
    numbers: HashMap<u64, u32>,
    /// Given-out blocks by address, with their heaps.
    live: HashMap<u64, Owned>,
    /// Freed ones that another stream still uses.
    pending: Uses<Owned>,
    load: Load,
    retries: u64,
    metadata: usize,
}

#[derive(Debug, Clone, Copy)]
struct Owned {
    heap: u32,
    block: Block,
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
struct Request {
    heap: u32,
    size: usize,
    unused: usize,
}

impl Modelled {
    pub(super) fn new(model: Arc<Model>, moves: bool) -> Self {
        let pages = Pages { model: Arc::clone(&model), streams: Vec::new() };
        let limit = usize::try_from(model.capacity()).unwrap_or(usize::MAX);
        let policy = Policy::for_memory(DEVICE.min(limit)).with_moves(moves);
        let mut source = PageSource::new(pages, policy, DEVICE as u64);
        source.set_limit(limit);
        let inner = Inner {
            source,
            heaps: AllHeaps(Vec::new()),
            numbers: HashMap::new(),
            live: HashMap::new(),
            pending: Uses::default(),
            load: Load { active: 0, peak: 0 },
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
            self.heaps.0.push(StreamHeap::new());
            self.source.backend_mut().streams.push(stream);
            self.heaps.0.len() as u32 - 1
        })
    }

    fn allocate(&mut self, model: &Model, request: Request) -> Result<Block, Refused> {
        let Request { heap, size, unused } = request;
        // As the allocator does: what other streams are done with comes back before more is asked for.
        let found = self.heaps.with(heap, |heap| heap.allocate(size, unused, &NoIndex)).flatten();
        if let Some(block) = found {
            return Ok(block);
        }
        self.take_done(model)?;
        let block = match self.attempt(request)? {
            Some(block) => block,
            None => {
                self.retries += 1;
                climb(&mut Climber { inner: self, model, request })?.ok_or(Refused::OutOfMemory)?
            }
        };
        let heaps = self.heaps.0.iter().map(StreamHeap::metadata_bytes).sum::<usize>();
        let live = self.live.capacity() * size_of::<(u64, Owned)>();
        self.metadata = self.metadata.max(self.source.metadata_bytes() + heaps + live);
        Ok(block)
    }

    fn attempt(&mut self, Request { heap, size, unused }: Request) -> Result<Option<Block>, Refused> {
        let wanted = Wanted { size, unused, load: self.load };
        match self.source.grow(heap, &mut self.heaps, wanted, &NoIndex) {
            Ok(block) => Ok(Some(block)),
            Err(GrowError::OutOfMemory | GrowError::Backend(Refusal::OutOfMemory)) => Ok(None),
            Err(GrowError::Backend(refusal)) => Err(refusal.into()),
            Err(error) => Err(anyhow!("{error:?}").into()),
        }
    }

    /// A freed block is free now.
    fn complete(&mut self, owned: Owned) -> Result<()> {
        let freed = self.heaps.with(owned.heap, |heap| heap.free(owned.block.number, &NoIndex)).flatten();
        freed.with_context(|| format!("{owned:?} is not the heap's"))?;
        self.load.active -= owned.block.size;
        Ok(())
    }

    fn take_done(&mut self, model: &Model) -> Result<()> {
        let done = self.pending.take_done(model);
        done.into_iter().try_for_each(|owned| self.complete(owned))
    }

    /// Gives free handles back that the device is done with, until as much as is asked for.
    fn trim(&mut self, request: Request) -> Result<()> {
        let (mut bytes, own) = (0, request.heap);
        let others = self.heaps.others(own);
        for heap in std::iter::once(own).chain(others) {
            if bytes >= request.size {
                break;
            }
            let released = self.source.release_free(heap, &mut self.heaps, request.size - bytes);
            bytes += released.map_err(|error| anyhow!("giving memory back: {error:?}"))?;
        }
        Ok(())
    }
}

/// A request that climbs the ladder.
struct Climber<'i> {
    inner: &'i mut Inner,
    model: &'i Model,
    request: Request,
}

impl Climb for Climber<'_> {
    type Found = Block;
    type Error = Refused;

    fn take(&mut self, step: Step) -> Result<bool, Refused> {
        let Self { inner, model, request } = self;
        match step {
            Step::Elsewhere => {
                inner.take_done(model)?;
                inner.heaps.0.iter_mut().for_each(|heap| _ = heap.coalesce(&NoIndex));
                inner.trim(*request)?;
                Ok(true)
            }
            Step::ReleasedPools => Ok(false),
            Step::PendingBlocks => {
                let pending: Vec<(Fence, Owned)> = inner.pending.take_if(|_| true);
                let helped = !pending.is_empty();
                for (fence, owned) in pending {
                    let stream = inner.source.backend().stream(owned.heap)?;
                    model.hold_up(stream, &fence);
                    inner.complete(owned)?;
                }
                Ok(helped)
            }
            Step::HostWait => {
                for stream in inner.source.backend().streams.clone() {
                    model.wait(&model.record(stream));
                }
                inner.heaps.0.iter_mut().for_each(|heap| _ = heap.coalesce(&NoIndex));
                inner.trim(*request)?;
                Ok(true)
            }
        }
    }

    fn attempt(&mut self) -> Result<Option<Block>, Refused> {
        self.inner.attempt(self.request)
    }

    fn ask_program(&mut self) -> bool {
        false
    }
}

/// The heaps of all streams, by number.
struct AllHeaps(Vec<StreamHeap>);

impl Heaps for AllHeaps {
    fn others(&self, but: u32) -> Vec<u32> {
        (0..self.0.len() as u32).filter(|number| *number != but).collect()
    }

    fn with<R>(&mut self, heap: u32, body: impl FnOnce(&mut StreamHeap) -> R) -> Option<R> {
        self.0.get_mut(heap as usize).map(body)
    }

    fn with_coalesced<R>(&mut self, heap: u32, body: impl FnOnce(&mut StreamHeap) -> R) -> Option<R> {
        self.with(heap, |heap| {
            heap.coalesce(&NoIndex);
            body(heap)
        })
    }
}

impl Candidate for Modelled {
    fn allocate(&self, size: u64, stream: u64) -> Result<u64, Refused> {
        let mut inner = self.inner();
        let requested = usize::try_from(size).map_err(anyhow::Error::from)?;
        let size = block_size(requested).ok_or(Refused::OutOfMemory)?;
        let heap = inner.heap(stream);
        let block = inner.allocate(&self.model, Request { heap, size, unused: size - requested })?;
        inner.load.active += block.size;
        inner.load.peak = inner.load.peak.max(inner.load.active);
        inner.live.insert(block.address, Owned { heap, block });
        Ok(block.address)
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

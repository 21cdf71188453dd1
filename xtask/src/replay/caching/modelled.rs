//! The pages' engine over the model, as the allocator drives it: the same steps in the same order, without threads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, anyhow};
use cuda_mem_pool::paged::{
    Block, GrowError, Heaps, Load, NoIndex, PageSource, Policy, StreamHeap, Wanted, block_size,
};

use super::super::candidate::{Candidate, Refused, Tally};
use super::super::model::{Fence, Model, Refusal};
use super::super::uses::Uses;
use super::pages::Pages;

/// Addresses that are reserved at once: sixteen times the memory of an H200.
const RANGE: u64 = 16 * (143_771 << 20);

/// What memory is made in.
const PAGE: usize = 2 << 20;

/// The engine, and what the allocator has around it.
pub(super) struct Modelled {
    model: Arc<Model>,
    inner: Mutex<Inner>,
}

struct Inner {
    source: PageSource<Pages>,
    heaps: Vec<StreamHeap>,
    /// The heap of each stream.
    numbers: HashMap<u64, usize>,
    /// Given-out blocks by address, with their heaps.
    live: HashMap<u64, Owned>,
    /// Freed ones that another stream still uses.
    pending: Uses<Waiting>,
    load: Load,
    retries: u64,
    metadata: usize,
}

#[derive(Debug, Clone, Copy)]
struct Owned {
    heap: usize,
    block: Block,
}

/// A freed block that another stream still uses.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    owned: Owned,
    /// Where its own stream stood when it was freed.
    own: Fence,
}

/// What is asked for.
#[derive(Debug, Clone, Copy)]
struct Request {
    size: usize,
    unused: usize,
}

impl Modelled {
    pub(super) fn new(model: Arc<Model>, moves: bool) -> Self {
        let pages = Pages { model: Arc::clone(&model), streams: Vec::new() };
        let mut source = PageSource::new(pages, Policy::DEFAULT.with_moves(moves), RANGE);
        // As on a device, whose allocator is told what it may have.
        source.set_limit(usize::try_from(model.capacity()).unwrap_or(usize::MAX));
        let inner = Inner {
            source,
            heaps: Vec::new(),
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
    fn heap(&mut self, stream: u64) -> usize {
        *self.numbers.entry(stream).or_insert_with(|| {
            self.heaps.push(StreamHeap::new());
            self.source.backend_mut().streams.push(stream);
            self.heaps.len() - 1
        })
    }

    /// A freed block is free now.
    fn complete(&mut self, owned: Owned) -> Result<()> {
        let heap = self.heaps.get_mut(owned.heap).context("a heap is gone")?;
        heap.free(owned.block.number, &NoIndex).with_context(|| format!("{owned:?} is not the heap's"))?;
        self.load.active -= owned.block.size;
        Ok(())
    }

    /// A block after more memory was got.
    fn grow(&mut self, model: &Model, heap: usize, request: Request) -> Result<Block, Refused> {
        for waiting in self.pending.take_done(model) {
            self.complete(waiting.owned)?;
        }
        self.catch_up(model, heap)?;
        let block = match self.try_grow(heap, request)? {
            Some(block) => block,
            None => self.climb(model, heap, request)?.ok_or(Refused::OutOfMemory)?,
        };
        let heaps = self.heaps.iter().map(StreamHeap::metadata_bytes).sum::<usize>();
        let live = self.live.capacity() * size_of::<(u64, Owned)>();
        self.metadata = self.metadata.max(self.source.metadata_bytes() + heaps + live);
        Ok(block)
    }

    /// As the allocator does: the oldest, but for a part of what is active.
    fn catch_up(&mut self, model: &Model, heap: usize) -> Result<()> {
        let all = self.pending.iter().map(|waiting| waiting.owned.block.size);
        let mut excess = all.sum::<usize>().saturating_sub(self.load.active / Policy::WAITS_ON);
        let behind = self.pending.take_if(|waiting| {
            let is_taken = excess > 0 && waiting.owned.heap == heap && !model.is_complete(&waiting.own);
            if is_taken {
                excess = excess.saturating_sub(waiting.owned.block.size);
            }
            is_taken
        });
        self.hold_up(model, behind)
    }

    /// One attempt: None if there is no memory for it.
    fn try_grow(&mut self, number: usize, Request { size, unused }: Request) -> Result<Option<Block>> {
        let (before, rest) = self.heaps.split_at_mut(number);
        let (mine, after) = rest.split_first_mut().context("a heap is gone")?;
        if let Some(block) = mine.allocate(size, unused, &NoIndex) {
            return Ok(Some(block));
        }
        let mut others = Others { before, after };
        let wanted = Wanted { size, unused, load: self.load };
        match self.source.grow(number as u32, mine, &mut others, wanted, &NoIndex) {
            Ok(block) => Ok(Some(block)),
            Err(GrowError::OutOfMemory | GrowError::Backend(Refusal::OutOfMemory)) => Ok(None),
            Err(GrowError::Backend(refusal)) => Err(refusal.into()),
            Err(GrowError::NoNumbers) => Err(anyhow!("the engine's books are full")),
            Err(GrowError::InUse { address }) => Err(anyhow!("{address:#x} was to be mapped over a block")),
        }
    }

    /// What is tried when there is no memory, step by step.
    fn climb(&mut self, model: &Model, heap: usize, request: Request) -> Result<Option<Block>> {
        self.retries += 1;
        for heap in &mut self.heaps {
            heap.release_spare_pages(&NoIndex);
        }
        if let Some(block) = self.try_grow(heap, request)? {
            return Ok(Some(block));
        }
        if self.trim(heap, request)?
            && let Some(block) = self.try_grow(heap, request)?
        {
            return Ok(Some(block));
        }
        // What another stream uses: its own stream waits for that instead, on the device.
        let all = self.pending.take_if(|_| true);
        self.hold_up(model, all)?;
        self.try_grow(heap, request)
    }

    /// Gives free memory back that the device is done with, the own heap's first, and no more than is asked for: whether there was any.
    fn trim(&mut self, own: usize, request: Request) -> Result<bool> {
        // A small block needs a page wherever its addresses begin.
        let enough = request.size.saturating_add(2 * PAGE);
        let others = (0..self.heaps.len()).filter(|heap| *heap != own);
        let mut bytes = 0usize;
        for number in std::iter::once(own).chain(others) {
            if bytes >= enough {
                break;
            }
            let heap = self.heaps.get_mut(number).context("a heap is gone")?;
            let released = self.source.release_free(number as u32, heap, 0);
            bytes += released.map_err(|error| anyhow!("giving memory back: {error:?}"))?;
        }
        Ok(bytes > 0)
    }

    /// Has the streams of blocks wait for what other streams do with them, on the device.
    fn hold_up(&mut self, model: &Model, blocks: Vec<(Fence, Waiting)>) -> Result<()> {
        for (fence, waiting) in blocks {
            let streams = &self.source.backend().streams;
            model.hold_up(*streams.get(waiting.owned.heap).context("a heap without a stream")?, &fence);
            self.complete(waiting.owned)?;
        }
        Ok(())
    }
}

/// All heaps but one, which lies between them.
struct Others<'h> {
    before: &'h mut [StreamHeap],
    after: &'h mut [StreamHeap],
}

impl Heaps for Others<'_> {
    fn others(&self) -> Vec<u32> {
        let mine = self.before.len();
        (0..=mine + self.after.len()).filter(|number| *number != mine).map(|number| number as u32).collect()
    }

    fn with<R>(&mut self, heap: u32, body: impl FnOnce(&mut StreamHeap) -> R) -> Option<R> {
        let (heap, mine) = (heap as usize, self.before.len());
        let found = match heap.checked_sub(mine + 1) {
            Some(place) => self.after.get_mut(place),
            None => self.before.get_mut(heap),
        };
        found.map(body)
    }
}

impl Candidate for Modelled {
    fn allocate(&self, size: u64, stream: u64) -> Result<u64, Refused> {
        let mut inner = self.inner();
        let requested = usize::try_from(size).map_err(anyhow::Error::from)?;
        let size = block_size(requested).ok_or(Refused::OutOfMemory)?;
        let request = Request { size, unused: size - requested };
        let heap = inner.heap(stream);
        let found = inner.heaps.get_mut(heap).and_then(|heap| heap.allocate(size, request.unused, &NoIndex));
        let block = match found {
            Some(block) => block,
            None => inner.grow(&self.model, heap, request)?,
        };
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
            Some(side) => {
                let stream = inner.source.backend().streams.get(owned.heap).copied();
                let own = self.model.record(stream.context("a heap without a stream")?);
                inner.pending.add(self.model.record(side), Waiting { owned, own });
            }
        }
        Ok(())
    }

    fn tally(&self) -> Result<Tally> {
        let inner = self.inner();
        Ok(Tally { retries: inner.retries, metadata_bytes: inner.metadata as u64, unconfirmed: None })
    }
}

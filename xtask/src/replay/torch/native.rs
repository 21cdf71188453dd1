//! PyTorch's allocator as it is without settings: the pool crate's segment layout over `cuMemAlloc`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result};
use cuda_mem_pool::segments::{
    Allocation, Block, BlockId, Options, SegmentError, SegmentHeap, SegmentRequest,
};

use super::super::candidate::{Candidate, Refused, Tally};
use super::super::model::{Model, Refusal};
use super::super::uses::Uses;

/// The model of it.
pub(crate) struct Native {
    model: Arc<Model>,
    inner: Mutex<Inner>,
}

struct Inner {
    heap: SegmentHeap,
    /// Given-out blocks by address.
    live: HashMap<u64, BlockId>,
    used: Uses<BlockId>,
    retries: u64,
}

impl Native {
    pub(crate) fn new(model: Arc<Model>) -> Self {
        let heap = SegmentHeap::new(Options::default());
        let inner = Inner { heap, live: HashMap::new(), used: Uses::default(), retries: 0 };
        Self { model, inner: Mutex::new(inner) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Memory for a segment, at the second try after all that is free was given back.
    fn segment(&mut self, model: &Model, wanted: &SegmentRequest) -> Result<u64, Refused> {
        match model.malloc(wanted.bytes()) {
            Err(Refusal::OutOfMemory) => {}
            got => return Ok(got?),
        }
        self.retries += 1;
        for block in self.used.wait(model) {
            self.heap.complete(block).map_err(anyhow::Error::from)?;
        }
        for segment in self.heap.release_cached() {
            model.malloc_free(segment.address)?;
        }
        Ok(model.malloc(wanted.bytes())?)
    }
}

impl Candidate for Native {
    fn allocate(&self, size: u64, stream: u64) -> Result<u64, Refused> {
        let mut inner = self.inner();
        for block in inner.used.take_done(&self.model) {
            inner.heap.complete(block).map_err(anyhow::Error::from)?;
        }
        let block = match inner.heap.allocate(stream, size) {
            // More than there are addresses is more than there is memory.
            Err(SegmentError::TooLarge { .. }) => return Err(Refused::OutOfMemory),
            Err(error) => return Err(Refused::Failed(error.into())),
            Ok(Allocation::Hit(block)) => block,
            Ok(Allocation::Miss(wanted)) => {
                let address = inner.segment(&self.model, &wanted)?;
                inner.heap.add_segment(&wanted, address).map_err(anyhow::Error::from)?
            }
        };
        inner.live.insert(block.address(), block);
        Ok(block.address())
    }

    fn free(&self, address: u64, side: Option<u64>) -> Result<(), Refused> {
        let mut inner = self.inner();
        let block = inner.live.remove(&address).with_context(|| format!("no block at {address}"))?;
        let freed = match side {
            None => inner.heap.free(block),
            Some(side) => {
                inner.used.add(self.model.record(side), block);
                inner.heap.free_pending(block)
            }
        };
        freed.map_err(anyhow::Error::from)?;
        Ok(())
    }

    fn tally(&self) -> Result<Tally> {
        let inner = self.inner();
        // Blocks stay where they once were: at the end there are about as many as ever.
        let blocks = inner.heap.segments().map(|segment| segment.blocks().count()).sum::<usize>();
        let bytes = blocks * size_of::<Block>() + inner.live.capacity() * size_of::<(u64, BlockId)>();
        Ok(Tally { retries: inner.retries, metadata_bytes: bytes as u64, unconfirmed: None })
    }
}

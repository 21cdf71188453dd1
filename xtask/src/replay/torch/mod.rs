//! PyTorch's two policies as models of ours: what the peers would reserve for a trace, without a GPU.
//!
//! Both keep blocks in an order by (stream, size, address) and give the best fitting one of the same stream; what is left of
//! it stays free. Small blocks, up to 1 MiB, and large ones never share memory. Where nothing fits, `native` allocates a
//! segment of 2 MiB, 20 MiB or a multiple of 2 MiB, and `expandable` maps more chunks behind what a stream has. Blocks that
//! another stream used wait until its event has completed. Memory goes back only when there is no more of it.

mod blocks;
mod cache;
mod expandable;
mod native;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;

use super::candidate::{Candidate, Refused, Tally};
use super::model::{Model, Refusal};
use blocks::Pool;
use cache::Cache;

const MIB: u64 = 1 << 20;
/// The largest block of the small pool.
const SMALL_SIZE: u64 = MIB;
/// Physical memory of the small pool comes in such pieces.
const SMALL_BUFFER: u64 = 2 * MIB;
/// And of the large pool in these, unless more is asked for at once.
const LARGE_BUFFER: u64 = 20 * MIB;
/// Requests from here on get a segment of their own size.
const MIN_LARGE_ALLOC: u64 = 10 * MIB;
/// Rounded up to this.
const ROUND_LARGE: u64 = 2 * MIB;

/// How a policy gets memory and gives it back.
trait Policy: Send {
    /// More memory, so that a free block of `size` bytes is there; its number.
    fn grow(&mut self, cache: &mut Cache, model: &Model, pool: Pool, size: u64) -> Result<usize, Refusal>;

    /// Gives back what is wholly free.
    fn shrink(&mut self, cache: &mut Cache, model: &Model) -> Result<(), Refusal>;

    /// Whether what is left of a block of this pool is worth a block.
    fn splits(&self, pool: Pool, rest: u64) -> bool;

    /// The block to take, where `best` fits best.
    fn choose(&self, _cache: &Cache, _pool: Pool, best: usize) -> usize {
        best
    }
}

/// PyTorch's allocator with a policy.
pub(crate) struct Torch {
    model: Arc<Model>,
    inner: Mutex<Inner>,
}

struct Inner {
    cache: Cache,
    policy: Box<dyn Policy>,
    retries: u64,
    metadata: u64,
}

impl Torch {
    /// As it is without settings.
    pub(crate) fn native(model: Arc<Model>) -> Self {
        Self::new(model, Box::new(native::Native))
    }

    /// With `expandable_segments:True`.
    pub(crate) fn expandable(model: Arc<Model>) -> Self {
        Self::new(model, Box::new(expandable::Expandable::default()))
    }

    fn new(model: Arc<Model>, policy: Box<dyn Policy>) -> Self {
        let inner = Inner { cache: Cache::default(), policy, retries: 0, metadata: 0 };
        Self { model, inner: Mutex::new(inner) }
    }
}

impl Inner {
    fn allocate(&mut self, model: &Model, size: u64, stream: u64) -> Result<u64, Refusal> {
        let Self { cache, policy, retries, metadata } = self;
        cache.collect(model);
        let size = super::plan::rounded(size);
        let pool = Pool { stream, is_small: size <= SMALL_SIZE };
        let found = match cache.best_fit(pool, size) {
            Some(best) => policy.choose(cache, pool, best),
            None => match policy.grow(cache, model, pool, size) {
                Ok(grown) => grown,
                Err(Refusal::OutOfMemory) => {
                    *retries += 1;
                    cache.wait_for_uses(model);
                    policy.shrink(cache, model)?;
                    policy.grow(cache, model, pool, size)?
                }
                Err(wrong) => return Err(wrong),
            },
        };
        let rest = cache.block(found).size - size;
        let address = cache.take(found, size, policy.splits(pool, rest));
        *metadata = cache.metadata_bytes().max(*metadata);
        Ok(address)
    }
}

impl Candidate for Torch {
    fn allocate(&self, size: u64, stream: u64) -> Result<u64, Refused> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(inner.allocate(&self.model, size, stream)?)
    }

    fn free(&self, address: u64, side: Option<u64>) -> Result<(), Refused> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let used = side.map(|side| self.model.record(side));
        inner.cache.free(address, used).map_err(Refused::from)
    }

    fn tally(&self) -> Result<Tally> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Tally { retries: inner.retries, metadata_bytes: inner.metadata })
    }
}

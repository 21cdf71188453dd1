//! PyTorch's two policies as models: what the peers would reserve for a trace, without a GPU.
//!
//! Both give the best fitting free block by stream, size and address, and what is left of it stays free. Small blocks, up to
//! 1 MiB, and large ones never share memory. Where nothing fits, [`Native`] allocates a segment, and [`Expandable`] maps more
//! chunks behind what a stream has. Blocks that another stream used wait until its event has completed. Memory goes back only
//! when there is no more of it.

mod blocks;
mod cache;
mod policies;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;

use super::candidate::{Candidate, Refused, Tally};
use super::model::{Model, Refusal};
use super::plan::rounded;
use super::uses::Uses;
use blocks::{Pool, State};
use cache::Cache;

pub(crate) use policies::{Expandable, Native};

/// The largest block of the small pool.
const SMALL_SIZE: u64 = 1 << 20;
/// From here on there are no such addresses.
const MOST: u64 = 1 << 60;

/// What the policies differ in.
pub(crate) trait Policy: Default + Send {
    /// The free block to take, of those that fit: `best` or one behind it.
    fn choose(_cache: &Cache, _pool: Pool, best: usize) -> usize {
        best
    }

    /// How much of a free block of `held` bytes a block of `size` bytes gets.
    fn cut(_pool: Pool, size: u64, _held: u64) -> u64 {
        size
    }

    /// More memory: a free block of so many bytes at least.
    fn grow(&mut self, cache: &mut Cache, model: &Model, pool: Pool, size: u64) -> Result<usize, Refusal>;

    /// Gives back what is free.
    fn shrink(&mut self, cache: &mut Cache, model: &Model) -> Result<(), Refusal>;
}

/// The model of PyTorch's allocator with one of its policies.
pub(crate) struct Torch<P> {
    model: Arc<Model>,
    inner: Mutex<Inner<P>>,
}

#[derive(Debug, Default)]
struct Inner<P> {
    policy: P,
    cache: Cache,
    used: Uses<usize>,
    retries: u64,
    metadata: u64,
}

impl<P: Policy> Inner<P> {
    fn allocate(&mut self, model: &Model, size: u64, stream: u64) -> Result<u64, Refusal> {
        let Self { policy, cache, used, .. } = self;
        for number in used.take_done(model, |_| true) {
            cache.turn(number, State::Free);
        }
        if size >= MOST {
            return Err(Refusal::OutOfMemory);
        }
        let size = rounded(size);
        let pool = Pool { stream, is_small: size <= SMALL_SIZE };
        let found = match cache.best_fit(pool, size) {
            Some(best) => P::choose(cache, pool, best),
            None => match policy.grow(cache, model, pool, size) {
                Err(Refusal::OutOfMemory) => {
                    self.retries += 1;
                    for number in used.wait(model) {
                        cache.turn(number, State::Free);
                    }
                    policy.shrink(cache, model)?;
                    policy.grow(cache, model, pool, size)?
                }
                grown => grown?,
            },
        };
        let address = cache.take(found, P::cut(pool, size, cache.block(found).size));
        self.metadata = cache.metadata_bytes().max(self.metadata);
        Ok(address)
    }
}

impl<P: Policy> Torch<P> {
    pub(crate) fn new(model: Arc<Model>) -> Self {
        Self { model, inner: Mutex::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner<P>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Policy> Candidate for Torch<P> {
    fn allocate(&self, size: u64, stream: u64) -> Result<u64, Refused> {
        Ok(self.inner().allocate(&self.model, size, stream)?)
    }

    fn free(&self, address: u64, side: Option<u64>) -> Result<(), Refused> {
        let mut inner = self.inner();
        let number = inner.cache.take_back(address)?;
        match side {
            None => {
                inner.cache.turn(number, State::Free);
            }
            Some(side) => inner.used.add(self.model.record(side), number),
        }
        Ok(())
    }

    fn tally(&self) -> Result<Tally> {
        let inner = self.inner();
        Ok(Tally { retries: inner.retries, metadata_bytes: inner.metadata, unconfirmed: None })
    }
}

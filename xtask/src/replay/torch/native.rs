//! PyTorch's allocator as it is without settings: best fit in segments of `cuMemAlloc`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;

use super::super::candidate::{Candidate, Refused, Tally};
use super::super::model::{Model, Refusal};
use super::super::plan::rounded;
use super::super::uses::Uses;
use super::blocks::{Pool, State};
use super::cache::Cache;

/// The largest block of the small pool.
const SMALL_SIZE: u64 = 1 << 20;
/// A small segment, and the one that blocks share below the size from which each has its own.
const SMALL_SEGMENT: u64 = 2 << 20;
const LARGE_SEGMENT: u64 = 20 << 20;
const OWN_SEGMENT: u64 = 10 << 20;
/// From here on there are no such addresses.
const MOST: u64 = 1 << 60;

/// The model of it.
pub(crate) struct Native {
    model: Arc<Model>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    cache: Cache,
    used: Uses<usize>,
    retries: u64,
    metadata: u64,
}

impl Native {
    pub(crate) fn new(model: Arc<Model>) -> Self {
        Self { model, inner: Mutex::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// A new segment for a block, at the second try after all that is free was given back: a free block of all of it.
    fn grow(&mut self, model: &Model, pool: Pool, size: u64) -> Result<usize, Refusal> {
        let bytes = match size {
            _ if pool.is_small => SMALL_SEGMENT,
            0..OWN_SEGMENT => LARGE_SEGMENT,
            _ => size.next_multiple_of(SMALL_SEGMENT),
        };
        let address = match model.malloc(bytes) {
            Err(Refusal::OutOfMemory) => {
                self.retries += 1;
                for number in self.used.wait(model) {
                    self.cache.turn(number, State::Free);
                }
                for address in self.cache.take_whole_segments() {
                    model.malloc_free(address)?;
                }
                model.malloc(bytes)?
            }
            got => got?,
        };
        Ok(self.cache.add_segment(address, bytes, pool, State::Free))
    }

    fn allocate(&mut self, model: &Model, size: u64, stream: u64) -> Result<u64, Refusal> {
        for number in self.used.take_done(model, |_| true) {
            self.cache.turn(number, State::Free);
        }
        if size >= MOST {
            return Err(Refusal::OutOfMemory);
        }
        let size = rounded(size);
        let pool = Pool { stream, is_small: size <= SMALL_SIZE };
        let found = match self.cache.best_fit(pool, size) {
            Some(found) => found,
            None => self.grow(model, pool, size)?,
        };
        let held = self.cache.block(found).size;
        let is_split = pool.is_small || held - size > SMALL_SIZE;
        let address = self.cache.take(found, if is_split { size } else { held });
        self.metadata = self.cache.metadata_bytes().max(self.metadata);
        Ok(address)
    }
}

impl Candidate for Native {
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

//! Segments that grow: addresses for all memory there is, and chunks mapped as they are needed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;

use super::super::candidate::{Candidate, Refused, Tally};
use super::super::model::{Model, Refusal};
use super::super::plan::rounded;
use super::super::uses::Uses;
use super::blocks::{Block, Pool, State};
use super::cache::Cache;

/// The largest block of the small pool.
const SMALL_SIZE: u64 = 1 << 20;
/// Chunks of the small pool, and of the large one.
const SMALL_CHUNK: u64 = 2 << 20;
const LARGE_CHUNK: u64 = 20 << 20;

/// Addresses of one segment: an eighth more than an H200 has memory, in large chunks.
const RESERVATION: u64 = (143_771 << 20) / 8 * 9 / LARGE_CHUNK * LARGE_CHUNK;

/// The model of `expandable_segments:True`.
pub(crate) struct Expandable {
    model: Arc<Model>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    cache: Cache,
    used: Uses<usize>,
    /// Handles by the address they are mapped at.
    chunks: BTreeMap<u64, u64>,
    retries: u64,
    metadata: u64,
}

fn chunk(pool: Pool) -> u64 {
    if pool.is_small { SMALL_CHUNK } else { LARGE_CHUNK }
}

impl Inner {
    /// The lowest range without memory that, with the free block before it and all that follows, is long enough: its first
    /// block.
    fn find(&self, pool: Pool, size: u64) -> Option<usize> {
        let cache = &self.cache;
        cache.unmapped(pool).find_map(|number| {
            let before =
                cache.block(number).previous.filter(|other| cache.block(*other).state == State::Free);
            let first = before.unwrap_or(number);
            let (mut length, mut next) = (0, Some(first));
            while let Some(block) =
                next.map(|next| cache.block(next)).filter(|block| block.state != State::Taken)
            {
                length += block.size;
                if length >= size {
                    return Some(first);
                }
                next = block.next;
            }
            None
        })
    }

    /// Maps so many bytes at the start of a block without memory; returns the free block that they are then part of.
    fn map(&mut self, model: &Model, number: usize, size: u64) -> Result<usize, Refusal> {
        let Block { address, pool, size: most, .. } = *self.cache.block(number);
        let chunk = chunk(pool);
        let bytes = (size.div_ceil(chunk) * chunk).min(most);
        let mut handles = Vec::new();
        for _ in 0..bytes / chunk {
            match model.create(chunk) {
                Ok(handle) => handles.push(handle),
                Err(refusal) => {
                    handles.into_iter().try_for_each(|handle| model.release(handle))?;
                    return Err(refusal);
                }
            }
        }
        for (place, handle) in (address..).step_by(chunk as usize).zip(handles) {
            model.map(place, handle)?;
            self.chunks.insert(place, handle);
        }
        model.set_access(address, bytes)?;
        if bytes < most {
            self.cache.cut(number, bytes);
        }
        Ok(self.cache.turn(number, State::Free))
    }

    /// More memory, so that a free block of so many bytes is there.
    fn grow(&mut self, model: &Model, pool: Pool, size: u64) -> Result<usize, Refusal> {
        if size > RESERVATION {
            return Err(Refusal::OutOfMemory);
        }
        let first = match self.find(pool, size) {
            Some(first) => first,
            None => {
                let address = model.reserve(RESERVATION)?;
                self.cache.add_segment(address, RESERVATION, pool, State::Unmapped)
            }
        };
        let mut grown = first;
        if self.cache.block(grown).state == State::Unmapped {
            grown = self.map(model, grown, size.min(self.cache.block(grown).size))?;
        }
        while self.cache.block(grown).size < size {
            let block = *self.cache.block(grown);
            let next = block.next.ok_or(Refusal::Invalid("a segment ends before its blocks do"))?;
            let missing = (size - block.size).min(self.cache.block(next).size);
            grown = self.map(model, next, missing)?;
        }
        Ok(grown)
    }

    /// Unmaps the whole chunks of free blocks, once their streams are done.
    fn shrink(&mut self, model: &Model) -> Result<(), Refusal> {
        for number in self.cache.all_free() {
            let Block { address, size, pool, .. } = *self.cache.block(number);
            let chunk = chunk(pool);
            let whole = self.chunks.range(address..address + size).map(|(place, _)| *place);
            let whole = whole.filter(|place| place + chunk <= address + size).collect::<Vec<_>>();
            let (Some(start), Some(last)) = (whole.first().copied(), whole.last().copied()) else { continue };
            let end = last + chunk;
            model.wait(&model.record(pool.stream));
            for place in whole {
                let handle = self.chunks.remove(&place);
                let handle = handle.ok_or(Refusal::Invalid("a chunk is unmapped that is not there"))?;
                model.unmap(place, chunk)?;
                model.release(handle)?;
            }
            let middle = if start > address { self.cache.cut(number, start - address) } else { number };
            if end < address + size {
                self.cache.cut(middle, end - start);
            }
            self.cache.turn(middle, State::Unmapped);
        }
        Ok(())
    }

    /// Of those that fit, the one whose growth is worth least: on while the next could become less.
    fn choose(&self, pool: Pool, best: usize) -> usize {
        let cache = &self.cache;
        let potential = |number: usize| {
            let block = cache.block(number);
            let next = block.next.map(|next| cache.block(next)).filter(|next| next.state == State::Unmapped);
            block.size + next.map_or(0, |next| next.size)
        };
        let size = cache.block(best).size;
        let mut chosen = best;
        for next in cache.fits(pool, size).skip_while(|number| *number != best).skip(1) {
            if potential(next) >= potential(chosen) {
                break;
            }
            chosen = next;
        }
        chosen
    }

    fn allocate(&mut self, model: &Model, size: u64, stream: u64) -> Result<u64, Refusal> {
        for number in self.used.take_done(model, |_| true) {
            self.cache.turn(number, State::Free);
        }
        let size = rounded(size);
        let pool = Pool { stream, is_small: size <= SMALL_SIZE };
        let found = match self.cache.best_fit(pool, size) {
            Some(best) => self.choose(pool, best),
            None => match self.grow(model, pool, size) {
                Err(Refusal::OutOfMemory) => {
                    self.retries += 1;
                    for number in self.used.wait(model) {
                        self.cache.turn(number, State::Free);
                    }
                    self.shrink(model)?;
                    self.grow(model, pool, size)?
                }
                grown => grown?,
            },
        };
        let address = self.cache.take(found, size);
        self.metadata = self.cache.metadata_bytes().max(self.metadata);
        Ok(address)
    }
}

impl Expandable {
    pub(crate) fn new(model: Arc<Model>) -> Self {
        Self { model, inner: Mutex::default() }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Candidate for Expandable {
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

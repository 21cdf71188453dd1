//! What PyTorch's two policies decide, each in its own way.

use std::collections::BTreeMap;

use super::super::model::{Model, Refusal};
use super::blocks::{Block, Pool, State};
use super::cache::Cache;
use super::{Policy, SMALL_SIZE};

/// A small segment, and the one that blocks share below the size from which each has its own.
const SMALL_SEGMENT: u64 = 2 << 20;
const LARGE_SEGMENT: u64 = 20 << 20;
const OWN_SEGMENT: u64 = 10 << 20;

/// The policy without settings: best fit in segments of `cuMemAlloc`.
#[derive(Debug, Default)]
pub(crate) struct Native;

impl Policy for Native {
    fn cut(pool: Pool, size: u64, held: u64) -> u64 {
        if pool.is_small || held - size > SMALL_SIZE { size } else { held }
    }

    /// A new segment: a free block of all of it.
    fn grow(&mut self, cache: &mut Cache, model: &Model, pool: Pool, size: u64) -> Result<usize, Refusal> {
        let bytes = match size {
            _ if pool.is_small => SMALL_SEGMENT,
            0..OWN_SEGMENT => LARGE_SEGMENT,
            _ => size.next_multiple_of(SMALL_SEGMENT),
        };
        Ok(cache.add_segment(model.malloc(bytes)?, bytes, pool, State::Free))
    }

    fn shrink(&mut self, cache: &mut Cache, model: &Model) -> Result<(), Refusal> {
        cache.take_whole_segments().into_iter().try_for_each(|address| model.malloc_free(address))
    }
}

/// Chunks of the small pool, and of the large one.
const SMALL_CHUNK: u64 = 2 << 20;
const LARGE_CHUNK: u64 = 20 << 20;

/// Addresses of one segment: an eighth more than an H200 has memory, in large chunks.
const RESERVATION: u64 = (143_771 << 20) / 8 * 9 / LARGE_CHUNK * LARGE_CHUNK;

/// The policy of `expandable_segments:True`: addresses for all memory there is, and chunks mapped as they are needed.
#[derive(Debug, Default)]
pub(crate) struct Expandable {
    /// Handles by the address they are mapped at.
    chunks: BTreeMap<u64, u64>,
}

fn chunk(pool: Pool) -> u64 {
    if pool.is_small { SMALL_CHUNK } else { LARGE_CHUNK }
}

/// The lowest range without memory that, with the free block before it and all that follows, is long enough: its first
/// block.
fn find(cache: &Cache, pool: Pool, size: u64) -> Option<usize> {
    cache.unmapped(pool).find_map(|number| {
        let before = cache.block(number).previous.filter(|other| cache.block(*other).state == State::Free);
        let first = before.unwrap_or(number);
        let (mut length, mut next) = (0, Some(first));
        while let Some(block) = next.map(|next| cache.block(next)).filter(|block| block.state != State::Taken)
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

impl Expandable {
    /// Maps so many bytes at the start of a block without memory; returns the free block that they are then part of.
    fn map(&mut self, cache: &mut Cache, model: &Model, number: usize, size: u64) -> Result<usize, Refusal> {
        let Block { address, pool, size: most, .. } = *cache.block(number);
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
            cache.cut(number, bytes);
        }
        Ok(cache.turn(number, State::Free))
    }
}

impl Policy for Expandable {
    /// Goes on to the next larger block as long as that one could grow to less than the one before.
    fn choose(cache: &Cache, pool: Pool, best: usize) -> usize {
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

    fn grow(&mut self, cache: &mut Cache, model: &Model, pool: Pool, size: u64) -> Result<usize, Refusal> {
        if size > RESERVATION {
            return Err(Refusal::OutOfMemory);
        }
        let first = match find(cache, pool, size) {
            Some(first) => first,
            None => {
                let address = model.reserve(RESERVATION)?;
                cache.add_segment(address, RESERVATION, pool, State::Unmapped)
            }
        };
        let mut grown = first;
        if cache.block(grown).state == State::Unmapped {
            grown = self.map(cache, model, grown, size.min(cache.block(grown).size))?;
        }
        while cache.block(grown).size < size {
            let block = *cache.block(grown);
            let next = block.next.ok_or(Refusal::Invalid("a segment ends before its blocks do"))?;
            let missing = (size - block.size).min(cache.block(next).size);
            grown = self.map(cache, model, next, missing)?;
        }
        Ok(grown)
    }

    /// Unmaps the whole chunks of free blocks, once their streams are done.
    fn shrink(&mut self, cache: &mut Cache, model: &Model) -> Result<(), Refusal> {
        for number in cache.all_free() {
            let Block { address, size, pool, .. } = *cache.block(number);
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
            let middle = if start > address { cache.cut(number, start - address) } else { number };
            if end < address + size {
                cache.cut(middle, end - start);
            }
            cache.turn(middle, State::Unmapped);
        }
        Ok(())
    }
}

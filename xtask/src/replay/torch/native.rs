//! Segments of `cudaMalloc`.

use super::super::model::{Model, Refusal};
use super::blocks::{Pool, State};
use super::cache::Cache;
use super::{LARGE_BUFFER, MIB, MIN_LARGE_ALLOC, Policy, ROUND_LARGE, SMALL_BUFFER};

/// What is left of a large block is split off from here on.
const WORTH_SPLITTING: u64 = MIB;

/// The policy without settings.
#[derive(Debug)]
pub(super) struct Native;

impl Policy for Native {
    fn grow(&mut self, cache: &mut Cache, model: &Model, pool: Pool, size: u64) -> Result<usize, Refusal> {
        let bytes = match size {
            _ if pool.is_small => SMALL_BUFFER,
            ..MIN_LARGE_ALLOC => LARGE_BUFFER,
            _ => size.div_ceil(ROUND_LARGE) * ROUND_LARGE,
        };
        let address = model.malloc(bytes)?;
        Ok(cache.add_segment(address, bytes, pool, State::Free))
    }

    fn shrink(&mut self, cache: &mut Cache, model: &Model) -> Result<(), Refusal> {
        for number in cache.all_free() {
            let block = *cache.block(number);
            if block.previous.is_none() && block.next.is_none() {
                model.malloc_free(block.address)?;
                cache.remove_segment(number);
            }
        }
        Ok(())
    }

    fn splits(&self, pool: Pool, rest: u64) -> bool {
        if pool.is_small { rest > 0 } else { rest > WORTH_SPLITTING }
    }
}

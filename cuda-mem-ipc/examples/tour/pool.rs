//! A pinned pool of the driver: how soon its memory is there, and how soon it is there again.

use std::time::{Duration, Instant};

use cuda_mem_core::raw_pool::{self, AllocationType, MemoryLocation, MemoryPool, PoolProperties};
use cuda_mem_core::sys::CUmemPool_attribute;
use cuda_mem_core::{Context, Error, Stream};

use crate::Result;

/// How long memory took.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) bytes: usize,
    /// From nothing to a pool with this much memory, which host and device reach.
    pub(crate) first: Duration,
    /// Freed, waited for, and allocated again.
    pub(crate) again: Duration,
}

/// None where the driver has no such pools.
pub(crate) fn measure(context: &Context, bytes: usize) -> Result<Option<Ready>> {
    let stream = Stream::new(context)?;
    let start = Instant::now();
    let properties = PoolProperties {
        allocation_type: AllocationType::Pinned,
        location: MemoryLocation::Host,
        shareable: false,
        max_size: 0,
    };
    let pool = match MemoryPool::create(context.driver(), &properties) {
        Ok(pool) => pool,
        Err(Error::Driver(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    // Else each wait gives freed memory back to the system, and devices do not reach it at all.
    pool.set_number(CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX)?;
    pool.set_access(&[context.device()], true)?;
    let address = pool.allocate(bytes, &stream)?;
    stream.synchronize()?;
    let first = start.elapsed();
    let start = Instant::now();
    // SAFETY: allocated above and not used.
    unsafe { raw_pool::free(address, &stream) }?;
    stream.synchronize()?;
    let address = pool.allocate(bytes, &stream)?;
    let again = start.elapsed();
    // SAFETY: as above.
    unsafe { raw_pool::free(address, &stream) }?;
    stream.synchronize()?;
    Ok(Some(Ready { bytes, first, again }))
}

//! Allocators and blocks, as tests get and free them.

use cuda_mem_core::{Context, Stream};
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::segments::Filter;
use cuda_mem_pool::{Error, MempoolId};

pub(crate) fn allocator(context: &Context) -> CachingAllocator {
    CachingAllocator::new(context, &CachingOptions::default()).unwrap()
}

pub(crate) fn free(allocator: &CachingAllocator, address: u64) {
    // SAFETY: tests free what they allocated, once, and nothing that still runs uses it but what was recorded.
    unsafe { allocator.free_by_address(address) }.unwrap();
}

/// A block of a pool, which is in use once more.
pub(crate) fn routed(
    allocator: &CachingAllocator,
    id: MempoolId,
    bytes: usize,
    stream: &Stream,
) -> Result<u64, Error> {
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    let block = allocator.allocate_by_address(bytes, stream);
    allocator.end_allocate_to_pool(id).unwrap();
    block
}

//! The pinned cache as a resource.

use cuda_mem_core::{Context, Stream};
use cuda_mem_pool::pinned_cache::PinnedCacheOptions;
use cuda_mem_pool::{MemoryResource, MempoolId, PinnedCachingAllocator, Result};

use super::{LEN, adaptors_over, by_address, goes_both_ways, serves};
use crate::common::scenarios::while_capturing;

/// Without the allocator's thread: a fault is to strike the same call in each run.
fn cache(context: &Context) -> PinnedCachingAllocator {
    let options = PinnedCacheOptions::default().with_returns_surplus(false);
    PinnedCachingAllocator::with_options(context, options)
}

/// Whatever failed: all that was handed out came back, if only when a capture had ended.
fn expect_all_back(context: &Context, resource: &PinnedCachingAllocator) {
    while context.driver().reclaim() > 0 {}
    assert_eq!(resource.statistics().active_requests.current, 0);
}

pub(super) fn owned(context: &Context) -> Result<()> {
    let resource = cache(context);
    let result = serves(&resource).and_then(|()| goes_both_ways(&resource));
    expect_all_back(context, &resource);
    result
}

pub(super) fn freed_by_address(context: &Context) -> Result<()> {
    let resource = cache(context);
    by_address(&resource)?;
    expect_all_back(context, &resource);
    Ok(())
}

pub(super) fn beside_a_capture(context: &Context) -> Result<()> {
    let resource = cache(context);
    let stream = Stream::new(context)?;
    let (pool, captured) = (MempoolId(0, 5), stream.id());
    let result = MemoryResource::allocate(&resource, LEN, &stream).and_then(|block| {
        let mut result = Ok(());
        while_capturing(&stream, || {
            assert!(MemoryResource::allocate(&resource, LEN, &stream).is_err());
            drop(block);
            assert_eq!(resource.statistics().active_requests.current, 1);
            result = (|| {
                let allocator = &resource;
                allocator.begin_allocate_to_pool(pool, move |stream| stream == Some(captured))?;
                drop(MemoryResource::allocate(&resource, LEN, &stream)?);
                allocator.end_allocate_to_pool(pool)?;
                Ok(())
            })();
        });
        result
    });
    expect_all_back(context, &resource);
    result
}

pub(super) fn under_adaptors(context: &Context) -> Result<()> {
    let resource = cache(context);
    let result = adaptors_over(resource.clone());
    expect_all_back(context, &resource);
    result
}

//! Private pools of the caching allocator.

use cuda_mem_core::{Context, Stream};
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::segments::Filter;
use cuda_mem_pool::{DeviceMemoryResource, MemoryResource, MempoolId, Result};

use crate::common::scenarios::while_capturing;

fn on(stream: &Stream) -> Filter {
    Filter::stream(stream.id().as_raw())
}

/// A pool of the device's memory and one with a source, from the first use to the last.
pub(super) fn pools(context: &Context) -> Result<()> {
    let allocator = CachingAllocator::new(context, &CachingOptions::default())?;
    let (stream, other) = (Stream::new(context)?, Stream::new(context)?);
    let source = DeviceMemoryResource::new(context, None)?;
    for source in [None, Some(source.raw())] {
        let id = MempoolId::for_user();
        allocator.create_or_incref_pool(id, source)?;
        allocator.begin_allocate_to_pool(id, on(&stream))?;
        let mut block = allocator.allocate(4096, &stream)?;
        block.as_device_range().fill_bytes(&stream, 1)?;
        let address = allocator.allocate_by_address(1000, &stream)?;
        allocator.record_stream(address, &other)?;
        for peer in context.driver().devices()? {
            if peer.can_access_peer(context.device())? {
                allocator.enable_peer_access(peer)?;
            }
        }
        // SAFETY: nothing uses it.
        unsafe { allocator.free_by_address(address) }?;
        drop(block);
        allocator.end_allocate_to_pool(id)?;
        [(), ()].map(|()| allocator.release_pool(id)).into_iter().collect::<Result<()>>()?;
        stream.synchronize()?;
        other.synchronize()?;
        allocator.empty_cache()?;
    }
    Ok(())
}

/// A graph's pool.
pub(super) fn beside_a_capture(context: &Context) -> Result<()> {
    let allocator = CachingAllocator::new(context, &CachingOptions::default())?;
    let (stream, id) = (Stream::new(context)?, MempoolId::for_graph());
    allocator.begin_allocate_to_pool(id, on(&stream))?;
    let mut result = Ok(());
    while_capturing(&stream, || {
        result = (|| {
            let address = allocator.allocate_by_address(4096, &stream)?;
            // SAFETY: nothing uses it.
            unsafe { allocator.free_by_address(address) }?;
            allocator.empty_cache().map(drop)
        })();
    });
    result?;
    allocator.end_allocate_to_pool(id)?;
    allocator.release_pool(id)?;
    allocator.empty_cache()?;
    Ok(())
}

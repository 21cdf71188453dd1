//! The caching allocator of device memory.

use cuda_mem_core::{Context, Stream};
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::{Error, MemoryResource, Result};

use super::{LEN, serves};
use crate::common::scenarios::while_capturing;

const MIB: usize = 1 << 20;

/// Runs `body`, and whatever failed, what was handed out came back and the allocator serves on.
fn expect_usable(context: &Context, body: impl FnOnce(&CachingAllocator) -> Result<()>) -> Result<()> {
    let allocator = CachingAllocator::new(context, &CachingOptions::default())?;
    let result = body(&allocator);
    while context.driver().reclaim() > 0 {}
    assert_eq!(allocator.statistics().allocation.all.current, 0);
    let stream = Stream::new(context)?;
    // The fault may strike here instead, once.
    let again = || allocator.allocate(30 * MIB, &stream).map(drop);
    again().or_else(|_| again())?;
    let emptied = || {
        let _ = context.synchronize();
        allocator.empty_cache()
    };
    // Twice: a query that fails says nothing of the work.
    let _ = emptied();
    emptied().or_else(|_| emptied())?;
    assert_eq!(allocator.statistics().active.all.current, 0);
    result
}

/// All that the driver has is in its heaps.
pub(super) fn owned(context: &Context) -> Result<()> {
    expect_usable(context, |allocator| {
        serves(allocator)?;
        let [one, two] = [Stream::new(context)?, Stream::new(context)?];
        let block = allocator.allocate(10 * MIB, &one)?;
        let mut user = allocator.allocate(LEN, &two)?;
        user.as_device_range().fill_bytes(&one, 1)?;
        drop((block, user));
        let address = allocator.allocate_by_address(3 * MIB, &one)?;
        let recorded = allocator.record_stream(address, &two);
        // SAFETY: allocated above, and not used.
        unsafe { allocator.free_by_address(address) }?;
        recorded?;
        allocator.empty_cache()?;
        Ok(())
    })
}

/// Memory moves within a stream and from one to another, until there is no more.
pub(super) fn full(context: &Context) -> Result<()> {
    let most = 100 * MIB;
    let total = context.device().total_memory()?;
    let options = CachingOptions::default().with_memory_fraction(most as f64 / total as f64);
    let allocator = CachingAllocator::new(context, &options)?;
    let work = || {
        let [one, two] = [Stream::new(context)?, Stream::new(context)?];
        let mut blocks = (0..8).map(|_| allocator.allocate(10 * MIB, &one)).collect::<Result<Vec<_>>>()?;
        (0..4).for_each(|at| drop(blocks.swap_remove(at)));
        let moved = allocator.allocate(36 * MIB, &one)?;
        drop(blocks);
        let stolen = allocator.allocate(50 * MIB, &two)?;
        let refused = allocator.allocate(most, &two);
        drop((moved, stolen));
        match refused {
            Err(Error::DeviceOutOfMemory(_)) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(Error::TooLarge { bytes: most }),
        }
    };
    let result = work();
    while context.driver().reclaim() > 0 {}
    assert_eq!(allocator.statistics().allocation.all.current, 0);
    let stream = Stream::new(context)?;
    let again = || allocator.allocate(80 * MIB, &stream).map(drop);
    again().or_else(|_| again())?;
    result
}

pub(super) fn beside_a_capture(context: &Context) -> Result<()> {
    expect_usable(context, |allocator| {
        let [captured, other] = [Stream::new(context)?, Stream::new(context)?];
        let block = allocator.allocate(5 * MIB, &captured)?;
        drop(allocator.allocate(9 * MIB, &other)?);
        let mut result = Ok(());
        while_capturing(&captured, || {
            drop(block);
            result = (|| {
                drop(allocator.allocate(12 * MIB, &captured)?);
                drop(allocator.allocate(12 * MIB, &other)?);
                allocator.empty_cache()?;
                Ok(())
            })();
        });
        result
    })
}

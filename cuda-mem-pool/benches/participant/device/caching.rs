//! Ours behind the names that the measures use: the only file of them that knows `CachingAllocator`.

use cuda_mem_pool::Error;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::cuda_mem_core::{Context, Stream};

use super::allocator::{Allocator, Told};

/// A fresh allocator, with the options that it has by default.
pub(crate) struct Caching(CachingAllocator);

impl Caching {
    pub(crate) fn new(context: &Context) -> Result<Self, Error> {
        Ok(Self(CachingAllocator::new(context, &CachingOptions::default())?))
    }
}

impl Allocator for Caching {
    #[inline]
    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<u64, Error> {
        self.0.allocate_by_address(bytes, stream)
    }

    #[inline]
    unsafe fn free(&self, address: u64) {
        // SAFETY: the caller's promise.
        let freed = unsafe { self.0.free_by_address(address) };
        debug_assert!(freed.is_ok());
    }

    fn told(&self) -> Told {
        Told {
            reserved: Some(self.0.statistics().reserved_bytes.all.peak),
            metadata: Some(self.0.metadata_bytes() as u64),
            driver_calls: Some(self.0.driver_calls()),
        }
    }
}

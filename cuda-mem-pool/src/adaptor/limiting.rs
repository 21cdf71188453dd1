//! Memory up to a limit.
//!
//! # Safety
//!
//! Hands memory of the upstream through as it is.

#![allow(unsafe_code, reason = "implements the unsafe traits of resources")]

use std::alloc::Layout;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{MemorySource, Stream};

use super::adaptor;
use crate::error::{Error, Result};
use crate::resource::{MemoryResource, RawResource, ResourceContext};

/// Gives no more than a number of bytes at a time, whatever its upstream has.
///
/// What counts are the bytes that were asked for, from before the upstream is asked until it has taken them back: the limit
/// holds at every moment, in all threads together.
///
/// ```
/// use cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::{DeviceMemoryResource, Error, LimitingAdaptor, MemoryResource};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let limited = LimitingAdaptor::new(DeviceMemoryResource::new(&context, None)?, 10_000);
/// let block = limited.allocate(8_000, &stream)?;
/// assert!(matches!(limited.allocate(8_000, &stream), Err(Error::OutOfMemory { limit: 10_000, .. })));
/// drop(block);
/// assert_eq!(limited.allocate(8_000, &stream)?.len(), 8_000);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Clone)]
pub struct LimitingAdaptor<R> {
    upstream: R,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    upstream: Arc<dyn RawResource>,
    limit: u64,
    allocated: AtomicU64,
}

impl<R: MemoryResource> LimitingAdaptor<R> {
    /// At most `limit_bytes` bytes of `upstream`'s memory.
    #[must_use]
    pub fn new(upstream: R, limit_bytes: u64) -> Self {
        let inner = Inner { upstream: upstream.raw(), limit: limit_bytes, allocated: AtomicU64::new(0) };
        Self { upstream, inner: Arc::new(inner) }
    }
}

impl<R> LimitingAdaptor<R> {
    /// The most bytes that may be allocated at a time.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.inner.limit
    }

    /// The bytes that are allocated, or being allocated.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.inner.allocated.load(Ordering::Relaxed)
    }
}

adaptor!(LimitingAdaptor);

/// Bytes within the limit, which are free for others again when this is dropped.
struct Reserved<'i> {
    allocated: &'i AtomicU64,
    bytes: u64,
}

impl Inner {
    fn reserve(&self, bytes: usize) -> Result<Reserved<'_>> {
        let count = bytes as u64;
        let within = |used: u64| used.checked_add(count).filter(|sum| *sum <= self.limit);
        self.allocated
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
            .map(|_| Reserved { allocated: &self.allocated, bytes: count })
            .map_err(|used| Error::OutOfMemory { requested: bytes, used, limit: self.limit, source: None })
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.allocated.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

// SAFETY: the memory is the upstream's, handed through.
unsafe impl MemorySource for Inner {
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem_core::Result<()> {
        // SAFETY: the caller's promise; what came from here came from the upstream.
        unsafe { self.upstream.deallocate(address, layout, stream) }?;
        drop(Reserved { allocated: &self.allocated, bytes: layout.size() as u64 });
        Ok(())
    }
}

// SAFETY: the memory is the upstream's, handed through.
unsafe impl RawResource for Inner {
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        // Given up again by an error, and by a panic of what is above the driver.
        let reserved = self.reserve(layout.size())?;
        let address = self.upstream.allocate(layout, stream)?;
        // Kept until the memory comes back.
        let _ = std::mem::ManuallyDrop::new(reserved);
        Ok(address)
    }
}

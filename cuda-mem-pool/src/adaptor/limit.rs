//! [`LimitingAdaptor`]: limits how much there is at a time.
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
use cuda_mem_core::{MemorySource, Result as CoreResult, Stream};

use super::adaptor;
use crate::error::{Error, Result};
use crate::resource::{MemoryResource, RawResource, ResourceContext};

/// Gives no more than a number of bytes at a time, whatever its upstream has. Counts the bytes that were asked for, from before the
/// upstream is asked until it has taken them back: the limit holds at every moment, in all threads together.
///
/// ```
/// use cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::{DeviceMemoryResource, Error, LimitingAdaptor, MemoryResource};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
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
    inner: Arc<Limiter>,
}

#[derive(Debug)]
struct Limiter {
    upstream: Arc<dyn RawResource>,
    limit: u64,
    allocated: AtomicU64,
}

impl<R: MemoryResource> LimitingAdaptor<R> {
    /// At most `limit_bytes` bytes of `upstream`'s memory.
    #[must_use]
    pub fn new(upstream: R, limit_bytes: u64) -> Self {
        let inner = Limiter { upstream: upstream.raw(), limit: limit_bytes, allocated: AtomicU64::new(0) };
        Self { upstream, inner: Arc::new(inner) }
    }

    /// The bytes that are allocated, or being allocated.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.inner.allocated.load(Ordering::Relaxed)
    }
}

adaptor!(LimitingAdaptor);

// SAFETY: the memory is the upstream's, handed through.
unsafe impl MemorySource for Limiter {
    unsafe fn deallocate(&self, address: CUdeviceptr, layout: Layout, stream: &Stream) -> CoreResult<()> {
        // SAFETY: the caller's promise; what came from here came from the upstream.
        unsafe { self.upstream.deallocate(address, layout, stream) }?;
        self.allocated.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        Ok(())
    }
}

// SAFETY: the memory is the upstream's, handed through.
unsafe impl RawResource for Limiter {
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        let (requested, limit) = (layout.size(), self.limit);
        let within = |used: u64| used.checked_add(requested as u64).filter(|sum| *sum <= limit);
        self.allocated
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, within)
            .map_err(|used| Error::OutOfMemory { requested, used, limit, source: None })?;
        self.upstream.allocate(layout, stream).inspect_err(|_| {
            self.allocated.fetch_sub(requested as u64, Ordering::Relaxed);
        })
    }
}

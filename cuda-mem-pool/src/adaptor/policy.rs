//! Changes what is allocated: [`AlignedAdaptor`] its alignment, [`LimitingAdaptor`] how much there is at a time.
//!
//! # Safety
//!
//! Hands memory of the upstream through as it is, or an aligned part of it: the upstream aligns to 256 bytes, as [`MemorySource`]
//! demands, so within an allocation that is larger by the alignment less 256, an aligned address has all the bytes that were asked
//! for behind it.

#![allow(unsafe_code, reason = "implements the unsafe traits of resources")]

use std::alloc::Layout;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{MemorySource, Result as CoreResult, Stream};

use super::adaptor;
use crate::error::{Error, Result};
use crate::resource::{ByAddress, DEFAULT_ALIGNMENT, MemoryResource, RawResource, ResourceContext};

/// Aligns large allocations to more than the 256 bytes that CUDA promises, and any allocation that asks for it
/// ([`allocate_aligned`](MemoryResource::allocate_aligned)). Each takes the alignment less 256 more bytes from its upstream.
///
/// ```
/// use cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::{AlignedAdaptor, DeviceMemoryResource, MemoryResource};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// // Direct storage wants pages, for what is worth reading from there.
/// let resource = AlignedAdaptor::new(DeviceMemoryResource::new(&context, None)?, 4096, 1 << 20)?;
/// assert_eq!(resource.allocate(1 << 20, &stream)?.address() % 4096, 0);
/// assert_eq!(resource.allocate_aligned(100, 1 << 16, &stream)?.address() % (1 << 16), 0);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Clone)]
pub struct AlignedAdaptor<R> {
    upstream: R,
    inner: Arc<Aligner>,
}

#[derive(Debug)]
struct Aligner {
    upstream: Arc<dyn RawResource>,
    alignment: usize,
    threshold: usize,
    /// What the upstream gave, by the aligned address within it.
    blocks: ByAddress<(CUdeviceptr, Layout)>,
}

impl<R: MemoryResource> AlignedAdaptor<R> {
    /// Memory of `upstream`: aligned to `alignment` bytes where `threshold` or more bytes are asked for.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidAlignment`] if `alignment` is no power of two or below 256.
    pub fn new(upstream: R, alignment: usize, threshold: usize) -> Result<Self> {
        if !alignment.is_power_of_two() || alignment < DEFAULT_ALIGNMENT {
            return Err(Error::InvalidAlignment { asked: alignment, least: DEFAULT_ALIGNMENT });
        }
        let inner = Aligner { upstream: upstream.raw(), alignment, threshold, blocks: ByAddress::default() };
        Ok(Self { upstream, inner: Arc::new(inner) })
    }
}

adaptor!(AlignedAdaptor);

impl Aligner {
    /// What an allocation is to be aligned to beyond what the upstream does by itself; none if that is enough.
    fn beyond_upstream(&self, layout: Layout) -> Option<usize> {
        let large = layout.size() > 0 && layout.size() >= self.threshold;
        let alignment = if large { layout.align().max(self.alignment) } else { layout.align() };
        (alignment > DEFAULT_ALIGNMENT).then_some(alignment)
    }
}

/// The layout of what holds `layout.size()` bytes at an aligned address, wherever it begins.
fn around(layout: Layout, alignment: usize) -> Result<Layout> {
    let bytes = layout.size();
    alignment
        .checked_sub(DEFAULT_ALIGNMENT)
        .and_then(|slack| bytes.checked_add(slack))
        .and_then(|size| Layout::from_size_align(size, DEFAULT_ALIGNMENT).ok())
        .ok_or(Error::TooLarge { bytes })
}

// SAFETY: each block of the upstream is handed out once, as the aligned part of it or as it is.
unsafe impl MemorySource for Aligner {
    unsafe fn deallocate(&self, address: CUdeviceptr, layout: Layout, stream: &Stream) -> CoreResult<()> {
        if self.beyond_upstream(layout).is_none() {
            // SAFETY: the caller's promise; memory of such a layout came from the upstream as it is.
            return unsafe { self.upstream.deallocate(address, layout, stream) };
        }
        // Taken out before: as soon as the upstream has it, the address may be given to somebody else.
        let (start, around) = self.blocks.take_out(address, layout.size())?;
        // SAFETY: the caller's promise, for the block around the memory; taken out of the map, so given back once.
        let freed = unsafe { self.upstream.deallocate(start, around, stream) };
        if freed.is_err() {
            self.blocks.enter(address, layout.size(), (start, around));
        }
        freed
    }
}

// SAFETY: the part of a block that begins at the aligned address is as long as asked for, and is handed out once.
unsafe impl RawResource for Aligner {
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        let Some(alignment) = self.beyond_upstream(layout) else {
            return self.upstream.allocate(layout, stream);
        };
        let bytes = layout.size();
        let around = if bytes == 0 { Layout::new::<()>() } else { around(layout, alignment)? };
        let address = self.upstream.allocate(around, stream)?;
        if address == 0 {
            return Ok(0);
        }
        // Within the block, so it fits.
        let aligned = address.next_multiple_of(alignment as u64);
        self.blocks.enter(aligned, bytes, (address, around));
        Ok(aligned)
    }
}

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

/// Bytes within the limit. Dropped, they are free for others again.
struct Reserved<'i>(&'i AtomicU64, u64);

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

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
        // Given up again by an error, and by a panic of what is above the driver.
        let reserved = Reserved(&self.allocated, requested as u64);
        let address = self.upstream.allocate(layout, stream)?;
        // Kept until the memory comes back.
        let _ = std::mem::ManuallyDrop::new(reserved);
        Ok(address)
    }
}

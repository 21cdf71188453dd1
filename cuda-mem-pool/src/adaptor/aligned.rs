//! Any alignment over a resource that has 256 bytes.
//!
//! # Safety
//!
//! Relies on the upstream aligning to 256 bytes, as [`MemorySource`] demands: within an allocation that is larger by the
//! alignment less 256, an aligned address has all the bytes that were asked for behind it.

#![allow(unsafe_code, reason = "implements the unsafe traits of resources")]

use std::alloc::Layout;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{MemorySource, Stream};

use super::adaptor;
use crate::error::{Error, Result};
use crate::resource::{DEFAULT_ALIGNMENT, MemoryResource, RawResource, ResourceContext};

/// Aligns large allocations to more than the 256 bytes that CUDA promises, and any allocation that asks for it
/// ([`allocate_aligned`](MemoryResource::allocate_aligned)).
///
/// An aligned allocation takes the alignment less 256 more bytes from its upstream.
///
/// ```
/// use cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::{AlignedAdaptor, DeviceMemoryResource, MemoryResource};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
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
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    upstream: Arc<dyn RawResource>,
    alignment: usize,
    threshold: usize,
    /// What the upstream gave, by the aligned address within it.
    blocks: Mutex<HashMap<CUdeviceptr, Block>>,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    address: CUdeviceptr,
    layout: Layout,
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
        let inner = Inner { upstream: upstream.raw(), alignment, threshold, blocks: Mutex::default() };
        Ok(Self { upstream, inner: Arc::new(inner) })
    }
}

impl<R> AlignedAdaptor<R> {
    /// What large allocations are aligned to, in bytes.
    #[must_use]
    pub fn alignment(&self) -> usize {
        self.inner.alignment
    }

    /// From how many bytes on an allocation is large.
    #[must_use]
    pub fn threshold(&self) -> usize {
        self.inner.threshold
    }
}

adaptor!(AlignedAdaptor);

impl Inner {
    /// What an allocation is to be aligned to beyond what the upstream does by itself; none if that is enough.
    fn beyond_upstream(&self, layout: Layout) -> Option<usize> {
        let large = layout.size() > 0 && layout.size() >= self.threshold;
        let alignment = if large { layout.align().max(self.alignment) } else { layout.align() };
        (alignment > DEFAULT_ALIGNMENT).then_some(alignment)
    }

    fn blocks(&self) -> MutexGuard<'_, HashMap<CUdeviceptr, Block>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
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
unsafe impl MemorySource for Inner {
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem_core::Result<()> {
        if self.beyond_upstream(layout).is_none() {
            // SAFETY: the caller's promise; memory of such a layout came from the upstream as it is.
            return unsafe { self.upstream.deallocate(address, layout, stream) };
        }
        // Taken out before: as soon as the upstream has it, the address may be given to somebody else.
        let known = self.blocks().remove(&address);
        let block = known.ok_or(cuda_mem_core::Error::NotAllocated { address })?;
        // SAFETY: the caller's promise, for the block around the memory; taken out of the map, so given back once.
        let freed = unsafe { self.upstream.deallocate(block.address, block.layout, stream) };
        if freed.is_err() {
            self.blocks().insert(address, block);
        }
        freed
    }
}

// SAFETY: the part of a block that begins at the aligned address is as long as asked for, and is handed out once.
unsafe impl RawResource for Inner {
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        let Some(alignment) = self.beyond_upstream(layout) else {
            return self.upstream.allocate(layout, stream);
        };
        let bytes = layout.size();
        let layout = if bytes == 0 { Layout::new::<()>() } else { around(layout, alignment)? };
        let address = self.upstream.allocate(layout, stream)?;
        if address == 0 {
            return Ok(0);
        }
        // Within the block, so it fits.
        let aligned = address.next_multiple_of(alignment as u64);
        self.blocks().insert(aligned, Block { address, layout });
        Ok(aligned)
    }
}

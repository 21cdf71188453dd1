//! The pinned cache as a memory resource; and, behind a feature, as an allocator of collections.
//!
//! # Safety
//!
//! Relies on a [`PinnedBlock`](super::PinnedBlock) being memory that nobody else has until it is dropped, and on devices
//! reaching it at the host's address, which is asked of all of them: its owner is kept in [`Blocks`] as long as its receiver
//! has the memory, and for ever if the receiver never gives it back.

#![allow(unsafe_code, reason = "is a resource, whose type says who reaches its memory")]

use std::alloc::Layout;
use std::mem::ManuallyDrop;
#[cfg(feature = "allocator-api2")]
use std::ptr::NonNull;
use std::sync::Arc;

#[cfg(feature = "allocator-api2")]
use allocator_api2::alloc::AllocError;
use cuda_mem_core::sys::{CUdevice_attribute, CUdeviceptr};
use cuda_mem_core::{MemorySource, Stream};

use super::allocator::{Handle, PinnedCachingAllocator};
use super::block::PinnedBlock;
use crate::error::{Error, Result};
use crate::resource::{
    ByAddress, DEFAULT_ALIGNMENT, HostDeviceAccessible, MemoryResource, RawResource, ResourceContext,
};

/// As a resource, adaptors go over it, and its memory can be freed by address. Its own `allocate` needs no stream; with one it is
/// `MemoryResource::allocate(&allocator, …)`.
///
/// Memory may be used as soon as it is allocated. Given back, it comes out again once the stream that it was given back on has
/// passed that point. Memory that was allocated by address and is never freed is leaked, also when the last handle to the allocator is
/// dropped. [`Error::Unsupported`] if a device reaches pinned memory at another address than the host: blocks tell the one for each
/// device ([`PinnedBlock::on`](super::PinnedBlock::on)).
///
/// # Capture
///
/// [`Error::Capturing`] on a capturing stream, unless the filter of a private pool
/// ([`begin_allocate_to_pool`](PinnedCachingAllocator::begin_allocate_to_pool)) takes the stream. What a capturing stream gets
/// there counts as part of its graph: given back, it serves nobody else until the pool is released.
///
/// ```
/// use cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::{MemoryResource, PinnedCachingAllocator, TrackingAdaptor};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let allocator = PinnedCachingAllocator::new(&context);
/// let resource = TrackingAdaptor::new(allocator.clone(), false);
///
/// let mut block = resource.allocate(4096, &stream)?;
/// block.as_mut_slice()?.fill(1);
///
/// let address = resource.allocate_raw(4096, None)?;
/// // SAFETY: allocated above with this size, and not used.
/// unsafe { resource.deallocate(address, 4096, None) }?;
/// assert_eq!(allocator.statistics().active_requests.current, 1);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
// SAFETY: the host has the blocks in its address space, initialised and exposed, and each device reaches them there: `allocate` has asked.
unsafe impl MemoryResource for PinnedCachingAllocator {
    type Access = HostDeviceAccessible;

    fn raw(&self) -> Arc<dyn RawResource> {
        Arc::clone(&self.handle) as Arc<dyn RawResource>
    }

    fn resource_context(&self) -> &ResourceContext {
        &self.handle.home
    }
}

// SAFETY: a block stays in the books, and nobody else is given it, until it is taken out of them here.
unsafe impl MemorySource for Handle {
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem_core::Result<()> {
        let lent = &self.shared.lent;
        let block = lent.take_out(address, layout.size())?;
        let recorded = block.record_stream(stream);
        if recorded.is_err() {
            lent.enter(address, layout.size(), block);
        } else {
            drop(ManuallyDrop::into_inner(block));
        }
        recorded
    }
}

// SAFETY: the block is its receiver's alone, has the size, and is aligned to 256 bytes. No stream uses it any more, so it may
// be used at once.
unsafe impl RawResource for Handle {
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        if layout.align() > DEFAULT_ALIGNMENT {
            return Err(Error::Alignment { asked: layout.align(), most: DEFAULT_ALIGNMENT });
        }
        if layout.size() == 0 {
            return Ok(0);
        }
        self.expect_same_address()?;
        self.shared.context.driver().reclaim();
        let block = self.shared.block(layout.size(), Some(stream), None)?;
        block.admit(stream, "allocating pinned memory").map_err(|error| match error {
            cuda_mem_core::Error::Capturing { .. } => Error::Capturing,
            error => error.into(),
        })?;
        // Exposed: the host's slices are made of the address alone.
        let address = block.as_ptr().expose_provenance() as CUdeviceptr;
        self.shared.lent.enter(address, layout.size(), ManuallyDrop::new(block));
        Ok(address)
    }
}

impl Handle {
    /// Asks once whether every device reaches pinned memory where the host does.
    fn expect_same_address(&self) -> Result<()> {
        let same_address = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
        if self.has_same_address.get().is_none() {
            for device in self.shared.context.driver().devices()? {
                if !device.supports(same_address)? {
                    return Err(Error::Unsupported { device, what: "pinned memory at the host's address" });
                }
            }
            let _ = self.has_same_address.set(());
        }
        Ok(())
    }
}

crate::resource::equal_handles!(PinnedCachingAllocator, handle);

/// The blocks that are out. Dropped, it leaks what is in it: somebody may have the address yet.
pub(super) type Blocks = ByAddress<ManuallyDrop<PinnedBlock>>;

/// Pinned memory for the collections of `allocator-api2`, and others that take its trait. With the feature `allocator-api2`.
///
/// A collection of any element type may have it; [`PinnedVec`](super::PinnedVec) is the one that copies to and from devices without
/// `unsafe`. Alignments above 256 bytes are refused. A collection that is given back is filled with zeroes: its elements may have had
/// padding, which [`PinnedBlock`] would hand out as bytes. A block that is never given back is leaked.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use cuda_mem_pool::cuda_mem_core::Driver;
/// use cuda_mem_pool::PinnedCachingAllocator;
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let allocator = PinnedCachingAllocator::new(&driver.device(0)?.primary_context()?);
/// let mut names = Vec::new_in(&allocator);
/// names.extend([(1u8, 2u32), (3, 4)]);
/// assert_eq!(allocator.statistics().active_requests.current, 1);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[cfg(feature = "allocator-api2")]
// SAFETY: a block is its receiver's alone until it comes back here, and stays valid if it does not; that the reference moves changes nothing.
unsafe impl allocator_api2::alloc::Allocator for &PinnedCachingAllocator {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            let start = NonNull::new(std::ptr::without_provenance_mut(layout.align())).ok_or(AllocError)?;
            return Ok(NonNull::slice_from_raw_parts(start, 0));
        }
        if layout.align() > DEFAULT_ALIGNMENT {
            return Err(AllocError);
        }
        let block = PinnedCachingAllocator::allocate(self, layout.size()).map_err(|_refused| AllocError)?;
        let start = block.start;
        self.shared().lent.enter(start.addr().get() as CUdeviceptr, layout.size(), ManuallyDrop::new(block));
        Ok(NonNull::slice_from_raw_parts(start, layout.size()))
    }

    unsafe fn deallocate(&self, start: NonNull<u8>, layout: Layout) {
        // In a forked child it is the parent's, and a thread of the parent may have held the lock.
        if layout.size() == 0 || cuda_mem_core::forked() {
            return;
        }
        // SAFETY: the caller gives back this many bytes that it had from `allocate`, and nobody uses any more.
        unsafe { start.write_bytes(0, layout.size()) };
        // One that is not there was none of these, against the contract: nothing is given back then.
        if let Ok(block) = self.shared().lent.take_out(start.addr().get() as CUdeviceptr, layout.size()) {
            drop(ManuallyDrop::into_inner(block));
        }
    }
}

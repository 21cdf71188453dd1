//! Shares blocks with other processes.
//!
//! # Safety
//!
//! The functions hand on their callers' promise about memory that others write.

#![allow(unsafe_code, reason = "exports memory by address")]

use cuda_mem_ipc::cuda_mem_pool::caching::{CachingAllocator, Pin, Segment};
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::ipc::MemoryHandle;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Context};
use cuda_mem_ipc::cuda_mem_pool::{self as pool};

use super::ShareableHandle;
use super::blob::{Mapped, Named, Offer, VERSIONS};
use super::{descriptors, socket};

/// The handle of a block of the default pool in a version of the format; none for one of a private pool. [`descriptors::close`] watches the allocator.
///
/// A block's memory stays where it is while the block lives, and the block lives while somebody else uses it: that is the promise of
/// who shares it. So nothing is pinned for longer than an export takes.
pub(crate) fn share(
    caching: &CachingAllocator,
    address: CUdeviceptr,
    version: u8,
) -> pool::Result<Option<ShareableHandle>> {
    let (base, bytes) = caching.base_allocation(address)?;
    let pinned = match caching.pin(base, bytes, Pin::Exported) {
        Err(pool::Error::UnknownAddress { .. }) => return Ok(None),
        pinned => pinned?,
    };
    let segments = pinned.segments()?;
    let Some(first) = segments.first() else {
        return Err(pool::Error::UnknownAddress { address });
    };
    if segments.iter().any(|segment| segment.bytes != first.bytes) {
        let what = "PyTorch's handle: its pieces differ in size. Allocate it in a torch.cuda.MemPool";
        return Err(core::Error::NotShareable { what }.into());
    }
    let exported = segments.iter().map(|segment| export(caching, segment));
    let (descriptors, handles) = exported.collect::<pool::Result<(Vec<_>, Vec<_>)>>()?;
    let named = Named::Mapped(Mapped {
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        size: first.bytes as u64,
        descriptors,
        offer: socket::name().map(|socket| Offer { socket, handles }),
    });
    Ok(Some(ShareableHandle { offset: address.wrapping_sub(first.address), handle: named.write(version) }))
}

/// The descriptor of a segment that is pinned, and its name.
fn export(caching: &CachingAllocator, segment: &Segment) -> pool::Result<(i32, u64)> {
    if let Some(known) = descriptors::find(segment) {
        return Ok(known);
    }
    // Not under the lock of the descriptors: it is taken by what watches, under the locks that this takes.
    let pinned = caching.pin(segment.address, 1, Pin::Exported)?;
    let exported = pinned.export_posix_fds()?.into_iter().next();
    let (_, descriptor) = exported.ok_or(pool::Error::UnknownAddress { address: segment.address })?;
    Ok(descriptors::add(segment, descriptor))
}

/// Memory of `cuMemAlloc`, by the driver's handle for the whole of it, in the version that all readers take.
impl From<MemoryHandle> for ShareableHandle {
    fn from(handle: MemoryHandle) -> Self {
        Self { offset: handle.offset(), handle: Named::Legacy(*handle.base()).write(VERSIONS[0]) }
    }
}

/// The driver's handle of memory of `cuMemAlloc`, which is for the whole of it.
///
/// # Safety
///
/// As [`share_ipc_handle`](crate::CudaAllocator::share_ipc_handle).
pub(crate) unsafe fn legacy(context: &Context, address: CUdeviceptr) -> core::Result<ShareableHandle> {
    // SAFETY: the caller's promise.
    Ok(unsafe { MemoryHandle::of_address(context, address, 1) }?.into())
}

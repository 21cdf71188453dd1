//! The pinned cache behind collections: [`Allocator`] for [`PinnedCachingAllocator`].
//!
//! # Safety
//!
//! Relies on a [`PinnedBlock`](super::PinnedBlock) being memory that nobody else has until it is dropped. Its owner is kept in [`ByAddress`](super::resource::ByAddress)
//! from `allocate` to `deallocate`, and for ever if that never comes.

#![allow(unsafe_code, reason = "implements an unsafe trait")]

use std::alloc::Layout;
use std::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};
use cuda_mem_core::forked;
use cuda_mem_core::sys::CUdeviceptr;

use super::allocator::PinnedCachingAllocator;
use crate::engine::classes;

/// Pinned memory for the collections of `allocator-api2`, and others that take its trait. With the feature `allocator-api2`.
///
/// A collection of any element type may have it; [`PinnedVec`](super::PinnedVec) is the one that copies to and from devices without
/// `unsafe`. Alignments above 256 bytes are refused. A collection that is given back is filled with zeroes: its elements may have had
/// padding, which [`PinnedBlock`](super::PinnedBlock) would hand out as bytes. A block that is never given back is leaked.
///
/// ```
/// use allocator_api2::vec::Vec;
/// use cuda_mem_core::Driver;
/// use cuda_mem_pool::PinnedCachingAllocator;
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let allocator = PinnedCachingAllocator::new(&driver.device(0)?.primary_context()?);
/// let mut names = Vec::new_in(&allocator);
/// names.extend([(1u8, 2u32), (3, 4)]);
/// assert_eq!(allocator.statistics().active_requests.current, 1);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
// SAFETY: a block is its receiver's alone until it comes back here, and stays valid if it does not; that the reference moves changes nothing.
unsafe impl Allocator for &PinnedCachingAllocator {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            let start = NonNull::new(std::ptr::without_provenance_mut(layout.align())).ok_or(AllocError)?;
            return Ok(NonNull::slice_from_raw_parts(start, 0));
        }
        if layout.align() > classes::GRANULE {
            return Err(AllocError);
        }
        let block = PinnedCachingAllocator::allocate(self, layout.size()).map_err(|_refused| AllocError)?;
        let start = block.start();
        self.shared().lent.enter(start.addr().get() as CUdeviceptr, block);
        Ok(NonNull::slice_from_raw_parts(start, layout.size()))
    }

    unsafe fn deallocate(&self, start: NonNull<u8>, layout: Layout) {
        // In a forked child it is the parent's, and a thread of the parent may have held the lock.
        if layout.size() == 0 || forked() {
            return;
        }
        // SAFETY: the caller gives back this many bytes that it had from `allocate`, and nobody uses any more.
        unsafe { start.write_bytes(0, layout.size()) };
        // Its drop gives the block back. One that is not there was none of these, against the contract: nothing is given back then.
        let _block = self.shared().lent.take_out(start.addr().get() as CUdeviceptr, layout.size());
    }
}

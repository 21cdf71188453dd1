//! Memory with the function that frees it.
//!
//! # Safety
//!
//! Relies on the caller that makes a [`DataPtr`] handing over memory that the deleter's allocator gave, that no other code frees, and that
//! may be freed whenever the owner is dropped.

#![allow(unsafe_code, reason = "gives memory back by address")]

use std::sync::Arc;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Device, forked};

use super::pools::for_core;
use crate::error::Result;

/// What frees by address.
///
/// # Safety
///
/// As [`CudaAllocator::raw_delete`](super::CudaAllocator::raw_delete), which is it.
pub(crate) trait Delete: Send + Sync {
    unsafe fn delete(&self, address: CUdeviceptr) -> Result<()>;
}

/// The function that frees what an allocator gave: that allocator's own, also after another one became the program's. Two are
/// equal if they are of the same allocator. [`DataPtr`] has an example.
#[derive(Clone)]
pub struct RawDeleter(Arc<dyn Delete>);

impl RawDeleter {
    pub(crate) fn new(deleter: Arc<dyn Delete>) -> Self {
        Self(deleter)
    }

    /// Frees an allocation; nothing for address 0.
    ///
    /// # Errors
    ///
    /// As [`CudaAllocator::raw_delete`](super::CudaAllocator::raw_delete).
    ///
    /// # Safety
    ///
    /// As there.
    pub unsafe fn delete(&self, address: CUdeviceptr) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.0.delete(address) }
    }
}

impl PartialEq for RawDeleter {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.0), Arc::as_ptr(&other.0))
    }
}

impl Eq for RawDeleter {}

crate::impl_debug!(RawDeleter);

/// An allocation and what frees it. Dropped, it goes back, ordered on the stream that it was allocated for and behind those that
/// [`CudaAllocator::record_stream`](super::CudaAllocator::record_stream) was told; nothing else orders it, so work on its address
/// elsewhere is its author's `unsafe` responsibility.
///
/// An allocation of no bytes has address 0.
///
/// ```
/// use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Driver;
/// use cuda_mem_torch::{CudaAllocator, NativeAllocator};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let device = driver.device(0)?;
/// let allocator = NativeAllocator::new(driver);
/// allocator.init(1)?;
/// let block = device.primary_context()?.with_current(|| allocator.allocate(4096))??;
/// assert_eq!(block.deleter(), &allocator.raw_deleter());
/// drop(block);
/// assert_eq!(allocator.device_stats(device)?.allocation.all.current, 0);
/// # Ok::<(), cuda_mem_torch::Error>(())
/// ```
#[derive(Debug)]
pub struct DataPtr {
    address: CUdeviceptr,
    device: Device,
    deleter: RawDeleter,
}

impl DataPtr {
    /// An allocation that the deleter frees.
    ///
    /// # Safety
    ///
    /// `address` is 0, or was given by the deleter's allocator, and nobody else frees it. Whenever this is dropped or closed, the memory may be
    /// freed as [`raw_delete`](super::CudaAllocator::raw_delete) demands: work that uses it is ordered before that point of its stream or is on
    /// streams that [`record_stream`](super::CudaAllocator::record_stream) was told, and a graph uses it only where a private pool keeps it.
    #[must_use]
    pub unsafe fn from_raw(address: CUdeviceptr, device: Device, deleter: RawDeleter) -> Self {
        Self { address, device, deleter }
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// On which device.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// What frees it.
    #[must_use]
    pub fn deleter(&self) -> &RawDeleter {
        &self.deleter
    }

    /// Its address alone: it is leaked unless its allocator's `raw_delete` gets it.
    #[must_use = "the memory is leaked unless it is freed by its address"]
    pub fn into_raw(mut self) -> CUdeviceptr {
        // At address 0 there is nothing to free.
        std::mem::take(&mut self.address)
    }

    /// Frees it now, and tells whether that was possible. After an error it is still allocated, and leaked.
    ///
    /// # Errors
    ///
    /// As [`CudaAllocator::raw_delete`](super::CudaAllocator::raw_delete).
    pub fn close(mut self) -> Result<()> {
        let address = std::mem::take(&mut self.address);
        // SAFETY: of this deleter's allocator, and freed once: it was taken out of its owner. It may be freed now, as `from_raw` was promised.
        unsafe { self.deleter.delete(address) }
    }
}

impl Drop for DataPtr {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        // SAFETY: of this deleter's allocator, freed by its only owner; it may be freed now, as `from_raw` was promised.
        let freed = unsafe { self.deleter.delete(self.address) };
        if let Err(error) = freed {
            self.device.driver().report_release_failure(&for_core(error, self.address));
        }
    }
}

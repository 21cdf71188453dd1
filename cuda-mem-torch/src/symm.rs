//! Symmetric memory as the allocator of a memory pool.
//!
//! The functions and the registry are those of [`cuda_mem_ipc::symmetric`]; here they become an allocator as PyTorch has it, which a
//! [`MemPool`](crate::MemPool) takes.
//!
//! ```
//! use std::sync::Arc;
//!
//! use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Driver, Stream};
//! use cuda_mem_torch::cuda_mem_ipc::symmetric::{self, DeviceType};
//! use cuda_mem_torch::{CudaAllocator, Error, symm};
//!
//! let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
//! let device = driver.device(0)?;
//! let allocator = symm::get_mempool_allocator(driver, DeviceType::CUDA)?;
//! // The program has chosen no backend that allocates without a group.
//! let refused = allocator.malloc(4096, device, &Stream::new(&device.primary_context()?)?);
//! assert!(matches!(refused, Err(Error::Symmetric(symmetric::Error::NotForMempools { .. }))));
//! # Ok::<(), Error>(())
//! ```
//!
//! # Safety
//!
//! Relies on [`MempoolAllocator`]s giving memory that is its receiver's until it is freed: an unsafe trait.

#![allow(unsafe_code, reason = "makes an allocator of functions")]

use std::sync::Arc;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Driver;
pub use cuda_mem_ipc::symmetric::{
    Backends, DeviceType, MempoolAllocator, SymmetricMempool, cuda_symm_alloc, cuda_symm_free,
};

use crate::error::Result;
use crate::pluggable::{PluggableAllocator, create_custom_allocator};

/// An allocator of a registered pair of functions: for CUDA, [`cuda_symm_alloc`] and [`cuda_symm_free`] with the backend that the
/// program has chosen when it is first used. PyTorch's `get_mempool_allocator`.
///
/// Each call makes another allocator, with bookkeeping of its own, over the same functions.
///
/// # Errors
///
/// [`NoMempoolAllocator`](cuda_mem_ipc::symmetric::Error::NoMempoolAllocator) in [`Error::Symmetric`](crate::Error::Symmetric).
pub fn get_mempool_allocator(driver: Driver, device_type: DeviceType) -> Result<Arc<PluggableAllocator>> {
    of(driver, Backends::global().get_mempool_allocator(device_type)?)
}

/// An allocator of a pair of functions that need not be registered.
///
/// # Errors
///
/// As [`create_custom_allocator`].
pub fn of(driver: Driver, functions: Arc<dyn MempoolAllocator>) -> Result<Arc<PluggableAllocator>> {
    let freeing = Arc::clone(&functions);
    let alloc = move |size, device, stream: &_| Ok(functions.alloc(size, device, stream)?);
    let free = move |address, size, device, stream: &_| Ok(freeing.free(address, size, device, stream)?);
    // SAFETY: by the contract of the trait memory is its receiver's until it is freed, there when the call returns.
    unsafe { create_custom_allocator(driver, alloc, free) }
}

/// Registers a pair of functions for a kind of device, once: PyTorch's `register_mempool_allocator`. CUDA's is there already.
///
/// # Errors
///
/// [`MempoolAllocatorExists`](cuda_mem_ipc::symmetric::Error::MempoolAllocatorExists) in [`Error::Symmetric`](crate::Error::Symmetric).
pub fn register_mempool_allocator(
    device_type: DeviceType,
    allocator: Arc<dyn MempoolAllocator>,
) -> Result<()> {
    Ok(Backends::global().register_mempool_allocator(device_type, allocator)?)
}

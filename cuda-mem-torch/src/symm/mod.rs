//! Symmetric memory as PyTorch has it: a registry of backends by kind of device and name, and allocators of memory pools over them.
//!
//! The backends are those of [`cuda_mem_ipc::symmetric`]. A Rust program without PyTorch takes its `Group::alloc` and needs none of this.
//!
//! ```
//! use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Driver, Stream};
//! use cuda_mem_torch::symm::{self, Backends, DeviceType, RegistryError};
//! use cuda_mem_torch::{CudaAllocator, Error};
//!
//! assert_eq!(Backends::global().names(DeviceType::CUDA), ["NATIVE"]);
//! let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
//! let device = driver.device(0)?;
//! let allocator = symm::get_mempool_allocator(driver, DeviceType::CUDA)?;
//! // The program has chosen no backend that allocates without a group.
//! let refused = allocator.malloc(4096, device, &Stream::new(&device.primary_context()?)?);
//! assert!(matches!(refused, Err(Error::Registry(RegistryError::NotForMempools { .. }))));
//! # Ok::<(), Error>(())
//! ```
//!
//! # Safety
//!
//! Relies on [`MempoolAllocator`]s giving memory that is its receiver's until it is freed: an unsafe trait.

#![allow(unsafe_code, reason = "makes an allocator of functions")]

mod backends;
mod mempool;

use std::sync::Arc;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Driver;

use crate::error::Result;
use crate::pluggable::{PluggableAllocator, create_custom_allocator};

pub use crate::error::RegistryError;
pub use backends::{Backends, DeviceType};
pub use mempool::{MempoolAllocator, SymmetricMempool, cuda_symm_alloc, cuda_symm_free};

/// An allocator of a registered pair of functions: for CUDA, [`cuda_symm_alloc`] and [`cuda_symm_free`] with the backend that the
/// program has chosen when it is first used. PyTorch's `get_mempool_allocator`.
/// Each call makes another allocator, with bookkeeping of its own, over the same functions.
///
/// # Errors
///
/// [`RegistryError::NoMempoolAllocator`], and `Forked` as there.
pub fn get_mempool_allocator(driver: Driver, device_type: DeviceType) -> Result<Arc<PluggableAllocator>> {
    of(driver, Backends::global().get_mempool_allocator(device_type)?)
}

/// An allocator of a pair of functions that need not be registered: [`create_custom_allocator`], which says what its errors are.
pub fn of(driver: Driver, functions: Arc<dyn MempoolAllocator>) -> Result<Arc<PluggableAllocator>> {
    let freeing = Arc::clone(&functions);
    let alloc = move |size, device, stream: &_| functions.alloc(size, device, stream);
    let free = move |address, size, device, stream: &_| {
        // SAFETY: the allocator frees what it was given, once, behind the work that the stream was given.
        unsafe { freeing.free(address, size, device, stream) }
    };
    // SAFETY: by the contract of the trait memory is of that size and device, its receiver's until it is freed, and used behind the call.
    unsafe { create_custom_allocator(driver, alloc, free) }
}

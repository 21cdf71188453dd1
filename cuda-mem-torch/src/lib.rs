//! PyTorch's allocator interfaces over cuda-mem, in Rust terms: nothing of Python or PyTorch is needed to use or test them.
//!
//! - [`CudaAllocator`] is PyTorch's allocator interface. Two types have it: [`NativeAllocator`], the caching one, and
//!   [`PluggableAllocator`], a pair of functions with this crate's bookkeeping around it. [`change_current_allocator`] makes one the
//!   program's.
//! - [`MemPool`] is a private pool, of this allocator's memory or another's.
//! - [`symm`] is PyTorch's registry of symmetric memory, and makes pools of that memory.
//! - [`dlpack`] lends memory to other libraries and borrows theirs.
//! - [`pin_memory`] and [`unpin_memory`] pin host memory by address, as `torch.cuda` does.
//!
//! ```
//! use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Driver, Stream};
//! use cuda_mem_torch::{CudaAllocator, NativeAllocator};
//!
//! let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
//! let device = driver.device(0)?;
//! let stream = Stream::new(&device.primary_context()?)?;
//! let allocator = NativeAllocator::new(driver);
//! allocator.init(driver.device_count()?)?;
//! let block = allocator.malloc(1 << 20, device, &stream)?;
//! assert_eq!(allocator.device_stats(device)?.allocated_bytes.all.current, 1 << 20);
//! // SAFETY: nothing uses the block.
//! unsafe { allocator.raw_delete(block) }?;
//! # Ok::<(), cuda_mem_torch::Error>(())
//! ```
//!
//! The layer below is re-exported, so that this crate serves as a project's only dependency.

#![deny(unsafe_code)]

pub mod abi;
mod allocator;
mod current;
mod devices;
pub mod dlpack;
mod error;
mod ipc;
mod lock;
mod mem_pool;
mod pluggable;
pub mod symm;
mod uncached;

pub use allocator::{AllocatorState, CheckpointDelta, CudaAllocator, DataPtr, NativeAllocator, RawDeleter};
pub use cuda_mem_ipc;
pub use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::host::raw::{PinError, pin_memory, unpin_memory};
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::impl_debug;
pub use current::{change_current_allocator, current_allocator};
pub use error::{Error, HandleError, OutOfMemory, OutOfMemoryObserver, Result};
pub use ipc::{IpcDevPtr, ShareableHandle};
pub use mem_pool::MemPool;
pub use pluggable::{PluggableAllocator, create_custom_allocator};

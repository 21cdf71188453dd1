//! PyTorch's allocator interfaces over cuda-mem.
//!
//! This release pins and unpins host memory by address, as `torch.cuda` does: [`pin_memory`], [`unpin_memory`]. The layer below
//! is re-exported, so that this crate serves as a project's only dependency:
//!
//! ```
//! use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{DeviceBuffer, Driver, Stream};
//!
//! let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
//! let context = driver.device(0)?.primary_context()?;
//! let buffer = DeviceBuffer::<f32>::zeroed(&Stream::new(&context)?, 1024)?;
//! assert_eq!(buffer.size_bytes(), 4096);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]

pub mod abi;

pub use cuda_mem_ipc;
pub use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::host::raw::{PinError, pin_memory, unpin_memory};

//! Memory resources and caching allocators for GPU and pinned host memory.
//!
//! The layer below is re-exported, so that this crate serves as a project's only dependency:
//!
//! ```
//! use cuda_mem_pool::cuda_mem_core::{DeviceBuffer, Driver, Stream};
//!
//! let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
//! let context = driver.device(0)?.primary_context()?;
//! let buffer = DeviceBuffer::<f32>::zeroed(&Stream::new(&context)?, 1024)?;
//! assert_eq!(buffer.size_bytes(), 4096);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]

mod engine;
pub mod pinned_cache;
mod primitive;

pub use cuda_mem_core;
pub use pinned_cache::{PinnedBlock, PinnedCachingAllocator};

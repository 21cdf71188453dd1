//! Memory resources and caching allocators for GPU and pinned host memory.
//!
//! ```
//! use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
//! use cuda_mem_pool::cuda_mem_core::{Driver, Stream, Transfer};
//! use cuda_mem_pool::{MemoryResource, PinnedCachingAllocator};
//! let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
//! let context = driver.device(0)?.primary_context()?;
//! let stream = Stream::new(&context)?;
//! let mut pinned = PinnedCachingAllocator::new(&context).allocate(1 << 20)?;
//! pinned.as_mut_slice()?.fill(42);
//! let block = CachingAllocator::new(&context, &CachingOptions::default())?.allocate(1 << 20, &stream)?;
//! Transfer::upload(&stream, pinned, &block.whole())?.wait()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The layer below is [`cuda_mem_core`], re-exported so that this crate serves as a project's only dependency; what holds
//! everywhere there holds here. Calls may be made while streams capture graphs, except where `# Capture` says otherwise.
//!
//! Any call can fail with [`Error::Core`], as any call of that layer can; with [`Error::UnknownAddress`] and [`Error::TooLarge`] for an
//! address or a range that it does not have; and, in a backing watcher, with [`Error::InCallback`]. A section `# Errors` names further errors.
//! A call that names another one has that one's errors, and one that writes has the writer's.
//!
//! # Layers
//!
//! Modules import downwards only:
//!
//! ```text
//! caching, pinned_cache        the caching allocators of device and of pinned memory
//! driver_pool, adaptor, trace  resources over the driver's pools, resources over resources, recorded allocations
//! history                      a ring of the latest events, and their trackers
//! snapshot                     segments and blocks of an allocator, in PyTorch's schema
//! statistics, engine           figures and their peaks; blocks, pages and segments as pure bookkeeping
//! resource                     the traits of resources, and what they give
//! error, mempool_id, primitive
//! ```

#![deny(unsafe_code)]

mod adaptor;
pub mod caching;
mod driver_pool;
mod engine;
mod error;
pub mod history;
mod mempool_id;
pub mod pinned_cache;
mod primitive;
mod resource;
mod shelves;
pub mod snapshot;
pub mod statistics;
pub mod trace;

pub use adaptor::{OutstandingAllocation, TrackingAdaptor};
pub use cuda_mem_core;
use cuda_mem_core::impl_debug;
pub use driver_pool::{
    Attributes, DeviceMemoryResource, DeviceMemoryResourceOptions, PinnedMemoryResource,
    PinnedMemoryResourceOptions,
};
pub use engine::{paged, segments};
pub use error::{Error, Result};
pub use mempool_id::MempoolId;
pub use pinned_cache::{PinnedBlock, PinnedCachingAllocator, PinnedVec};
pub use resource::{
    Allocation, DEFAULT_ALIGNMENT, DeviceAccessible, HostDeviceAccessible, MemoryResource, RawResource,
    ResourceContext,
};
pub use uuid::Uuid;

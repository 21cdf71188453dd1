//! What PyTorch asks of an allocator, and the caching one.

mod api;
mod caches;
mod data_ptr;
mod memory;
mod native;
mod pools;

pub use api::CudaAllocator;
pub use data_ptr::{DataPtr, RawDeleter};
pub use native::NativeAllocator;

pub(crate) use self::sealed::Sealed;
pub(crate) use caches::{Caches, refuse_forked};
pub(crate) use data_ptr::Delete;
pub(crate) use memory::expect_stream_of;
pub(crate) use pools::{AllocatorSource, for_core, for_pool};
pub use pools::{AllocatorState, CheckpointDelta};

mod sealed {
    /// Keeps [`CudaAllocator`](super::CudaAllocator) to the types of this crate.
    pub trait Sealed {}
}

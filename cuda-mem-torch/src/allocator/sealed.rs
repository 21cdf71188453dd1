//! Keeps [`CudaAllocator`](super::CudaAllocator) to the types of this crate.

/// What stands behind `CudaAllocator`.
pub trait Sealed {}

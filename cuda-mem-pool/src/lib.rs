//! Memory resources and caching allocators for GPU and pinned host memory.
#![deny(unsafe_code)]

pub use cuda_mem_core as core;

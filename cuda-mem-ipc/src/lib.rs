//! GPU and pinned memory across processes.
#![deny(unsafe_code)]

pub use cuda_mem_pool as pool;

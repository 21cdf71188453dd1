//! PyTorch's allocator interfaces over cuda-mem.
#![deny(unsafe_code)]

pub use cuda_mem_ipc as ipc;

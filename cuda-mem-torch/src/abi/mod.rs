//! The C ABI: `libcuda_mem_torch.so`, which the package in `library/` makes, and `include/cuda_mem_torch.h`.
//!
//! One caching allocator for each device, for the whole process, under names that begin with `cuda_mem_torch_`. The C++ shim in
//! `shim/` makes PyTorch's allocator interface of it; C programs use it as it is.
//!
//! - Every function returns [`CUDA_MEM_TORCH_OK`] or another code, and leaves a message for [`cuda_mem_torch_last_error`] in the calling thread.
//!   Few return something else, which cannot fail.
//! - Nothing unwinds out of here. Functions that are passed in must not unwind into here either.
//! - No function takes the GIL. Functions that are passed in are called with no lock held, but for trackers, which must not wait for other
//!   threads that allocate, and must not take the GIL, and pools' filters, which must not wait for threads that end a use of a pool.
//! - In a forked child every function that returns a code returns [`CUDA_MEM_TORCH_FORKED`], before any lock is taken;
//!   [`cuda_mem_torch_last_error`] says so there.
//! - A stream's handle names the same stream until [`cuda_mem_torch_forget_stream`] is told of its end. One that lasts must be seen here
//!   for the first time while it does not capture: by an allocation, or by [`cuda_mem_torch_see_stream`].
//!
//! ```
//! use std::ffi::{c_int, c_void};
//! use cuda_mem_torch::abi::{self, cuda_mem_torch_delete, cuda_mem_torch_init, cuda_mem_torch_malloc};
//! use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Driver;
//!
//! abi::use_driver(Driver::over(cuda_mem_sim::table())?); // not with a GPU
//! let mut block: *mut c_void = std::ptr::null_mut();
//! assert_eq!(cuda_mem_torch_init(1), abi::CUDA_MEM_TORCH_OK);
//! // SAFETY: one address to write; the default stream.
//! let code = unsafe { cuda_mem_torch_malloc(0, 1 << 20, std::ptr::null_mut(), &mut block) };
//! assert_eq!(code, abi::CUDA_MEM_TORCH_OK);
//! // SAFETY: nothing uses it.
//! assert_eq!(unsafe { cuda_mem_torch_delete(block) }, abi::CUDA_MEM_TORCH_OK);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Safety
//!
//! Declares functions for C, whose callers answer for the pointers that they pass.

#![allow(unsafe_code, reason = "declares functions for C")]
#![allow(non_camel_case_types, reason = "C's names")]

mod callbacks;
mod checkpoint;
mod contexts;
mod devices;
mod error;
mod history;
mod ipc;
mod leaving;
mod memory;
mod out_of_memory;
mod pinned;
mod plain;
mod pointers;
mod pools;
mod report;
mod settings;
mod sleep;
mod snapshot;
mod source;
mod stats;
mod still;
mod streams;
mod symm;
mod tags;
mod top;
mod uncached;

pub use callbacks::*;
pub use checkpoint::*;
pub use devices::*;
pub use error::*;
pub use history::*;
pub use ipc::*;
pub use memory::*;
pub use pinned::*;
pub use plain::*;
pub use pools::*;
pub use report::*;
pub use settings::*;
pub use sleep::*;
pub use snapshot::*;
pub use source::*;
pub use stats::*;
pub use still::*;
pub use streams::{
    cuda_mem_torch_ask_for_lasting, cuda_mem_torch_forget_stream, cuda_mem_torch_see_stream,
    cuda_mem_torch_synchronize,
};
pub use symm::*;
pub use tags::*;
pub use top::{cuda_mem_torch_top, cuda_mem_torch_top_table};

use std::ffi::{c_char, c_int};

/// What [`cuda_mem_torch_abi_version`] says. It changes when anything here changes its meaning or its layout.
pub const CUDA_MEM_TORCH_ABI_VERSION: u32 = 8;

/// The version of the interface, [`CUDA_MEM_TORCH_ABI_VERSION`] of the header that the library was built with. Ask before anything else.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_abi_version() -> u32 {
    CUDA_MEM_TORCH_ABI_VERSION
}

/// The version of the library, for people.
#[unsafe(no_mangle)]
pub extern "C" fn cuda_mem_torch_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// A private pool, as PyTorch's `MempoolId_t`. Zeros are no pool.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct cuda_mem_torch_pool_id {
    /// Of a graph's pool.
    pub first: u64,
    /// Of a user's pool.
    pub second: u64,
}

/// All devices, where one may be named.
pub const CUDA_MEM_TORCH_ALL_DEVICES: c_int = -1;

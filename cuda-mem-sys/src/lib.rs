//! Raw bindings to the memory interface of the CUDA driver, loaded at run time.
//!
//! Nothing is linked: a program with these bindings starts on a machine without a GPU or driver, and finds out by asking.
//! A [`Table`] stands for one driver. It looks up each function when it is first asked for, through `cuGetProcAddress`, at
//! exactly the ABI version that the function's type was generated for, and only if the driver is that new; a function that
//! is not there is a [`MissingFunction`], not a crash.
//!
//! ```
//! use cuda_mem_sys::{CUresult, LoadError, Table};
//!
//! match Table::system() {
//!     Ok(table) => {
//!         let init = table.cuInit()?;
//!         // SAFETY: cuInit may be called at any time, from any thread, with flags 0.
//!         let result = unsafe { init(0) };
//!         println!("driver {}: cuInit gave {}", table.version(), result.0);
//!     }
//!     Err(error) => println!("no driver here: {error}"),
//! }
//! # Ok::<(), cuda_mem_sys::MissingFunction>(())
//! ```
//!
//! Result codes, enumerations and flags are newtypes over integers with constants, never Rust enums: a newer driver may
//! return a value that these headers do not know.
//!
//! The crate stands alone: its only dependency is `libloading`, and copying its folder is vendoring it.

#[cfg(any(feature = "nccl", feature = "nvshmem"))]
pub mod engine;
mod error;
mod library;
#[cfg(feature = "nccl")]
pub mod nccl;
#[cfg(feature = "nvml")]
pub mod nvml;
#[cfg(feature = "nvshmem")]
pub mod nvshmem;
mod table;
mod types;

pub use error::{LoadError, MissingFunction};
pub use library::{LibraryId, variable};
pub use table::{FUNCTIONS, FunctionInfo, MINIMUM_DRIVER, Table};
pub use types::*;

/// The handle of the legacy default stream, which waits for and is waited for by all blocking streams of its context.
///
/// [Stream synchronisation behaviour](https://docs.nvidia.com/cuda/cuda-driver-api/stream-sync-behavior.html)
pub const CU_STREAM_LEGACY: CUstream = std::ptr::without_provenance_mut(1);

/// The handle of the calling thread's default stream: another stream in every thread.
///
/// [Stream synchronisation behaviour](https://docs.nvidia.com/cuda/cuda-driver-api/stream-sync-behavior.html)
pub const CU_STREAM_PER_THREAD: CUstream = std::ptr::without_provenance_mut(2);

//! GPU and pinned memory across processes.
//!
//! [`transport`] is how two processes of a host talk: it passes descriptors, checks who is at the other end, bounds every message and notices
//! the death of a peer. [`Imports`] maps memory of other processes once, however often it is asked for; the handles are those of
//! `cuda_mem_core::ipc`. [`shared`] hands buffers from one process to another, each with the fence that orders it. [`symmetric`] allocates a
//! buffer of the same size on every rank of a group and gives each rank the addresses of the others'; with the features `nvshmem` and `nccl`
//! over those libraries too. Functions may be called while streams capture, unless their documentation says otherwise.
//!
//! The layer below is re-exported, so that this crate serves as a project's only dependency:
//!
//! ```
//! use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Driver, Stream};
//! use cuda_mem_ipc::shared::{SharedPool, SharedPoolOptions};
//!
//! let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
//! let pool = SharedPool::new(&context, &SharedPoolOptions::default())?;
//! let buffer = pool.allocate(4096, &Stream::new(&context)?)?; // for another process: `Exporter::listen` has both sides
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(unsafe_code)]
#![allow(clippy::len_without_is_empty, reason = "there are no buffers without bytes")]

mod background;
mod error;
mod free_list;
mod import;
mod memory_file;
mod primitive;
pub mod shared;
pub mod symmetric;
pub mod transport;

pub use cuda_mem_pool;
use cuda_mem_pool::cuda_mem_core::impl_debug;
pub use error::{Error, Result};
pub use import::{Departure, ImportError, ImportKey, Imports};

/// Bytes of the largest page that systems have: what is shared is a whole number of pages.
const LARGEST_PAGE: usize = 1 << 16;

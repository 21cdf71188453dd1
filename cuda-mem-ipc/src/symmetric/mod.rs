//! Symmetric memory: the same buffer on every rank of a group, each rank with the addresses of all.
//!
//! A Rust program takes [`Group::alloc`] and [`Group::barrier`], and need read no further.
//!
//! The other words are PyTorch's. A [`SymmetricBackend`] allocates and brings ranks together; [`Backends`] knows them by device type and
//! name and has one chosen for each type; [`SymmetricMemory`] is what a rank has after the rendezvous: the addresses, signal pads,
//! and signals that order the ranks' streams. [`NativeBackend`] is the one that is there without a further library, for ranks of one
//! host. With the features `nvshmem` and `nccl` there is `EngineBackend`, over those libraries where a machine has
//! them. [`cuda_symm_alloc`] and [`cuda_symm_free`] are the pair of functions that a memory pool is made over. `docs/symmetric.md`
//! has the protocol and what each side may assume when a rank dies.
//!
//! ```
//! use std::sync::Arc;
//! use std::thread;
//!
//! use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Driver, Stream};
//! use cuda_mem_ipc::symmetric::{Backends, DeviceType, Group, GroupOptions, NativeBackend};
//!
//! # fn rank(rank: usize, directory: std::path::PathBuf) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
//! let context = driver.device(0)?.primary_context()?;
//! let stream = Stream::new(&context)?;
//! let group = Group::join(&context, "training", rank, 2, &directory, &GroupOptions::default())?;
//!
//! let backends = Backends::new(); // a program has Backends::global()
//! let native = Arc::new(NativeBackend::new());
//! native.add_group(&group)?;
//! backends.register(DeviceType::CUDA, native)?;
//! let buffer = backends.empty(1 << 20, context.device(), Some("training"))?;
//! let memory = buffer.rendezvous(None)?;
//! memory.barrier(&stream, 0, None)?; // what was put into the stream before is done on every rank
//! let other = memory.get_buffer(1 - rank, 0..1 << 20)?;
//! let address = other.on(&stream)?.address(); // for a kernel
//! memory.barrier(&stream, 0, None)?; // nobody reads any more
//! stream.synchronize()?;
//! memory.check()?; // and nobody died meanwhile
//! # let _ = address;
//! # Ok(())
//! # }
//! # // The ranks are processes; here threads.
//! # let directory = std::env::temp_dir().join(format!("symmetric-{}", std::process::id()));
//! # let ranks = [0, 1].map(|number| {
//! #     let directory = directory.clone();
//! #     thread::spawn(move || rank(number, directory))
//! # });
//! # for rank in ranks { rank.join().expect("no panic")?; }
//! # std::fs::remove_dir(directory)?;
//! # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
//! ```

mod backend;
mod backends;
mod buffer;
#[cfg(any(feature = "nccl", feature = "nvshmem"))]
mod engine;
mod error;
mod exchange;
mod memory;
mod mempool;
mod native;

pub use backend::{Allocated, DeviceType, SymmetricBackend};
pub use backends::Backends;
pub use buffer::SymmetricBuffer;
#[cfg(any(feature = "nccl", feature = "nvshmem"))]
pub use engine::{EngineBackend, EngineOptions};
pub use error::{Error, Result, Why};
pub use exchange::Exchange;
pub use memory::{PeerBuffer, SymmetricMemory};
pub use mempool::{MempoolAllocator, SymmetricMempool, cuda_symm_alloc, cuda_symm_free};
pub use native::{CHANNELS, Freed, Group, GroupBuffer, GroupOptions, NativeBackend, SIGNAL_PAD_BYTES};

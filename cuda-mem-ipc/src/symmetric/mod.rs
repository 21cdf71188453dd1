//! Symmetric memory: the same buffer on every rank of a group, each rank with the addresses of all.
//!
//! A Rust program takes [`Group::alloc`] and [`Group::barrier`], and need read no further.
//!
//! The other words are PyTorch's, whose registry of backends is in `cuda-mem-torch`. A [`SymmetricBackend`] allocates and brings ranks
//! together; [`SymmetricMemory`] is what a rank has after the rendezvous: the addresses, signal pads, and signals that order the ranks'
//! streams. [`NativeBackend`] is the one that is there without a further library, for ranks of one host. With the features `nvshmem` and
//! `nccl` there is `EngineBackend`, over those libraries where a machine has them. `docs/symmetric.md` has the protocol, and what deaths mean.
//!
//! ```
//! use std::thread;
//!
//! use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{DeviceBuffer, Driver, Stream};
//! use cuda_mem_ipc::symmetric::{Group, GroupOptions};
//!
//! # fn rank(rank: usize, directory: std::path::PathBuf) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
//! let stream = Stream::new(&context)?;
//! let group = Group::join(&context, "training", rank, 2, &directory, &GroupOptions::default())?;
//! let buffer = group.alloc::<f32>(4)?;
//! buffer.of(rank)?.as_range::<f32>()?.copy_from_slice(&stream, &[rank as f32; 4])?;
//! group.barrier(&stream)?; // what was put into the stream before is done on every rank
//! let sum = DeviceBuffer::<f32>::zeroed(&stream, 4)?;
//! sum.whole().copy_from(&stream, &buffer.of(1 - rank)?.as_range()?)?;
//! group.barrier(&stream)?; // no rank reads any more
//! assert_eq!(sum.to_vec(&stream)?, [(1 - rank) as f32; 4]);
//! group.check()?; // and no rank died meanwhile
//! // SAFETY: nothing that uses memory of the group is queued on any rank before it wakes.
//! let freed = unsafe { group.sleep() }?; // all ranks' devices have the memory back
//! group.wake()?; // new memory at the same addresses
//! assert!(freed >= 64 << 20);
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
#[cfg(any(feature = "nccl", feature = "nvshmem"))]
mod engine;
mod error;
mod memory;
mod native;

pub use backend::{Allocated, Exchange, SymmetricBackend, SymmetricBuffer};
#[cfg(any(feature = "nccl", feature = "nvshmem"))]
pub use engine::EngineBackend;
pub use error::{Error, Result, Why};
pub use memory::{PeerBuffer, SymmetricMemory};
pub use native::{CHANNELS, Freed, Group, GroupBuffer, GroupOptions, NativeBackend, SIGNAL_PAD_BYTES};

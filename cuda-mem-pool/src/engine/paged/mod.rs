//! The engine of the device's default pool: heaps of mapped memory, which grows by handles.
//!
//! A `StreamHeap` has the blocks of one stream and is all that the usual allocation and free touch. When nothing free fits, the device's
//! `PageSource` completes the gap of the heap that lacks the fewest handles: with new ones while there is headroom, with free ones of elsewhere
//! when there is none. Neither knows of locks, threads or a driver: a [`Backend`] stands for that, a `BlockIndex` learns where blocks begin.
//!
//! [`CachingAllocator`](crate::caching::CachingAllocator) is this over the driver, `cargo xtask replay` over a model ([`Replay`]).

mod backend;
mod free;
mod growth;
mod heap;
mod memory;
mod moving;
mod quick;
mod replay;
mod sizes;
mod slabs;
mod spans;
mod timeline;
mod trim;
mod window;

pub use backend::{Backend, Climb, climb};
pub(crate) use growth::{GrowError, Heaps, PageSource, Wanted};
pub use heap::goes_first;
pub(crate) use heap::{BlockNumber, StreamHeap};
pub use memory::Segment;
pub use replay::Replay;
pub(crate) use sizes::{BlockIndex, MAX, MEDIUM, Policy, SLAB, Tier};
pub use sizes::{Hold, block_size};
pub(crate) use spans::{Piece, Spans};

#[cfg(any(test, loom))]
pub(crate) use {heap::Block, sizes::NoIndex};

#[cfg(test)]
mod tests;

//! The engine of the device's default pool: heaps of mapped memory, which grows by handles.
//!
//! A [`StreamHeap`] has the blocks of one stream and is all that the usual allocation and free touch. When nothing free fits,
//! the device's [`PageSource`] completes the gap of the heap that lacks the fewest handles: with new ones while there is headroom, with free
//! ones of elsewhere when there is none. Neither knows of locks, threads or a driver: a [`Backend`] stands for that, a [`BlockIndex`]
//! learns where blocks begin.
//!
//! [`CachingAllocator`](crate::caching::CachingAllocator) is this over the driver, `cargo xtask replay` over a model:
//!
//! ```
//! use std::convert::Infallible;
//! use cuda_mem_pool::paged::{Backend, Heaps, Load, NoIndex, PageSource, Policy, StreamHeap, Wanted, block_size};
//!
//! /// Memory that is counted, of a device that is always done.
//! struct Counted { next: u64, calls: usize }
//!
//! impl Backend for Counted {
//!     type Error = Infallible;
//!     type Point = ();
//!
//!     fn reserve(&mut self, bytes: u64) -> Result<Option<u64>, Infallible> {
//!         self.next += bytes;
//!         Ok(Some(self.next - bytes))
//!     }
//!     fn create(&mut self, _bytes: usize) -> Result<Option<u64>, Infallible> {
//!         self.calls += 1;
//!         Ok(Some(self.calls as u64))
//!     }
//!     fn map(&mut self, _: u64, _bytes: usize, memory: &[u64]) -> (usize, Result<(), Infallible>) {
//!         self.calls += memory.len();
//!         (memory.len(), Ok(()))
//!     }
//!     # fn unmap(&mut self, _: u64, _: usize) -> Result<(), Infallible> { Ok(()) }
//!     # fn release(&mut self, _: u64, _: usize) -> Result<(), Infallible> { Ok(()) }
//!     # fn point(&mut self, _: u32) -> Result<Option<()>, Infallible> { Ok(Some(())) }
//!     # fn is_done(&mut self, _: &()) -> Result<bool, Infallible> { Ok(true) }
//!     # fn wait(&mut self, _: u32, _: u32, _: &()) -> Result<bool, Infallible> { Ok(true) }
//!     // and the rest
//! }
//!
//! /// There is one stream.
//! struct One(StreamHeap);
//!
//! impl Heaps for One {
//!     fn others(&self, _but: u32) -> Vec<u32> { Vec::new() }
//!     fn with<R>(&mut self, _heap: u32, body: impl FnOnce(&mut StreamHeap) -> R) -> Option<R> { Some(body(&mut self.0)) }
//!     # fn with_coalesced<R>(&mut self, heap: u32, body: impl FnOnce(&mut StreamHeap) -> R) -> Option<R> { self.with(heap, body) }
//! }
//!
//! let mut source = PageSource::new(Counted { next: 1 << 40, calls: 0 }, Policy::for_memory(80 << 30), 80 << 30);
//! let mut heaps = One(StreamHeap::new());
//! let size = block_size(100_000_000).unwrap_or_default();
//! let wanted = Wanted { size, unused: 0, load: Load { active: 0, peak: 0 } };
//! let block = source.grow(0, &mut heaps, wanted, &NoIndex).map_err(|_| "no memory")?;
//! assert_eq!(source.reserved(), 5 * (20 << 20)); // handles of 20 MiB
//! heaps.0.free(block.number, &NoIndex);
//! assert!(heaps.0.allocate(size, 0, &NoIndex).is_some(), "without the source");
//! # Ok::<(), &str>(())
//! ```

mod backend;
mod growth;
mod heap;
mod index;
mod ladder;
mod memory;
mod moving;
mod pins;
mod policy;
mod quick;
mod sizes;
mod slabs;
mod spans;
mod timeline;
mod trim;
mod window;

pub use backend::{Backend, Change};
pub use growth::{GrowError, Heaps, Load, Moved, PageSource, Wanted};
pub use heap::{Block, BlockNumber, Freed, StreamHeap};
pub(crate) use index::small_class;
pub use index::{BlockIndex, NoIndex, SlabKind};
pub use ladder::{Climb, Step, climb};
pub(crate) use pins::Backing;
pub use policy::{Hold, Policy};
pub use sizes::block_size;
pub(crate) use sizes::{MAX, MEDIUM, SLAB, Tier};
pub(crate) use spans::Piece;

#[cfg(test)]
mod tests;

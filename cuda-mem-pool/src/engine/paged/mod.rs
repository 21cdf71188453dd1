//! The engine of the device's default pool: memory grows by pages, and free pages move to where they are needed.
//!
//! A [`StreamHeap`] has the blocks of one stream and is all that the usual allocation and free touch. When nothing free fits,
//! the device's [`PageSource`] finds the cheapest place where the block could lie, maps what that lacks, and offers it to the
//! heap. Neither knows of locks, threads or a driver: a [`Backend`] stands for that, a [`BlockIndex`] is told where blocks begin.
//!
//! [`CachingAllocator`](crate::caching::CachingAllocator) is this over the driver. Over books of one's own it tells what would
//! happen:
//!
//! ```
//! use cuda_mem_pool::paged::{Backend, Heaps, Load, NoIndex, PageSource, Policy, StreamHeap, Wanted, block_size};
//!
//! /// Memory that is counted, of a device that is always done.
//! struct Counted { next: u64, calls: usize }
//!
//! impl Backend for Counted {
//!     type Error = std::convert::Infallible;
//!     type Mark = ();
//!
//!     fn reserve(&mut self, bytes: u64) -> Result<Option<u64>, Self::Error> {
//!         self.next += bytes;
//!         Ok(Some(self.next - bytes))
//!     }
//!     fn create(&mut self, _bytes: usize) -> Result<Option<u64>, Self::Error> {
//!         self.calls += 1;
//!         Ok(Some(self.calls as u64))
//!     }
//!     fn map(&mut self, _address: u64, _bytes: usize, _memory: u64) -> Result<(), Self::Error> {
//!         self.calls += 1;
//!         Ok(())
//!     }
//!     # fn unmap(&mut self, _: u64, _: usize) -> Result<(), Self::Error> { Ok(()) }
//!     # fn release(&mut self, _: u64, _: usize) -> Result<(), Self::Error> { Ok(()) }
//!     # fn mark(&mut self, _: u32) -> Result<Option<()>, Self::Error> { Ok(Some(())) }
//!     # fn is_done(&mut self, _: &()) -> Result<bool, Self::Error> { Ok(true) }
//!     # fn wait(&mut self, _: u32, _: u32, _: &()) -> Result<bool, Self::Error> { Ok(true) }
//!     // and the rest
//! }
//!
//! /// There is one stream.
//! struct NoOthers;
//!
//! impl Heaps for NoOthers {
//!     fn others(&self) -> Vec<u32> { Vec::new() }
//!     fn with<R>(&mut self, _heap: u32, _body: impl FnOnce(&mut StreamHeap) -> R) -> Option<R> { None }
//! }
//!
//! let mut source = PageSource::new(Counted { next: 1 << 40, calls: 0 }, Policy::DEFAULT, 1 << 40);
//! let mut heap = StreamHeap::new();
//! let size = block_size(100_000_000).unwrap_or_default();
//! assert_eq!(heap.allocate(size, 0, &NoIndex), None);
//! let load = Load { active: 0, peak: 0 };
//! let block = source.grow(0, &mut heap, &mut NoOthers, Wanted { size, unused: 0, load }, &NoIndex).map_err(|_| "no memory")?;
//! let calls = source.backend().calls;
//! heap.free(block.number, &NoIndex);
//! assert!(heap.allocate(size, 0, &NoIndex).is_some());
//! assert_eq!(source.backend().calls, calls, "memory that is there");
//! # Ok::<(), &str>(())
//! ```

mod adopting;
mod assemble;
mod backend;
mod extents;
mod ground;
mod habits;
mod haste;
mod heap;
mod homing;
mod index;
mod line;
mod mapping;
mod maps;
mod marks;
mod moving;
mod nest;
mod nesting;
mod pages;
mod pins;
mod place;
mod policy;
mod reach;
mod sizes;
mod source;
mod stock;
mod trim;
mod window;

pub use backend::{Backend, Change};
pub(crate) use extents::Piece;
pub use heap::{Block, BlockNumber, Freed, StreamHeap};
pub(crate) use index::small_class;
pub use index::{BlockIndex, NoIndex, PageKind};
pub(crate) use pins::Backing;
pub use policy::Policy;
pub use sizes::block_size;
pub(crate) use sizes::{MAX, MEDIUM, PAGE, Tier};
pub use source::{GrowError, Heaps, Load, PageSource, Wanted};

#[cfg(test)]
mod tests;

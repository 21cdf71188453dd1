//! The engine of the device's default pool: memory grows by pages, and free pages move to where they are needed.
//!
//! A [`StreamHeap`] has the blocks of one stream and is all that the usual allocation and free touch. When nothing free fits,
//! the device's [`PageSource`] finds the cheapest place where the block could lie, maps what that lacks, and offers it to the
//! heap. Neither knows of locks, threads or a driver: a [`Backend`] stands for that, an index is told where blocks begin.

mod assemble;
mod backend;
mod extents;
mod ground;
mod heap;
mod index;
mod marks;
mod moving;
mod pages;
mod pins;
mod place;
mod policy;
mod sizes;
mod source;
mod trim;
mod window;

pub(crate) use backend::{Backend, Change};
pub(crate) use heap::{Block, BlockNumber, Freed, StreamHeap};
pub(crate) use index::{BlockIndex, PageKind, SMALL_CLASSES, small_class};
pub(crate) use pins::Backing;
pub(crate) use policy::Policy;
pub(crate) use sizes::{GRANULE, MEDIUM, PAGE, SMALL, Tier, block_size};
pub(crate) use source::{GrowError, Heaps, Load, PageSource};

#[cfg(test)]
mod tests;

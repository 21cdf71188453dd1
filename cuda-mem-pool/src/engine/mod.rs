//! The allocation engine: which bytes of which segment a block gets. Offsets and sizes only; no memory, no driver, no lock.
//!
//! A [`Heap`] holds segments, which its owner gets somewhere and gives back when they are wholly free, and cuts blocks out
//! of them. When nothing free fits, [`Heap::allocate`] says so, and the owner adds a segment of the size that
//! [`growth`](growth::Growth) tells, at a moment when it holds no lock.
//!
//! [`segments`] is the same for PyTorch's layout, [`paged`] for memory that grows by pages.

pub(crate) mod classes;
mod free;
pub(crate) mod growth;
mod heap;
pub mod paged;
pub mod segments;
mod slab;
pub(crate) mod stats;

#[cfg(test)]
mod churn;
#[cfg(test)]
mod model;

pub(crate) use heap::{BlockId, Grant, Heap};

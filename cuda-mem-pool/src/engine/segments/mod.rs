//! PyTorch's segment layout: segments of 2 MiB for small blocks and of 20 MiB and more for large ones, best fit by stream,
//! size and address. Private pools have it.
//!
//! A `SegmentHeap` is one pool of memory, a `PoolTable` many by name. Both do arithmetic alone: they make no driver call, take
//! no lock and touch no memory.

mod heap;
mod options;
mod pools;

#[cfg(test)]
mod tests;

pub use crate::error::{OptionsError, PoolError};
pub use heap::Checkpoint;
pub(crate) use heap::{Allocation, Block, Segment, SegmentRequest};
#[cfg(test)]
pub(crate) use heap::{BlockState, SegmentHeap};
pub(crate) use options::{MOST, in_steps, size_class};
pub use options::{Options, SMALL_SIZE};
pub use pools::Filter;
pub(crate) use pools::{PoolTable, TakenSegment};

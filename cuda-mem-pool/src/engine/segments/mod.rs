//! PyTorch's segment layout: segments of 2 MiB for small blocks and of 20 MiB and more for large ones, best fit by stream,
//! size and address. Private pools have it.
//!
//! A `SegmentHeap` is one pool of memory, a `PoolTable` many by name. Both do arithmetic alone: they make no driver call, take
//! no lock and touch no memory.

mod block;
mod checkpoint;
mod heap;
mod options;
mod pools;

#[cfg(test)]
pub(crate) use {crate::statistics::PoolSize, block::BlockState, heap::SegmentHeap};
#[cfg(test)]
mod tests;

pub use crate::error::{PoolError, SegmentError};
pub(crate) use block::{Allocation, Block, BlockId, FreeSegment, SegmentRequest};
pub use checkpoint::{Checkpoint, Restored};
pub(crate) use heap::SegmentView;
pub(crate) use options::{MOST, in_steps, size_class};
pub use options::{Options, OptionsBuilder, OptionsError, SMALL_SIZE};
pub use pools::Filter;
pub(crate) use pools::{PoolTable, TakenSegment};

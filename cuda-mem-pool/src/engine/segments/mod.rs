//! PyTorch's segment layout: segments of 2 MiB for small blocks and of 20 MiB and more for large ones, best fit by stream,
//! size and address. Private pools have it, and whatever is compared with PyTorch's own allocator.
//!
//! A [`SegmentHeap`] is one pool of memory, [`PrivatePools`] are many by name. Both are books alone: they make no driver call,
//! take no lock and touch no memory.

mod block;
mod block_pool;
mod checkpoint;
mod heap;
mod largest;
mod layout;
mod options;
mod pieces;
mod pools;
mod release;
mod rounding;
mod segment;
mod source;
mod totals;

#[cfg(test)]
mod tests;

pub use crate::error::{PoolError, SegmentError};
pub use block::{Block, BlockId, BlockState, SegmentKind};
pub use checkpoint::{Checkpoint, Restored};
pub use heap::SegmentHeap;
pub use layout::SegmentView;
pub(crate) use options::MOST;
pub use options::{
    MIN_LARGE_ALLOCATION, Options, OptionsBuilder, OptionsError, ROUND_LARGE, SMALL_SEGMENT, SMALL_SIZE,
    memory_limit,
};
pub use pools::{Filter, PrivatePool, PrivatePools, Routes, TakenSegment};
pub use release::Available;
pub use rounding::MIN_BLOCK_SIZE;
pub(crate) use rounding::{in_steps, size_class};
pub use segment::{Allocation, FreeSegment, SegmentRequest};
pub use source::{AllocateError, SegmentSource};
pub use totals::Totals;

//! Blocks and segments, as a heap describes them.

use std::ops::Add;

pub(crate) use crate::snapshot::BlockState;
use crate::statistics::PoolSize;

/// Names one block that was allocated. A later block with its number or its address has another name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct BlockId {
    pub(super) address: u64,
    pub(super) number: u32,
    /// How many blocks the heap had allocated before.
    pub(super) serial: u64,
}

impl BlockId {
    /// Where the block starts.
    pub(crate) fn address(self) -> u64 {
        self.address
    }
}

/// A block as it is at the moment. Its address and its size in bytes are multiples of 512.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// The bytes that were asked for; 0 for a free block.
    pub(crate) requested: u64,
    /// The stream it belongs to.
    pub(crate) stream: u64,
    pub(crate) state: BlockState,
    /// The kind of its segment.
    pub(crate) kind: PoolSize,
}

/// What [`SegmentHeap::allocate`](super::heap::SegmentHeap::allocate) found.
#[derive(Debug)]
#[must_use]
pub(crate) enum Allocation {
    Hit(BlockId),
    /// No free block fits. [`SegmentHeap::add_segment`](super::heap::SegmentHeap::add_segment) goes on from here.
    Miss(SegmentRequest),
}

/// The segment that a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentRequest {
    pub(super) stream: u64,
    pub(super) requested: u64,
    /// The bytes of the block.
    pub(super) size: u64,
    /// The bytes that the segment must have.
    pub(crate) bytes: u64,
}

impl SegmentRequest {
    /// The same request, for memory that comes in whole pieces of so many bytes.
    pub(crate) fn in_pieces_of(self, piece: u64) -> Self {
        Self { bytes: self.bytes.next_multiple_of(piece.max(1)), ..self }
    }
}

/// A segment that was taken out of its heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the memory is to be given back"]
pub(crate) struct FreeSegment {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// The stream that its blocks belonged to.
    pub(crate) stream: u64,
    pub(crate) kind: PoolSize,
}

/// Counts and bytes of a heap, of one kind of its segments or of both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    /// Segments.
    pub(crate) segments: u64,
    /// The bytes of all segments.
    pub(crate) reserved: u64,
    /// The bytes of blocks that are not free, also of those that other streams still use.
    pub(crate) active: u64,
    /// Blocks that were freed and that other streams still use.
    pub(crate) pending: u64,
    /// Free blocks that share their segment with others, so that it cannot be released.
    pub(crate) inactive_splits: u64,
    /// Their bytes.
    pub(crate) inactive_split: u64,
}

impl Add for Totals {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            segments: self.segments + other.segments,
            reserved: self.reserved + other.reserved,
            active: self.active + other.active,
            pending: self.pending + other.pending,
            inactive_splits: self.inactive_splits + other.inactive_splits,
            inactive_split: self.inactive_split + other.inactive_split,
        }
    }
}

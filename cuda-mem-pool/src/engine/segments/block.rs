//! Blocks and segments, as a heap describes them.

use std::ops::Add;

use super::options::SMALL_SIZE;
pub use crate::snapshot::BlockState;

/// Names one block that was allocated. A later block with its number or its address has another name.
/// [`SegmentHeap`](super::SegmentHeap) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId {
    pub(super) address: u64,
    pub(super) number: u32,
    /// How many blocks the heap had allocated before.
    pub(super) serial: u64,
}

impl BlockId {
    /// Where the block starts.
    #[must_use]
    pub fn address(self) -> u64 {
        self.address
    }
}

/// Which of a heap's two kinds of segments. [`SegmentHeap`](super::SegmentHeap) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SegmentKind {
    /// For blocks of at most 1 MiB.
    Small,
    /// For all others.
    Large,
}

impl SegmentKind {
    pub(super) fn of(block: u64) -> Self {
        if block <= SMALL_SIZE { Self::Small } else { Self::Large }
    }
}

/// A block as it is at the moment. [`SegmentHeap::segments`](super::SegmentHeap::segments) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Where it starts, a multiple of 512.
    pub address: u64,
    /// Its bytes, a multiple of 512.
    pub size: u64,
    /// The bytes that were asked for; 0 for a free block.
    pub requested: u64,
    /// The stream it belongs to.
    pub stream: u64,
    /// Its state.
    pub state: BlockState,
    /// The kind of its segment.
    pub kind: SegmentKind,
}

/// What [`SegmentHeap::allocate`](super::SegmentHeap::allocate) found. [`SegmentHeap`](super::SegmentHeap) has an example.
#[derive(Debug)]
#[must_use]
pub enum Allocation {
    /// A block.
    Hit(BlockId),
    /// No free block fits. [`SegmentHeap::add_segment`](super::SegmentHeap::add_segment) goes on from here.
    Miss(SegmentRequest),
}

/// The segment that a request needs. [`SegmentHeap`](super::SegmentHeap) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentRequest {
    pub(super) stream: u64,
    pub(super) requested: u64,
    pub(super) size: u64,
    pub(super) bytes: u64,
}

impl SegmentRequest {
    /// The bytes that the segment must have.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The same request, for memory that comes in whole pieces of so many bytes.
    pub(crate) fn in_pieces_of(self, piece: u64) -> Self {
        Self { bytes: self.bytes.next_multiple_of(piece.max(1)), ..self }
    }
}

/// A segment that was taken out of its heap. [`SegmentHeap`](super::SegmentHeap) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the memory is to be given back"]
pub struct FreeSegment {
    /// Where it starts.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The stream that its blocks belonged to.
    pub stream: u64,
    /// Its kind.
    pub kind: SegmentKind,
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

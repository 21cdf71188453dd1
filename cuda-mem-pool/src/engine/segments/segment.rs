//! Segments: what a heap is made of, before, while and after it has them.

use super::block::{BlockId, SegmentKind};

/// What [`SegmentHeap::allocate`](super::SegmentHeap::allocate) found.
/// [`SegmentHeap`](super::SegmentHeap) has an example.
#[derive(Debug)]
#[must_use]
pub enum Allocation {
    /// A block.
    Hit(BlockId),
    /// Nothing free fits. [`SegmentHeap::add_segment`](super::SegmentHeap::add_segment) goes on from here.
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

    /// The bytes that were asked for.
    #[must_use]
    pub fn requested(&self) -> u64 {
        self.requested
    }

    /// The same for memory that comes in pieces of this many bytes alone, whole ones.
    #[must_use]
    pub(crate) fn in_pieces_of(self, piece: u64) -> Self {
        Self { bytes: self.bytes.next_multiple_of(piece.max(1)), ..self }
    }

    /// The stream that asked.
    #[must_use]
    pub fn stream(&self) -> u64 {
        self.stream
    }
}

/// A segment of a heap.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) bytes: u64,
    pub(super) stream: u64,
    pub(super) kind: SegmentKind,
    /// How many segments had come before.
    pub(super) serial: u64,
    /// The block at its start.
    pub(super) first: u32,
}

/// A segment that is its owner's again. [`SegmentHeap`](super::SegmentHeap) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "the memory is to be given back"]
pub struct FreeSegment {
    /// Where it starts.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// The stream that its blocks belonged to.
    pub stream: u64,
    /// Its sort.
    pub kind: SegmentKind,
}

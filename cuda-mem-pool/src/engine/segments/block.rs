//! Blocks: the pieces that segments are cut into.

use std::fmt;

use super::options::SMALL_SIZE;
use crate::engine::slab::NONE;

/// The name of one block that was handed out. What has its number or its address later has another name.
/// [`SegmentHeap`](super::SegmentHeap) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId {
    pub(super) address: u64,
    pub(super) number: u32,
    /// How many blocks the heap had handed out before.
    pub(super) serial: u64,
}

impl BlockId {
    /// Where the block starts.
    #[must_use]
    pub fn address(self) -> u64 {
        self.address
    }
}

/// What a block is doing, in PyTorch's words. [`SegmentHeap::segments`](super::SegmentHeap::segments) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// In somebody's hands.
    ActiveAllocated,
    /// Freed, and still in use on other streams.
    ActivePendingFree,
    /// Free.
    Inactive,
}

impl BlockState {
    /// The state in PyTorch's words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ActiveAllocated => "active_allocated",
            Self::ActivePendingFree => "active_pending_free",
            Self::Inactive => "inactive",
        }
    }
}

/// Which of a heap's two sorts of segments. [`SegmentHeap`](super::SegmentHeap) has an example.
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

impl fmt::Display for SegmentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Small => "small",
            Self::Large => "large",
        })
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
    /// What it is doing.
    pub state: BlockState,
    /// The sort of its segment.
    pub kind: SegmentKind,
}

/// What the heap knows of a block.
#[derive(Debug, Clone)]
pub(super) struct Record {
    /// The address of its segment.
    pub(super) segment: u64,
    pub(super) block: Block,
    /// Of its [`BlockId`], while it is active.
    pub(super) serial: u64,
    /// The neighbours in the segment.
    pub(super) before: u32,
    pub(super) after: u32,
    /// How many searches its pool had seen when it became free.
    pub(super) free_since: u64,
}

impl Record {
    /// A free block.
    pub(super) fn free(segment: u64, block: Block, before: u32, after: u32) -> Self {
        let block = Block { state: BlockState::Inactive, requested: 0, ..block };
        Self { segment, block, serial: 0, before, after, free_since: 0 }
    }

    /// The name under which it was handed out last.
    pub(super) fn id(&self, number: u32) -> BlockId {
        BlockId { address: self.block.address, number, serial: self.serial }
    }

    /// Whether it is only a part of its segment.
    pub(super) fn is_split(&self) -> bool {
        self.before != NONE || self.after != NONE
    }
}

//! Segments and the blocks that they are cut into.

use super::Frames;
use crate::mempool_id::MempoolId;
use crate::statistics::PoolSize;

/// A segment: memory that lies in one piece. Of a segment that grows by pages, each part without a gap is one.
///
/// [`Snapshot`](super::Snapshot) has an example.
#[derive(Debug, Clone)]
pub struct SegmentInfo {
    /// The device's number.
    pub device: u32,
    /// Where it begins.
    pub address: u64,
    /// Bytes.
    pub total_size: u64,
    /// Bytes of blocks that somebody has.
    pub allocated_size: u64,
    /// Bytes of blocks that somebody has or a stream still uses.
    pub active_size: u64,
    /// As `active_size`, in bytes that were asked for.
    pub requested_size: u64,
    /// The stream it is for, by its handle; 0 is the default one.
    pub stream: u64,
    /// Which blocks are cut from it.
    pub segment_type: PoolSize,
    /// The pool it belongs to; [`MempoolId::NONE`] is the default one.
    pub segment_pool_id: MempoolId,
    /// How many segments of its private pool, on its device, came before it; none in the default pool, whose ranges grow and change.
    pub serial: Option<u64>,
    /// Whether its memory is mapped page by page.
    pub is_expandable: bool,
    /// Who asked, when the segment was made; none in the default pool, whose ranges grow and change.
    pub frames: Option<Frames>,
    /// All of it, in the order of the addresses and without a gap.
    pub blocks: Vec<BlockInfo>,
}

impl SegmentInfo {
    /// A segment of the default stream and pool that consists of `blocks`. Its sizes are theirs.
    #[must_use]
    pub fn of(device: u32, segment_type: PoolSize, blocks: Vec<BlockInfo>) -> Self {
        let sum = |of: fn(&BlockInfo) -> u64| blocks.iter().map(of).fold(0, u64::saturating_add);
        Self {
            device,
            address: blocks.first().map_or(0, |block| block.address),
            total_size: sum(|block| block.size),
            allocated_size: sum(
                |block| if block.state == BlockState::ActiveAllocated { block.size } else { 0 },
            ),
            active_size: sum(|block| if block.state == BlockState::Inactive { 0 } else { block.size }),
            requested_size: sum(
                |block| if block.state == BlockState::Inactive { 0 } else { block.requested_size },
            ),
            stream: 0,
            segment_type,
            segment_pool_id: MempoolId::NONE,
            serial: None,
            is_expandable: false,
            frames: None,
            blocks,
        }
    }
}

/// A block, in use or free. [`Snapshot`](super::Snapshot) has an example.
#[derive(Debug, Clone, Default)]
pub struct BlockInfo {
    /// Where it begins.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// Bytes that were asked for; 0 of a block that is free.
    pub requested_size: u64,
    /// Who has it.
    pub state: BlockState,
    /// Who asked for it.
    pub frames: Option<Frames>,
}

/// Who has a block. [`Snapshot`](super::Snapshot) has an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum BlockState {
    /// Somebody.
    ActiveAllocated,
    /// It was given back, and a stream still uses it.
    ActivePendingFree,
    /// It is free.
    #[default]
    Inactive,
}

impl BlockState {
    /// As PyTorch calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ActiveAllocated => "active_allocated",
            Self::ActivePendingFree => "active_pending_free",
            Self::Inactive => "inactive",
        }
    }
}

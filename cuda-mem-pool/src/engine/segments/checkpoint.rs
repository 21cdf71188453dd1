//! Checkpoints: a heap's layout, kept and brought back. Graphs that follow one another replay with the blocks of their
//! predecessors in place.

use super::block::{Block, BlockId, BlockState};
use super::heap::SegmentHeap;
use crate::error::SegmentError;

/// The blocks of all segments of a pool at one moment.
/// [`CachingAllocator::checkpoint_pool`](crate::caching::CachingAllocator::checkpoint_pool) has an example.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    segments: Vec<Layout>,
}

#[derive(Debug, Clone)]
struct Layout {
    address: u64,
    bytes: u64,
    serial: u64,
    blocks: Vec<Block>,
}

/// What bringing a checkpoint back did.
/// [`CachingAllocator::checkpoint_pool`](crate::caching::CachingAllocator::checkpoint_pool) has an example.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restored {
    /// Where the blocks begin that were allocated before. None of these may be freed any more.
    pub freed: Vec<u64>,
    /// Where the blocks begin that were allocated at the checkpoint, and are again. Some are where freed ones were.
    pub allocated: Vec<u64>,
}

impl SegmentHeap {
    /// The layout as it is. [`SegmentError::Pending`] if freed blocks are still in use on other streams.
    pub(crate) fn checkpoint(&self) -> Result<Checkpoint, SegmentError> {
        self.expect_no_pending()?;
        let segments = self.segments().map(|segment| Layout {
            address: segment.address,
            bytes: segment.bytes,
            serial: segment.serial,
            blocks: segment.blocks().collect(),
        });
        Ok(Checkpoint { segments: segments.collect() })
    }

    /// Frees all blocks, and makes the segments of the checkpoint what they were; the segments that came later are free. The names of the
    /// blocks that were freed, and of those that are allocated.
    ///
    /// [`SegmentError::MissingSegment`] if a segment of the checkpoint was released since; [`SegmentError::Pending`] as for
    /// [`SegmentHeap::checkpoint`]; [`SegmentError::Full`]. Nothing was changed then.
    pub(crate) fn restore(&mut self, checkpoint: &Checkpoint) -> Result<[Vec<BlockId>; 2], SegmentError> {
        self.expect_no_pending()?;
        for &Layout { address, bytes, serial, .. } in &checkpoint.segments {
            // Another segment may have come to the same address.
            let here = self.segment_at(address).filter(|here| here.address == address);
            if here.map(|segment| segment.serial) != Some(serial) {
                return Err(SegmentError::MissingSegment { address, bytes });
            }
        }
        if !self.has_numbers_for(checkpoint.segments.iter().map(|layout| layout.blocks.len()).sum()) {
            return Err(SegmentError::Full);
        }
        let freed: Vec<BlockId> = self.allocated().collect();
        for &block in &freed {
            self.free(block)?;
        }
        let layouts = checkpoint.segments.iter();
        let allocated = layouts.flat_map(|layout| self.cut_as(layout.address, &layout.blocks)).collect();
        Ok([freed, allocated])
    }

    fn expect_no_pending(&self) -> Result<(), SegmentError> {
        if self.totals().pending == 0 {
            return Ok(());
        }
        let mut blocks = self.segments().flat_map(|segment| segment.blocks());
        let pending = blocks.find(|block| block.state == BlockState::ActivePendingFree);
        pending.map_or(Ok(()), |block| Err(SegmentError::Pending { address: block.address }))
    }
}

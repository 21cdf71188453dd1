//! A heap's layout, kept and brought back: graphs that follow one another replay with the blocks of their predecessors in place.

use super::block::{Block, BlockId, BlockState};
use super::heap::SegmentHeap;
use crate::engine::slab::NONE;
use crate::error::SegmentError;

/// The blocks of all segments at one moment.
/// [`SegmentHeap::checkpoint`](super::SegmentHeap::checkpoint) has an example.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    segments: Vec<Kept>,
}

#[derive(Debug, Clone)]
struct Kept {
    address: u64,
    bytes: u64,
    serial: u64,
    blocks: Vec<Block>,
}

/// What [`SegmentHeap::restore`] did. [`SegmentHeap::checkpoint`](super::SegmentHeap::checkpoint) has an example.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restored {
    /// Every block that was in somebody's hands before. None of these may be freed any more.
    pub freed: Vec<BlockId>,
    /// Every block that was in somebody's hands at the checkpoint, and is again. Some are where freed ones were, by other
    /// names.
    pub allocated: Vec<BlockId>,
}

impl SegmentHeap {
    /// The layout as it is.
    ///
    /// ```
    /// use cuda_mem_pool::segments::{Allocation, Options, SegmentHeap};
    ///
    /// let mut heap = SegmentHeap::new(Options::default());
    /// let Allocation::Miss(wanted) = heap.allocate(0, 1000)? else { unreachable!() };
    /// let first = heap.add_segment(&wanted, 0x20_0000)?;
    /// let checkpoint = heap.checkpoint()?;
    /// heap.free(first)?;
    ///
    /// let restored = heap.restore(&checkpoint)?;
    /// assert_eq!(restored.allocated[0].address(), first.address());
    /// assert!(heap.free(first).is_err()); // it has another name now
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SegmentError::Pending`] if freed blocks are still in use on other streams.
    pub fn checkpoint(&self) -> Result<Checkpoint, SegmentError> {
        self.expect_no_pending()?;
        let segments = self.segments().map(|segment| Kept {
            address: segment.address(),
            bytes: segment.bytes(),
            serial: segment.serial(),
            blocks: segment.blocks().collect(),
        });
        Ok(Checkpoint { segments: segments.collect() })
    }

    /// Frees all blocks, and makes the segments of the checkpoint what they were; the segments that came later are free.
    ///
    /// # Errors
    ///
    /// [`SegmentError::MissingSegment`] if a segment of the checkpoint was released since; [`SegmentError::Pending`] as
    /// for [`SegmentHeap::checkpoint`]; [`SegmentError::Full`].
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<Restored, SegmentError> {
        self.expect_no_pending()?;
        for kept in &checkpoint.segments {
            // Another segment may have come to the same address.
            let here = self.segments.get(&kept.address).map(|segment| segment.serial);
            if here != Some(kept.serial) {
                return Err(SegmentError::MissingSegment { address: kept.address, bytes: kept.bytes });
            }
        }
        let blocks: usize = checkpoint.segments.iter().map(|kept| kept.blocks.len()).sum();
        if blocks.saturating_add(self.segments.len()) >= NONE as usize {
            return Err(SegmentError::Full);
        }
        let mut restored = Restored { freed: self.allocated(), allocated: Vec::new() };
        for &block in &restored.freed {
            self.free(block)?;
        }
        for kept in &checkpoint.segments {
            self.cut_as(kept, &mut restored.allocated);
        }
        Ok(restored)
    }

    /// Cuts a segment that is wholly free.
    fn cut_as(&mut self, kept: &Kept, allocated: &mut Vec<BlockId>) {
        let first = self.segments.get(&kept.address).map(|segment| segment.first);
        let mut number = first.unwrap_or(NONE);
        for block in &kept.blocks {
            self.leave_pool(number);
            self.split(number, block.size);
            let after = self.blocks.get(number).map_or(NONE, |record| record.after);
            if block.state == BlockState::Inactive {
                self.enter_pool(number);
            } else {
                allocated.extend(self.hand_out(number, block.requested));
            }
            number = after;
        }
    }

    fn allocated(&self) -> Vec<BlockId> {
        let records = self.segments().flat_map(|segment| segment.numbers());
        let allocated = records.filter(|(_, record)| record.block.state == BlockState::ActiveAllocated);
        allocated.map(|(number, record)| record.id(number)).collect()
    }

    fn expect_no_pending(&self) -> Result<(), SegmentError> {
        let totals = self.totals();
        if totals.active_blocks == totals.allocations {
            return Ok(());
        }
        let mut blocks = self.segments().flat_map(|segment| segment.blocks());
        let pending = blocks.find(|block| block.state == BlockState::ActivePendingFree);
        pending.map_or(Ok(()), |block| Err(SegmentError::Pending { address: block.address }))
    }
}

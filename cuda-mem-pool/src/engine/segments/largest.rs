//! The largest block that would be had.

use super::heap::SegmentHeap;
use super::options::{MIN_LARGE_ALLOCATION, SMALL_SIZE};
use super::rounding::MIN_BLOCK_SIZE;

impl SegmentHeap {
    /// The largest block that the stream would get, free or of a segment of at most `room` bytes, which comes in whole pieces of so many.
    pub(crate) fn largest_for(&self, stream: u64, room: u64, piece: u64) -> u64 {
        let options = &self.options;
        let large = self.large.sizes(stream).map(|size| options.largest_block(size));
        let large =
            large.filter(|&size| size > SMALL_SIZE && self.large.fitting(stream, size, options).is_some());
        let small = self.small.sizes(stream).map(|size| options.largest_block(size.min(SMALL_SIZE)));
        // The largest blocks that there are segments of each size for.
        let blocks = [SMALL_SIZE, MIN_LARGE_ALLOCATION - MIN_BLOCK_SIZE, room / piece * piece];
        let new = blocks.map(|bytes| options.largest_block(bytes)).into_iter();
        let new = new.filter(|&size| options.segment_size(size).next_multiple_of(piece) <= room);
        large.chain(small).chain(new).max().unwrap_or(0)
    }
}

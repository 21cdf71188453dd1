//! What the tests share.

use crate::engine::segments::{Allocation, Block, SegmentHeap};
use crate::statistics::PoolSize;

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;

/// Segments with their blocks, by address.
pub(super) type Layout = Vec<(u64, u64, u64, PoolSize, Vec<Block>)>;

pub(super) fn layout(heap: &SegmentHeap) -> Layout {
    let view = heap.segments().map(|segment| {
        (segment.address, segment.bytes, segment.stream, segment.kind, segment.blocks().collect())
    });
    view.collect()
}

/// The bytes of all segments.
pub(super) fn reserved(heap: &SegmentHeap) -> u64 {
    heap.segments().map(|segment| segment.bytes).sum()
}

/// A hit, or from a segment at `address`: where the block begins.
pub(super) fn allocate_at(heap: &mut SegmentHeap, stream: u64, bytes: u64, address: u64) -> u64 {
    match heap.allocate(stream, bytes).unwrap() {
        Allocation::Hit(block) => block.address,
        Allocation::Miss(wanted) => heap.add_segment(&wanted, address).unwrap().address,
    }
}

pub(super) fn hit(heap: &mut SegmentHeap, stream: u64, bytes: u64) -> Option<u64> {
    match heap.allocate(stream, bytes).unwrap() {
        Allocation::Hit(block) => Some(block.address),
        Allocation::Miss(_) => None,
    }
}

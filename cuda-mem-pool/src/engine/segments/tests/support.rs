//! What the tests share.

use crate::engine::segments::{Allocation, Block, BlockId, PoolSize, SegmentHeap};

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

/// A hit, or from a segment at `address`.
pub(super) fn allocate_at(heap: &mut SegmentHeap, stream: u64, bytes: u64, address: u64) -> BlockId {
    match heap.allocate(stream, bytes).unwrap() {
        Allocation::Hit(block) => block,
        Allocation::Miss(wanted) => heap.add_segment(&wanted, address).unwrap(),
    }
}

pub(super) fn hit(heap: &mut SegmentHeap, stream: u64, bytes: u64) -> Option<BlockId> {
    match heap.allocate(stream, bytes).unwrap() {
        Allocation::Hit(block) => Some(block),
        Allocation::Miss(_) => None,
    }
}

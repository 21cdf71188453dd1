//! What the tests share.

use crate::engine::segments::{Allocation, Block, BlockId, SegmentHeap, SegmentKind, SegmentSource};

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;

/// Addresses that nobody has, upwards; as many bytes as it is given.
#[derive(Debug)]
pub(super) struct Bump {
    next: u64,
    pub(super) left: u64,
    pub(super) log: Vec<(bool, u64)>,
    /// How often it was asked for memory.
    pub(super) asked: u64,
    /// Whether it refuses to take anything back.
    pub(super) stubborn: bool,
}

impl Bump {
    pub(super) fn of(left: u64) -> Self {
        Self { next: 1 << 40, left, log: Vec::new(), asked: 0, stubborn: false }
    }

    pub(super) fn endless() -> Self {
        Self::of(u64::MAX)
    }
}

/// What [`Bump`] fails with.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("stubborn")]
pub(super) struct Stubborn;

impl SegmentSource for Bump {
    type Error = Stubborn;

    fn acquire(&mut self, bytes: u64) -> Result<Option<u64>, Stubborn> {
        self.asked += 1;
        let Some(left) = self.left.checked_sub(bytes) else { return Ok(None) };
        self.left = left;
        self.log.push((true, bytes));
        let address = self.next;
        self.next += bytes;
        Ok(Some(address))
    }

    fn release(&mut self, _: u64, bytes: u64) -> Result<(), Stubborn> {
        if self.stubborn {
            return Err(Stubborn);
        }
        self.left += bytes;
        self.log.push((false, bytes));
        Ok(())
    }
}

/// Segments with their blocks, by address.
pub(super) type Layout = Vec<(u64, u64, u64, SegmentKind, Vec<Block>)>;

pub(super) fn layout(heap: &SegmentHeap) -> Layout {
    let view = heap.segments().map(|segment| {
        (segment.address(), segment.bytes(), segment.stream(), segment.kind(), segment.blocks().collect())
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

//! What lies where, for snapshots.

use std::collections::HashSet;

use super::block::{Block, BlockId, BlockState, Record, SegmentKind};
use super::heap::SegmentHeap;
use super::segment::Segment;
use super::totals::Totals;

impl SegmentHeap {
    /// All segments in the order of their addresses.
    ///
    /// ```
    /// use cuda_mem_pool::segments::{Allocation, BlockState, Options, SegmentHeap};
    ///
    /// let mut heap = SegmentHeap::new(Options::default());
    /// let Allocation::Miss(wanted) = heap.allocate(0, 1000)? else { unreachable!() };
    /// heap.add_segment(&wanted, 0x20_0000)?;
    /// let segment = heap.segments().next().ok_or("there is one")?;
    /// let states: Vec<_> = segment.blocks().map(|block| (block.size, block.state)).collect();
    /// assert_eq!(states, [(1024, BlockState::ActiveAllocated), ((2 << 20) - 1024, BlockState::Inactive)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn segments(&self) -> impl Iterator<Item = SegmentView<'_>> {
        self.segments.iter().map(|(&address, segment)| SegmentView { heap: self, address, segment })
    }

    /// The segment that a byte is in.
    #[must_use]
    pub fn segment_at(&self, address: u64) -> Option<SegmentView<'_>> {
        let (&start, segment) = self.segments.range(..=address).next_back()?;
        let inside = address.checked_sub(start)? < segment.bytes;
        inside.then_some(SegmentView { heap: self, address: start, segment })
    }

    /// The block, not a free one, that a byte is in. It looks through the blocks of the segment.
    #[must_use]
    pub fn block_at(&self, address: u64) -> Option<BlockId> {
        let numbers = self.segment_at(address)?.numbers();
        let mut active = numbers.filter(|(_, record)| record.block.state != BlockState::Inactive);
        active.find_map(|(number, record)| {
            let offset = address.checked_sub(record.block.address)?;
            (offset < record.block.size).then(|| record.id(number))
        })
    }

    /// [`SegmentHeap::totals_of`] counted again from the blocks, which are without a gap and of which no two neighbours are
    /// free. It is for tests of who keeps other books beside these.
    #[must_use]
    pub fn recount(&self, kind: SegmentKind) -> Totals {
        let mut totals = Totals::default();
        for segment in self.segments().filter(|segment| segment.kind() == kind) {
            totals.segment_came(segment.bytes());
            for (_, record) in segment.numbers() {
                let Block { size, requested, state, .. } = record.block;
                match state {
                    BlockState::ActiveAllocated => totals.handed_out(size, requested),
                    BlockState::ActivePendingFree => {
                        totals.handed_out(size, requested);
                        totals.freed(size);
                    }
                    BlockState::Inactive if record.is_split() => totals.split_came(size),
                    BlockState::Inactive => {}
                }
            }
        }
        totals
    }

    /// Whether exactly the blocks at these addresses are in somebody's hands.
    #[must_use]
    pub fn check_live_allocations(&self, addresses: &HashSet<u64>) -> bool {
        let blocks = self.segments().flat_map(|segment| segment.blocks());
        let mut live = blocks.filter(|block| block.state == BlockState::ActiveAllocated);
        self.totals().allocations == addresses.len() as u64
            && live.all(|block| addresses.contains(&block.address))
    }
}

/// A segment as it is at the moment. [`SegmentHeap::segments`](super::SegmentHeap::segments) has an example.
#[derive(Debug, Clone, Copy)]
pub struct SegmentView<'h> {
    heap: &'h SegmentHeap,
    address: u64,
    segment: &'h Segment,
}

impl<'h> SegmentView<'h> {
    /// Where it starts.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.segment.bytes
    }

    /// The stream that its blocks belong to.
    #[must_use]
    pub fn stream(&self) -> u64 {
        self.segment.stream
    }

    /// Its sort.
    #[must_use]
    pub fn kind(&self) -> SegmentKind {
        self.segment.kind
    }

    /// Its blocks in the order of their addresses, without a gap.
    pub fn blocks(&self) -> impl Iterator<Item = Block> + use<'h> {
        self.numbers().map(|(_, record)| record.block)
    }

    /// How many segments of its heap came before it.
    pub(crate) fn serial(&self) -> u64 {
        self.segment.serial
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = (u32, &'h Record)> + use<'h> {
        let blocks = &self.heap.blocks;
        let first = self.segment.first;
        let at = move |number: u32| Some((number, blocks.get(number)?));
        std::iter::successors(at(first), move |(_, record)| at(record.after))
    }
}

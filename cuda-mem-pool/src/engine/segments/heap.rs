//! A heap of segments: cuts them into blocks and finds a block for each request by best fit, as PyTorch's allocator does.
//!
//! Addresses and sizes alone: no memory, no driver call, no lock. The owner gets segments when the heap asks for them, and gives
//! back those that it releases.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::options::{MIN_BLOCK_SIZE, MIN_LARGE_ALLOCATION, MOST, Options, SMALL_SEGMENT, SMALL_SIZE};
use crate::error::PoolError;
use crate::primitive::unique;
pub(crate) use crate::snapshot::BlockState;
use crate::statistics::PoolSize;

/// What segments begin at multiples of: less than blocks have, because other allocators' pools give them too.
const SEGMENT_ALIGNMENT: u64 = 256;

/// The most bytes of a segment that is larger than its first request needs.
const ROOMY: u64 = 64 << 20;

/// A block as it is at the moment. Its size in bytes is a multiple of 512, and so is its distance from the begin of its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    /// The bytes that were asked for; 0 for a free block.
    pub(crate) requested: u64,
    pub(crate) stream: u64,
    pub(crate) state: BlockState,
    pub(crate) kind: PoolSize,
}

impl Block {
    const fn end(&self) -> u64 {
        self.address.saturating_add(self.size)
    }

    fn is_free(&self) -> bool {
        self.state == BlockState::Inactive
    }
}

#[derive(Debug)]
#[must_use]
pub(crate) enum Allocation {
    Hit(Block),
    /// No free block fits. [`SegmentHeap::add_segment`] goes on from here.
    Miss(SegmentRequest),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentRequest {
    stream: u64,
    requested: u64,
    size: u64,
    pub(crate) kind: PoolSize,
    pub(crate) bytes: u64,
    /// What a segment has that serves more than this request, if the heap wants few of them; no less than `bytes`.
    pub(crate) roomy: u64,
}

/// A segment of a heap, or one that was taken out of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// The stream that its blocks belong to.
    pub(crate) stream: u64,
    pub(crate) kind: PoolSize,
    /// How many segments its heap had got before. It keeps the number, by which checkpoints know it, if it is put back.
    pub(crate) serial: u64,
    /// By address. They lie one behind the other, without a gap.
    blocks: BTreeMap<u64, Block>,
}

impl Segment {
    /// Its blocks in the order of their addresses, without a gap.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Block> {
        self.blocks.values().copied()
    }
}

/// The blocks of all segments of a pool at one moment.
/// [`CachingAllocator::checkpoint_pool`](crate::caching::CachingAllocator::checkpoint_pool) has an example.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// The heap that it is of.
    heap: u64,
    segments: Vec<Segment>,
}

/// Segments of one pool, cut into blocks as PyTorch's allocator cuts them.
#[derive(Debug)]
pub(crate) struct SegmentHeap {
    pub(super) options: Options,
    /// Whether a request gets the whole of the free block that is found for it.
    pub(crate) no_split: bool,
    /// Whether much memory should be few segments, because each costs when all of it sleeps and wakes.
    pub(crate) is_roomy: bool,
    /// Free blocks of small and of large segments by stream, size and address, which is the order of best fit.
    free: [BTreeSet<(u64, u64, u64)>; 2],
    segments: BTreeMap<u64, Segment>,
    segments_added: u64,
    /// Names it for the life of the process: another one that comes to its pool's name has segments of the same numbers.
    id: u64,
}

impl SegmentHeap {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            no_split: false,
            is_roomy: false,
            free: Default::default(),
            segments: BTreeMap::new(),
            segments_added: 0,
            id: unique(),
        }
    }

    /// Allocates the smallest free block of the stream that the request fits in, at the lowest address of those. A request of 0
    /// bytes gets the smallest block there is. None from 1 EiB on.
    pub(crate) fn allocate(&mut self, stream: u64, requested: u64) -> Option<Allocation> {
        let size = self.options.block_size(requested)?;
        let kind = if size <= SMALL_SIZE { PoolSize::Small } else { PoolSize::Large };
        // The memory of a roomy heap is mapped, and so whole pages.
        let page = if self.is_roomy { SMALL_SEGMENT } else { 1 };
        let bytes = self.options.segment_size(size).next_multiple_of(page);
        let wanted = SegmentRequest { stream, requested, size, kind, bytes, roomy: self.roomy(kind, bytes) };
        Some(match self.best_fit(stream, size, kind) {
            Some(found) => Allocation::Hit(self.take(found, &wanted)),
            None => Allocation::Miss(wanted),
        })
    }

    /// The bytes of a segment for a request that needs `least`; of a roomy heap as many times that as a 32nd of what it has, and 64 MiB, hold.
    fn roomy(&self, kind: PoolSize, least: u64) -> u64 {
        let is_cut = !self.no_split && self.options.max_split_size.is_none();
        if !(self.is_roomy && is_cut && kind == PoolSize::Large) {
            return least;
        }
        let held: u64 = self.segments.values().map(|segment| segment.bytes).sum();
        least * ((held / 32).min(ROOMY) / least).max(1)
    }

    /// Adds the segment that a request missed, and serves the request from it. Errors as for [`SegmentHeap::put_back`].
    pub(crate) fn add_segment(&mut self, wanted: &SegmentRequest, address: u64) -> Result<Block, PoolError> {
        let SegmentRequest { bytes, stream, kind, .. } = *wanted;
        let (serial, blocks) = (self.segments_added, BTreeMap::new());
        let free = self.put_back(&Segment { address, bytes, stream, kind, serial, blocks })?;
        self.segments_added = serial.wrapping_add(1);
        Ok(self.take(free, wanted))
    }

    /// Frees a block that no other stream uses: its stream may have it again at once. The block as it was; None if nobody has one there.
    pub(crate) fn free(&mut self, address: u64) -> Option<Block> {
        self.make_free(address, BlockState::ActiveAllocated)
    }

    /// Frees a block that other streams still use. Nobody gets it before [`SegmentHeap::complete`]. None if nobody has one there.
    pub(crate) fn free_pending(&mut self, address: u64) -> Option<Block> {
        let block = self.segment_of(address)?.blocks.get_mut(&address)?;
        let was = *block;
        (was.state == BlockState::ActiveAllocated).then(|| {
            block.state = BlockState::ActivePendingFree;
            was
        })
    }

    /// Completes a free: the other streams are done with a block of [`SegmentHeap::free_pending`]. None if there is none.
    pub(crate) fn complete(&mut self, address: u64) -> Option<Block> {
        self.make_free(address, BlockState::ActivePendingFree)
    }

    pub(crate) fn get(&self, address: u64) -> Option<Block> {
        self.block(address).filter(|block| !block.is_free())
    }

    fn block(&self, address: u64) -> Option<Block> {
        self.segment_at(address)?.blocks.get(&address).copied()
    }

    /// How many free blocks of a kind share their segment with others, and their bytes.
    pub(crate) fn splits(&self, kind: PoolSize) -> (u64, u64) {
        let free = self.free[kind as usize].iter().filter(|&&(_, _, address)| !self.is_whole(address));
        free.fold((0, 0), |(count, bytes), &(_, size, _)| (count + 1, bytes + size))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.segments.values()
    }

    pub(crate) fn segment_at(&self, address: u64) -> Option<&Segment> {
        let (start, segment) = self.segments.range(..=address).next_back()?;
        (address.checked_sub(*start)? < segment.bytes).then_some(segment)
    }

    fn segment_of(&mut self, address: u64) -> Option<&mut Segment> {
        let (start, segment) = self.segments.range_mut(..=address).next_back()?;
        (address.checked_sub(*start)? < segment.bytes).then_some(segment)
    }

    pub(super) fn allocated(&self) -> impl Iterator<Item = Block> {
        let blocks = self.segments.values().flat_map(Segment::blocks);
        blocks.filter(|block| block.state == BlockState::ActiveAllocated)
    }

    pub(crate) fn check_live_allocations(&self, addresses: &HashSet<u64>) -> bool {
        *addresses == self.allocated().map(|block| block.address).collect()
    }

    /// The largest block for the stream: a free one, or of a new segment of at most `room` bytes in whole pages of 2 MiB.
    pub(crate) fn largest_for(&self, stream: u64, room: u64) -> u64 {
        let options = &self.options;
        let sizes = |kind: PoolSize| {
            let free = self.free[kind as usize].range((stream, 0, 0)..=(stream, u64::MAX, u64::MAX));
            free.map(|&(_, size, _)| size)
        };
        let large = sizes(PoolSize::Large).map(|size| options.largest_block(size));
        let large =
            large.filter(|&size| size > SMALL_SIZE && self.best_fit(stream, size, PoolSize::Large).is_some());
        let small = sizes(PoolSize::Small).map(|size| options.largest_block(size.min(SMALL_SIZE)));
        // The largest block for each of the three sizes of segments.
        let blocks =
            [SMALL_SIZE, MIN_LARGE_ALLOCATION - MIN_BLOCK_SIZE, room / SMALL_SEGMENT * SMALL_SEGMENT];
        let new = blocks.map(|bytes| options.largest_block(bytes)).into_iter();
        let new = new.filter(|&size| options.segment_size(size).next_multiple_of(SMALL_SEGMENT) <= room);
        large.chain(small).chain(new).max().unwrap_or(0)
    }

    /// Takes every wholly free segment out, large ones first.
    #[must_use = "the memory is to be given back"]
    pub(crate) fn release_cached(&mut self) -> Vec<Segment> {
        let free = self.free.iter().rev().flatten().map(|&(_, _, address)| address);
        let whole: Vec<u64> = free.filter(|&address| self.is_whole(address)).collect();
        whole.into_iter().filter_map(|address| self.take_out(address)).collect()
    }

    /// Takes segments out that are too large to be split, as few as make room for a request that missed: one that would hold it, else its
    /// stream's largest ones, as PyTorch does. None without [`max_split_size`](Options::max_split_size).
    #[must_use = "the memory is to be given back"]
    pub(crate) fn release_available(&mut self, wanted: &SegmentRequest) -> Vec<Segment> {
        let Some(most_split) = self.options.max_split_size else { return Vec::new() };
        let (stream, room) = (wanted.stream, wanted.size.max(most_split));
        let free = &self.free[wanted.kind as usize];
        let mut at_least = free.range((stream, room, 0)..=(stream, u64::MAX, u64::MAX));
        let one = at_least.next().filter(|&&(_, _, address)| self.is_whole(address));
        let below = free.range((stream, most_split, 0)..(stream, room, 0)).rev();
        let smaller = below.filter(|&&(_, _, address)| one.is_none() && self.is_whole(address));
        let mut bytes = 0u64;
        let enough = |&&(_, size, _): &&(u64, u64, u64)| {
            let is_missing = bytes < room;
            bytes = bytes.saturating_add(size);
            is_missing
        };
        let few: Vec<u64> =
            one.into_iter().chain(smaller).take_while(enough).map(|&(_, _, address)| address).collect();
        few.into_iter().filter_map(|address| self.take_out(address)).collect()
    }

    /// Gives all of one stream to another, which is sound once the work of `from` is done, or `to` waits for it.
    pub(crate) fn adopt(&mut self, from: u64, to: u64) {
        for segment in self.segments.values_mut().filter(|segment| segment.stream == from) {
            segment.stream = to;
            for block in segment.blocks.values_mut() {
                block.stream = to;
                let free = &mut self.free[block.kind as usize];
                if free.remove(&(from, block.size, block.address)) {
                    free.insert((to, block.size, block.address));
                }
            }
        }
    }

    /// The layout as it is. [`PoolError::Pending`] if freed blocks are still in use on other streams.
    pub(crate) fn checkpoint(&self) -> Result<Checkpoint, PoolError> {
        self.expect_no_pending()?;
        Ok(Checkpoint { heap: self.id, segments: self.segments.values().cloned().collect() })
    }

    /// Frees all blocks, and makes the segments of the checkpoint what they were; the segments that came later are free. The blocks that
    /// were freed, and those that are allocated.
    ///
    /// [`PoolError::MissingSegment`] if a segment of the checkpoint was released since; [`PoolError::Pending`]. Nothing was changed then.
    pub(crate) fn restore(&mut self, checkpoint: &Checkpoint) -> Result<[Vec<Block>; 2], PoolError> {
        self.expect_no_pending()?;
        for &Segment { address, bytes, serial, .. } in &checkpoint.segments {
            // Another segment may have come to the same address.
            let is_there = self.segments.get(&address).is_some_and(|segment| segment.serial == serial);
            if !is_there || checkpoint.heap != self.id {
                return Err(PoolError::MissingSegment { address, bytes });
            }
        }
        let freed: Vec<Block> = self.allocated().collect();
        for block in &freed {
            self.free(block.address);
        }
        let mut allocated = Vec::new();
        for segment in &checkpoint.segments {
            let Some(whole) = self.block(segment.address) else { continue };
            self.leave_free(&whole);
            for block in segment.blocks() {
                let block = Block { stream: whole.stream, ..block };
                if block.is_free() {
                    self.enter_free(block);
                } else {
                    self.insert(block);
                    allocated.push(block);
                }
            }
        }
        Ok([freed, allocated])
    }

    pub(crate) fn expect_no_pending(&self) -> Result<(), PoolError> {
        let mut blocks = self.segments.values().flat_map(Segment::blocks);
        let pending = blocks.find(|block| block.state == BlockState::ActivePendingFree);
        pending.map_or(Ok(()), |block| Err(PoolError::Pending { address: block.address }))
    }

    /// The smallest free block of at least `size` bytes; None if the options forbid that one, as in PyTorch.
    fn best_fit(&self, stream: u64, size: u64, kind: PoolSize) -> Option<Block> {
        let free = &self.free[kind as usize];
        let &(_, found, address) = free.range((stream, size, 0)..=(stream, u64::MAX, u64::MAX)).next()?;
        let most_split = self.options.max_split_size.unwrap_or(u64::MAX);
        let allowed = if size < most_split {
            found < most_split
        } else {
            found - size < self.options.non_split_rounding()
        };
        self.block(address).filter(|_| allowed)
    }

    /// Allocates a free block, or as much of it as the request needs.
    fn take(&mut self, found: Block, wanted: &SegmentRequest) -> Block {
        self.leave_free(&found);
        let rest = found.size.saturating_sub(wanted.size);
        let splits = match found.kind {
            _ if self.no_split => false,
            PoolSize::Small => rest >= MIN_BLOCK_SIZE,
            PoolSize::Large => {
                wanted.size < self.options.max_split_size.unwrap_or(u64::MAX) && rest > SMALL_SIZE
            }
        };
        let (state, requested) = (BlockState::ActiveAllocated, wanted.requested);
        let mut block = Block { state, requested, ..found };
        if splits {
            block.size = wanted.size;
            self.enter_free(Block { address: block.end(), size: rest, ..found });
        }
        self.insert(block);
        block
    }

    /// Frees a block of this state, with its free neighbours as one.
    fn make_free(&mut self, address: u64, state: BlockState) -> Option<Block> {
        let blocks = &mut self.segment_of(address)?.blocks;
        let was = *blocks.get(&address).filter(|block| block.state == state)?;
        blocks.remove(&address);
        let mut free = Block { state: BlockState::Inactive, requested: 0, ..was };
        let before = blocks.range(..address).next_back().map(|(_, before)| *before);
        let after = blocks.get(&was.end()).copied();
        for neighbour in before.into_iter().chain(after).filter(Block::is_free) {
            self.leave_free(&neighbour);
            free.address = free.address.min(neighbour.address);
            free.size = free.size.saturating_add(neighbour.size);
        }
        self.enter_free(free);
        Some(was)
    }

    /// Enters a free block, where best fit finds it.
    fn enter_free(&mut self, block: Block) {
        self.free[block.kind as usize].insert((block.stream, block.size, block.address));
        self.insert(block);
    }

    fn insert(&mut self, block: Block) {
        if let Some(segment) = self.segment_of(block.address) {
            segment.blocks.insert(block.address, block);
        }
    }

    fn leave_free(&mut self, block: &Block) {
        self.free[block.kind as usize].remove(&(block.stream, block.size, block.address));
        if let Some(segment) = self.segment_of(block.address) {
            segment.blocks.remove(&block.address);
        }
    }

    /// Whether a free block is all of its segment, so that this can be released.
    fn is_whole(&self, address: u64) -> bool {
        self.segments.get(&address).is_some_and(|segment| segment.blocks.len() == 1)
    }

    /// Adds a free segment; its block. So may be added again what was released and could not be given back.
    ///
    /// [`PoolError::BadSegment`] unless the address is a multiple of 256 other than 0; [`PoolError::Overlap`] with a segment of this heap.
    /// The segment is still the caller's then.
    pub(crate) fn put_back(&mut self, segment: &Segment) -> Result<Block, PoolError> {
        let Segment { address, bytes, stream, kind, .. } = *segment;
        let aligned = address.is_multiple_of(SEGMENT_ALIGNMENT) && bytes.is_multiple_of(MIN_BLOCK_SIZE);
        let end = address.checked_add(bytes);
        let (Some(end), true) = (end, aligned && address > 0 && bytes > 0 && bytes <= MOST) else {
            return Err(PoolError::BadSegment { address, bytes });
        };
        if let Some((&other, there)) = self.segments.range(..end).next_back()
            && other.saturating_add(there.bytes) > address
        {
            return Err(PoolError::Overlap { address, bytes, other });
        }
        self.segments.insert(address, Segment { blocks: BTreeMap::new(), ..*segment });
        let block = Block { address, size: bytes, requested: 0, stream, state: BlockState::Inactive, kind };
        self.enter_free(block);
        Ok(block)
    }

    /// Takes the segment out that a free block is the whole of.
    fn take_out(&mut self, address: u64) -> Option<Segment> {
        let block = self.block(address)?;
        self.leave_free(&block);
        self.segments.remove(&address)
    }
}

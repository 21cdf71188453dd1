//! A heap of segments: cuts them into blocks and finds a block for each request by best fit, as PyTorch's allocator does.
//!
//! Addresses and sizes alone: no memory, no driver call, no lock. The owner gets segments when the heap asks for them, and gives
//! back those that it releases.

use std::collections::{BTreeMap, HashSet};

use super::block::{Allocation, Block, BlockId, BlockState, FreeSegment, SegmentRequest, Totals};
use super::options::{MIN_BLOCK_SIZE, MIN_LARGE_ALLOCATION, MOST, Options, SMALL_SIZE};
use crate::engine::slab::{NONE, Slab};
use crate::error::SegmentError;
use crate::statistics::PoolSize;

#[derive(Debug)]
struct Segment {
    bytes: u64,
    stream: u64,
    kind: PoolSize,
    /// How many segments the heap had got before.
    serial: u64,
    /// The block at its start.
    first: u32,
}

#[derive(Debug, Clone)]
struct Record {
    /// The address of its segment.
    segment: u64,
    block: Block,
    /// Of its [`BlockId`], while it is active.
    serial: u64,
    /// The neighbours in the segment.
    before: u32,
    after: u32,
}

impl Record {
    fn free(segment: u64, block: Block, before: u32, after: u32) -> Self {
        let block = Block { state: BlockState::Inactive, requested: 0, ..block };
        Self { segment, block, serial: 0, before, after }
    }

    fn id(&self, number: u32) -> BlockId {
        BlockId { address: self.block.address, number, serial: self.serial }
    }

    /// Whether it is only a part of its segment.
    fn is_split(&self) -> bool {
        self.before != NONE || self.after != NONE
    }
}

/// Free blocks by stream, size and address, which is the order of best fit.
type FreeBlocks = BTreeMap<(u64, u64, u64), u32>;

/// Segments of one pool, cut into blocks as PyTorch's allocator cuts them.
#[derive(Debug)]
pub(crate) struct SegmentHeap {
    pub(super) options: Options,
    no_split: bool,
    records: Slab<Record>,
    /// Of small and large segments.
    free: [FreeBlocks; 2],
    totals: [Totals; 2],
    /// By address.
    segments: BTreeMap<u64, Segment>,
    blocks_made: u64,
    segments_added: u64,
}

impl SegmentHeap {
    /// Without segments.
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            no_split: false,
            records: Slab::default(),
            free: Default::default(),
            totals: Default::default(),
            segments: BTreeMap::new(),
            blocks_made: 0,
            segments_added: 0,
        }
    }

    /// The options that hold from here on. Segments and blocks stay as they are.
    pub(crate) fn set_options(&mut self, options: Options) {
        self.options = options;
    }

    /// Whether a request gets the whole of the free block that is found for it.
    pub(crate) fn set_no_split(&mut self, no_split: bool) {
        self.no_split = no_split;
    }

    /// Allocates the smallest free block of the stream that the request fits in, at the lowest address of those. A request of 0
    /// bytes gets the smallest block there is. [`SegmentError::TooLarge`].
    pub(crate) fn allocate(&mut self, stream: u64, requested: u64) -> Result<Allocation, SegmentError> {
        let size = self.options.block_size(requested)?;
        let wanted = SegmentRequest { stream, requested, size, bytes: self.options.segment_size(size) };
        let found = self.best_fit(stream, size, kind_of(size));
        Ok(match found.and_then(|number| self.take(number, &wanted)) {
            Some(block) => Allocation::Hit(block),
            None => Allocation::Miss(wanted),
        })
    }

    /// Adds the segment that a request missed, and serves the request from it.
    ///
    /// [`SegmentError::BadSegment`] unless the address is a multiple of 512 other than 0; [`SegmentError::Overlap`] with a
    /// segment of this heap; [`SegmentError::Full`]. The segment is still the caller's then.
    pub(crate) fn add_segment(
        &mut self,
        wanted: &SegmentRequest,
        address: u64,
    ) -> Result<BlockId, SegmentError> {
        let SegmentRequest { bytes, stream, size, .. } = *wanted;
        let number = self.put_back(&FreeSegment { address, bytes, stream, kind: kind_of(size) })?;
        self.take(number, wanted).ok_or(SegmentError::Full)
    }

    /// Frees a block that no other stream uses: its stream may have it again at once. [`SegmentError::UnknownBlock`] if it was freed before.
    pub(crate) fn free(&mut self, block: BlockId) -> Result<Block, SegmentError> {
        let was = self.expect(block, BlockState::ActiveAllocated)?;
        self.make_inactive(block.number);
        Ok(was)
    }

    /// Frees a block that other streams still use. Nobody gets it before [`SegmentHeap::complete`]. [`SegmentError::UnknownBlock`],
    /// [`SegmentError::State`] if it was freed before.
    pub(crate) fn free_pending(&mut self, block: BlockId) -> Result<Block, SegmentError> {
        let was = self.expect(block, BlockState::ActiveAllocated)?;
        if let Some(record) = self.records.get_mut(block.number) {
            record.block.state = BlockState::ActivePendingFree;
        }
        self.totals[was.kind as usize].pending += 1;
        Ok(was)
    }

    /// Completes a free: the other streams are done with a block of [`SegmentHeap::free_pending`]. [`SegmentError::UnknownBlock`],
    /// [`SegmentError::State`] if it is not pending.
    pub(crate) fn complete(&mut self, block: BlockId) -> Result<Block, SegmentError> {
        let was = self.expect(block, BlockState::ActivePendingFree)?;
        let totals = &mut self.totals[was.kind as usize];
        totals.pending = totals.pending.saturating_sub(1);
        self.make_inactive(block.number);
        Ok(was)
    }

    /// A block, unless it is free again.
    pub(crate) fn get(&self, block: BlockId) -> Option<Block> {
        let record = self.records.get(block.number)?;
        (record.id(block.number) == block && record.block.state != BlockState::Inactive)
            .then_some(record.block)
    }

    /// What the heap holds.
    pub(crate) fn totals(&self) -> Totals {
        self.totals[0] + self.totals[1]
    }

    /// What the heap holds of one kind.
    pub(crate) fn totals_of(&self, kind: PoolSize) -> Totals {
        self.totals[kind as usize]
    }

    /// All segments in the order of their addresses.
    pub(crate) fn segments(&self) -> impl Iterator<Item = SegmentView<'_>> {
        self.segments.iter().map(|(&address, segment)| self.view(address, segment))
    }

    /// The segment that a byte is in.
    pub(crate) fn segment_at(&self, address: u64) -> Option<SegmentView<'_>> {
        let (&start, segment) = self.segments.range(..=address).next_back()?;
        (address.checked_sub(start)? < segment.bytes).then(|| self.view(start, segment))
    }

    fn view(&self, address: u64, segment: &Segment) -> SegmentView<'_> {
        let &Segment { bytes, stream, kind, serial, first } = segment;
        SegmentView { records: &self.records, first, address, bytes, stream, kind, serial }
    }

    /// Every allocated block.
    pub(super) fn allocated(&self) -> impl Iterator<Item = BlockId> {
        let records = self.segments().flat_map(|segment| segment.records());
        let allocated = records.filter(|(_, record)| record.block.state == BlockState::ActiveAllocated);
        allocated.map(|(number, record)| record.id(number))
    }

    /// Whether exactly the blocks at these addresses are allocated.
    pub(crate) fn check_live_allocations(&self, addresses: &HashSet<u64>) -> bool {
        let mut count = 0usize;
        self.allocated().inspect(|_| count += 1).all(|block| addresses.contains(&block.address))
            && count == addresses.len()
    }

    /// The bytes of the largest block that the stream would get: a free one, or one of a new segment of at most `room` bytes, whose
    /// memory comes in whole pieces of so many bytes.
    pub(crate) fn largest_for(&self, stream: u64, room: u64, piece: u64) -> u64 {
        let options = &self.options;
        let sizes = |kind: PoolSize| {
            let free = self.free[kind as usize].range((stream, 0, 0)..=(stream, u64::MAX, u64::MAX));
            free.map(|(&(_, size, _), _)| size)
        };
        let large = sizes(PoolSize::Large).map(|size| options.largest_block(size));
        let large =
            large.filter(|&size| size > SMALL_SIZE && self.best_fit(stream, size, PoolSize::Large).is_some());
        let small = sizes(PoolSize::Small).map(|size| options.largest_block(size.min(SMALL_SIZE)));
        // The largest block for each of the three sizes of segments.
        let blocks = [SMALL_SIZE, MIN_LARGE_ALLOCATION - MIN_BLOCK_SIZE, room / piece * piece];
        let new = blocks.map(|bytes| options.largest_block(bytes)).into_iter();
        let new = new.filter(|&size| options.segment_size(size).next_multiple_of(piece) <= room);
        large.chain(small).chain(new).max().unwrap_or(0)
    }

    /// Takes every wholly free segment out, large ones first.
    #[must_use = "the memory is to be given back"]
    pub(crate) fn release_cached(&mut self) -> Vec<FreeSegment> {
        let free = self.free.iter().rev().flat_map(BTreeMap::values).copied();
        let whole: Vec<u32> = free.filter(|&number| self.is_whole(number)).collect();
        whole.into_iter().filter_map(|number| self.take_out(number)).collect()
    }

    /// Takes segments out that are too large to be split, as few as make room for a request that missed: one that would hold
    /// it, else its stream's largest ones. None without [`max_split_size`](Options::max_split_size).
    #[must_use = "the memory is to be given back"]
    pub(crate) fn release_available(&mut self, wanted: &SegmentRequest) -> Vec<FreeSegment> {
        let Some(most_split) = self.options.max_split_size() else { return Vec::new() };
        let (stream, room) = (wanted.stream, wanted.size.max(most_split));
        let free = &self.free[kind_of(wanted.size) as usize];
        let one = free.range((stream, room, 0)..=(stream, u64::MAX, u64::MAX)).next();
        let candidates: Vec<u32> = match one.map(|(_, &one)| one).filter(|&one| self.is_whole(one)) {
            Some(one) => vec![one],
            None => {
                let below = free.range((stream, most_split, 0)..(stream, room, 0)).rev();
                below.map(|(_, &number)| number).filter(|&number| self.is_whole(number)).collect()
            }
        };
        let (mut taken, mut bytes) = (Vec::new(), 0u64);
        for number in candidates {
            if bytes < room
                && let Some(segment) = self.take_out(number)
            {
                bytes = bytes.saturating_add(segment.bytes);
                taken.push(segment);
            }
        }
        taken
    }

    /// Gives everything of one stream to another: segments and blocks, free or not. It is sound once all work of `from` has
    /// completed, or `to` has been made to wait for it.
    pub(crate) fn adopt(&mut self, from: u64, to: u64) {
        let segments = self.segments.values_mut().filter(|segment| segment.stream == from);
        let firsts: Vec<u32> = segments.map(|segment| (segment.stream = to, segment.first).1).collect();
        for first in firsts {
            let mut number = first;
            while let Some(record) = self.records.get(number) {
                let (after, is_free) = (record.after, record.block.state == BlockState::Inactive);
                if is_free {
                    self.leave_free(number);
                }
                if let Some(record) = self.records.get_mut(number) {
                    record.block.stream = to;
                }
                if is_free {
                    self.enter_free(number);
                }
                number = after;
            }
        }
    }

    /// The smallest free block of at least `size` bytes. None if the options forbid that one: larger ones are not looked at, as in
    /// PyTorch.
    fn best_fit(&self, stream: u64, size: u64, kind: PoolSize) -> Option<u32> {
        let free = &self.free[kind as usize];
        let (&(_, found, _), &number) =
            free.range((stream, size, 0)..=(stream, u64::MAX, u64::MAX)).next()?;
        let most_split = self.options.max_split_size().unwrap_or(u64::MAX);
        let allowed = if size < most_split {
            found < most_split
        } else {
            found - size < self.options.max_non_split_rounding()
        };
        allowed.then_some(number)
    }

    fn expect(&self, block: BlockId, accepted: BlockState) -> Result<Block, SegmentError> {
        let address = block.address;
        let was = self.get(block).ok_or(SegmentError::UnknownBlock { address })?;
        if was.state == accepted {
            Ok(was)
        } else {
            Err(SegmentError::State { address, state: was.state.name(), accepted: accepted.name() })
        }
    }

    /// Allocates a free block, or as much of it as the request needs.
    fn take(&mut self, number: u32, wanted: &SegmentRequest) -> Option<BlockId> {
        self.leave_free(number);
        let found = self.records.get(number)?.block;
        let rest = found.size.saturating_sub(wanted.size);
        let splits = match found.kind {
            _ if self.no_split => false,
            PoolSize::Small => rest >= MIN_BLOCK_SIZE,
            PoolSize::Large => {
                wanted.size < self.options.max_split_size().unwrap_or(u64::MAX) && rest > SMALL_SIZE
            }
        };
        if splits {
            self.split(number, wanted.size);
        }
        self.activate(number, wanted.requested)
    }

    /// Gives a block that is not in a list of free blocks its new name.
    fn activate(&mut self, number: u32, requested: u64) -> Option<BlockId> {
        let serial = self.blocks_made;
        let record = self.records.get_mut(number)?;
        record.block.state = BlockState::ActiveAllocated;
        record.block.requested = requested;
        record.serial = serial;
        let (block, id) = (record.block, record.id(number));
        self.blocks_made = serial.wrapping_add(1);
        let totals = &mut self.totals[block.kind as usize];
        totals.active += block.size;
        Some(id)
    }

    /// Frees an active block, with its free neighbours as one.
    fn make_inactive(&mut self, number: u32) {
        let Some(record) = self.records.get_mut(number) else { return };
        let (was, before, after) = (record.block, record.before, record.after);
        record.block.state = BlockState::Inactive;
        record.block.requested = 0;
        let totals = &mut self.totals[was.kind as usize];
        totals.active = totals.active.saturating_sub(was.size);
        // Both leave the lists before anything changes: what they count as depends on their neighbours.
        let [joins_before, joins_after] = [before, after].map(|number| self.is_inactive(number));
        if joins_after {
            self.leave_free(after);
        }
        if joins_before {
            self.leave_free(before);
        }
        if joins_after {
            self.join(number, after);
        }
        if joins_before {
            self.join(before, number);
        }
        self.enter_free(if joins_before { before } else { number });
    }

    /// Cuts a block that is in no list to `size` bytes at its start; the rest, if there is one, becomes a free block. Without a
    /// number for the rest the block stays as it is.
    fn split(&mut self, number: u32, size: u64) {
        let Some(record) = self.records.get(number) else { return };
        let (whole, segment, after) = (record.block, record.segment, record.after);
        if whole.size <= size {
            return;
        }
        let (address, rest) = (whole.address.saturating_add(size), whole.size.saturating_sub(size));
        let rest = Record::free(segment, Block { address, size: rest, ..whole }, number, after);
        let Ok(rest) = self.records.insert(rest) else { return };
        if let Some(record) = self.records.get_mut(number) {
            (record.block.size, record.after) = (size, rest);
        }
        if let Some(after) = self.records.get_mut(after) {
            after.before = rest;
        }
        self.enter_free(rest);
    }

    /// Makes one block of two neighbours that are in no list.
    fn join(&mut self, number: u32, after: u32) {
        let Some(gone) = self.records.remove(after) else { return };
        if let Some(record) = self.records.get_mut(number) {
            record.block.size = record.block.size.saturating_add(gone.block.size);
            record.after = gone.after;
        }
        if let Some(next) = self.records.get_mut(gone.after) {
            next.before = number;
        }
    }

    /// Enters a free block where best fit finds it.
    fn enter_free(&mut self, number: u32) {
        let Some(record) = self.records.get(number) else { return };
        let block = record.block;
        let totals = &mut self.totals[block.kind as usize];
        if record.is_split() {
            totals.inactive_splits += 1;
            totals.inactive_split += block.size;
        }
        self.free[block.kind as usize].insert((block.stream, block.size, block.address), number);
    }

    fn leave_free(&mut self, number: u32) {
        let Some(record) = self.records.get(number) else { return };
        let block = record.block;
        let totals = &mut self.totals[block.kind as usize];
        if record.is_split() {
            totals.inactive_splits = totals.inactive_splits.saturating_sub(1);
            totals.inactive_split = totals.inactive_split.saturating_sub(block.size);
        }
        self.free[block.kind as usize].remove(&(block.stream, block.size, block.address));
    }

    fn is_inactive(&self, number: u32) -> bool {
        self.records.get(number).is_some_and(|record| record.block.state == BlockState::Inactive)
    }

    fn is_whole(&self, number: u32) -> bool {
        self.records.get(number).is_some_and(|record| !record.is_split())
    }

    /// Adds a free segment; the number of its block. So may be added again what was released and could not be given back. Errors as for
    /// [`SegmentHeap::add_segment`].
    pub(crate) fn put_back(&mut self, segment: &FreeSegment) -> Result<u32, SegmentError> {
        let FreeSegment { address, bytes, stream, kind } = *segment;
        let aligned = address.is_multiple_of(MIN_BLOCK_SIZE) && bytes.is_multiple_of(MIN_BLOCK_SIZE);
        let end = address.checked_add(bytes);
        let (Some(end), true) = (end, aligned && address > 0 && bytes > 0 && bytes <= MOST) else {
            return Err(SegmentError::BadSegment { address, bytes });
        };
        if let Some((&other, there)) = self.segments.range(..end).next_back()
            && other.saturating_add(there.bytes) > address
        {
            return Err(SegmentError::Overlap { address, bytes, other });
        }
        let block = Block { address, size: bytes, requested: 0, stream, state: BlockState::Inactive, kind };
        let record = Record::free(address, block, NONE, NONE);
        let first = self.records.insert(record).map_err(|_| SegmentError::Full)?;
        self.segments.insert(address, Segment { bytes, stream, kind, serial: self.segments_added, first });
        self.segments_added = self.segments_added.wrapping_add(1);
        let totals = &mut self.totals[kind as usize];
        totals.segments += 1;
        totals.reserved += bytes;
        self.enter_free(first);
        Ok(first)
    }

    /// Takes the segment out that a free block is the whole of.
    fn take_out(&mut self, number: u32) -> Option<FreeSegment> {
        self.leave_free(number);
        let address = self.records.remove(number)?.block.address;
        let Segment { bytes, stream, kind, .. } = self.segments.remove(&address)?;
        let totals = &mut self.totals[kind as usize];
        totals.segments = totals.segments.saturating_sub(1);
        totals.reserved = totals.reserved.saturating_sub(bytes);
        Some(FreeSegment { address, bytes, stream, kind })
    }

    /// How many more blocks there are numbers for, at least.
    pub(super) fn has_numbers_for(&self, blocks: usize) -> bool {
        blocks.saturating_add(self.segments.len()) < NONE as usize
    }

    /// Cuts a wholly free segment into these blocks. The names of those that are allocated.
    pub(super) fn cut_as(&mut self, segment: u64, blocks: &[Block]) -> Vec<BlockId> {
        let mut number = self.segments.get(&segment).map_or(NONE, |segment| segment.first);
        let mut allocated = Vec::new();
        for block in blocks {
            self.leave_free(number);
            self.split(number, block.size);
            let after = self.records.get(number).map_or(NONE, |record| record.after);
            if block.state == BlockState::Inactive {
                self.enter_free(number);
            } else {
                allocated.extend(self.activate(number, block.requested));
            }
            number = after;
        }
        allocated
    }
}

/// The kind of segment that a block is cut from.
fn kind_of(block: u64) -> PoolSize {
    if block <= SMALL_SIZE { PoolSize::Small } else { PoolSize::Large }
}

/// A segment as it is at the moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SegmentView<'h> {
    records: &'h Slab<Record>,
    first: u32,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    /// The stream that its blocks belong to.
    pub(crate) stream: u64,
    pub(crate) kind: PoolSize,
    /// How many segments of its heap came before it.
    pub(crate) serial: u64,
}

impl<'h> SegmentView<'h> {
    /// Its blocks in the order of their addresses, without a gap.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Block> + use<'h> {
        self.records().map(|(_, record)| record.block)
    }

    fn records(&self) -> impl Iterator<Item = (u32, &'h Record)> + use<'h> {
        let (records, first) = (self.records, self.first);
        let at = move |number: u32| Some((number, records.get(number)?));
        std::iter::successors(at(first), move |(_, record)| at(record.after))
    }
}

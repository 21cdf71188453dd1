//! A heap of segments: who gets which block.

use std::collections::BTreeMap;

use super::block::{Block, BlockId, BlockState, Record, SegmentKind};
use super::block_pool::BlockPool;
use super::options::{MOST, Options, SMALL_SIZE};
use super::rounding::MIN_BLOCK_SIZE;
use super::segment::{Allocation, FreeSegment, Segment, SegmentRequest};
use super::totals::Totals;
use crate::engine::slab::{NONE, Slab};
use crate::error::SegmentError;

/// Segments of one pool, cut into blocks as PyTorch's allocator cuts them.
///
/// It is told where segments are, and says where blocks are: addresses and sizes alone, no memory, no driver, no lock. Whoever
/// owns it gets segments when it asks for them and gives back those that it releases.
///
/// ```
/// use cuda_mem_pool::segments::{Allocation, Options, SegmentHeap};
///
/// let stream = 7;
/// let mut heap = SegmentHeap::new(Options::default());
/// let Allocation::Miss(wanted) = heap.allocate(stream, 3 << 20)? else { panic!("nothing is free yet") };
/// assert_eq!(wanted.bytes(), 20 << 20);
/// let block = heap.add_segment(&wanted, 0x7000_0000)?; // of the driver, say
/// assert_eq!(block.address(), 0x7000_0000);
///
/// heap.free(block)?;
/// assert!(matches!(heap.allocate(stream, 5 << 20)?, Allocation::Hit(block) if block.address() == 0x7000_0000));
/// assert!(matches!(heap.allocate(8, 5 << 20)?, Allocation::Miss(_))); // another stream has its own
/// # Ok::<(), cuda_mem_pool::segments::SegmentError>(())
/// ```
#[derive(Debug)]
pub struct SegmentHeap {
    pub(super) options: Options,
    pub(super) limit: Option<u64>,
    pub(super) no_split: bool,
    pub(super) blocks: Slab<Record>,
    pub(super) small: BlockPool,
    pub(super) large: BlockPool,
    /// By address.
    pub(super) segments: BTreeMap<u64, Segment>,
    pub(super) small_totals: Totals,
    pub(super) large_totals: Totals,
    /// How many blocks were ever handed out.
    handed_out: u64,
    /// How many segments ever came.
    came: u64,
}

impl SegmentHeap {
    /// Without segments.
    #[must_use]
    pub fn new(options: Options) -> Self {
        Self {
            options,
            limit: None,
            no_split: false,
            blocks: Slab::new(),
            small: BlockPool::default(),
            large: BlockPool::default(),
            segments: BTreeMap::new(),
            small_totals: Totals::default(),
            large_totals: Totals::default(),
            handed_out: 0,
            came: 0,
        }
    }

    /// The options that hold from here on. Segments and blocks stay as they are.
    pub fn set_options(&mut self, options: Options) {
        self.options = options;
    }

    /// The most bytes that [`SegmentHeap::allocate_from`] reserves; [`memory_limit`](super::memory_limit) counts them from a
    /// fraction. None, the default: as many as there are.
    pub fn set_limit(&mut self, bytes: Option<u64>) {
        self.limit = bytes;
    }

    /// Whether a request gets the whole of the free block that is found for it.
    pub fn set_no_split(&mut self, no_split: bool) {
        self.no_split = no_split;
    }

    /// The smallest free block of the stream that the request fits in, at the lowest address of those. A request of 0 bytes
    /// gets the smallest block there is.
    ///
    /// # Errors
    ///
    /// [`SegmentError::TooLarge`].
    pub fn allocate(&mut self, stream: u64, bytes: u64) -> Result<Allocation, SegmentError> {
        let size = self.options.block_size(bytes)?;
        let wanted =
            SegmentRequest { stream, requested: bytes, size, bytes: self.options.segment_size(size) };
        let pool = match SegmentKind::of(size) {
            SegmentKind::Small => &mut self.small,
            SegmentKind::Large => &mut self.large,
        };
        let found = pool.find(stream, size, &self.options);
        Ok(match found.and_then(|number| self.take(number, &wanted)) {
            Some(block) => Allocation::Hit(block),
            None => Allocation::Miss(wanted),
        })
    }

    /// Adds the segment that a request missed, and serves the request from it.
    ///
    /// # Errors
    ///
    /// [`SegmentError::BadSegment`] unless the address is a multiple of 512 other than 0; [`SegmentError::Overlap`] with a
    /// segment of this heap; [`SegmentError::Full`]. The segment is still the caller's then.
    pub fn add_segment(&mut self, wanted: &SegmentRequest, address: u64) -> Result<BlockId, SegmentError> {
        let kind = SegmentKind::of(wanted.size);
        let segment = FreeSegment { address, bytes: wanted.bytes, stream: wanted.stream, kind };
        let number = self.insert(&segment)?;
        self.take(number, wanted).ok_or(SegmentError::Full)
    }

    /// Adds a segment again that was released from this heap or one like it, because its owner could not give it back.
    ///
    /// # Errors
    ///
    /// As [`SegmentHeap::add_segment`].
    pub fn put_back(&mut self, segment: &FreeSegment) -> Result<(), SegmentError> {
        self.insert(segment).map(drop)
    }

    /// Takes a block back that no other stream uses: its stream may have it again at once.
    ///
    /// # Errors
    ///
    /// [`SegmentError::UnknownBlock`] if it was freed before.
    pub fn free(&mut self, block: BlockId) -> Result<Block, SegmentError> {
        let (was, number) = self.expect(block, BlockState::ActiveAllocated)?;
        self.totals_mut(was.kind).freed(was.size);
        self.make_inactive(number);
        Ok(was)
    }

    /// Takes a block back that other streams still use. It is nobody's until [`SegmentHeap::complete`] is told that they are
    /// done.
    ///
    /// # Errors
    ///
    /// [`SegmentError::UnknownBlock`], [`SegmentError::State`] if it was freed before.
    pub fn free_pending(&mut self, block: BlockId) -> Result<Block, SegmentError> {
        let (was, number) = self.expect(block, BlockState::ActiveAllocated)?;
        self.totals_mut(was.kind).freed(was.size);
        if let Some(record) = self.blocks.get_mut(number) {
            record.block.state = BlockState::ActivePendingFree;
        }
        Ok(was)
    }

    /// The other streams are done with a block of [`SegmentHeap::free_pending`].
    ///
    /// # Errors
    ///
    /// [`SegmentError::UnknownBlock`], [`SegmentError::State`] if it is not pending.
    pub fn complete(&mut self, block: BlockId) -> Result<Block, SegmentError> {
        let (was, number) = self.expect(block, BlockState::ActivePendingFree)?;
        self.make_inactive(number);
        Ok(was)
    }

    /// A block, unless it is free again.
    #[must_use]
    pub fn get(&self, block: BlockId) -> Option<Block> {
        let record = self.blocks.get(block.number)?;
        let same = (record.serial, record.block.address) == (block.serial, block.address);
        (same && record.block.state != BlockState::Inactive).then_some(record.block)
    }

    /// What the heap holds, all in all.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.small_totals + self.large_totals
    }

    /// What it holds of one sort.
    #[must_use]
    pub fn totals_of(&self, kind: SegmentKind) -> Totals {
        match kind {
            SegmentKind::Small => self.small_totals,
            SegmentKind::Large => self.large_totals,
        }
    }

    fn expect(&self, block: BlockId, accepted: BlockState) -> Result<(Block, u32), SegmentError> {
        let address = block.address;
        let was = self.get(block).ok_or(SegmentError::UnknownBlock { address })?;
        if was.state == accepted {
            Ok((was, block.number))
        } else {
            Err(SegmentError::State { address, state: was.state.name(), accepted: accepted.name() })
        }
    }

    /// Hands out a free block, or as much of it as the request needs.
    fn take(&mut self, number: u32, wanted: &SegmentRequest) -> Option<BlockId> {
        self.leave_pool(number);
        let found = self.blocks.get(number)?.block;
        if self.should_split(&found, wanted.size) {
            self.split(number, wanted.size);
        }
        self.hand_out(number, wanted.requested)
    }

    /// Gives a block that is in no pool its new name.
    pub(super) fn hand_out(&mut self, number: u32, requested: u64) -> Option<BlockId> {
        let serial = self.handed_out;
        let record = self.blocks.get_mut(number)?;
        record.block.state = BlockState::ActiveAllocated;
        record.block.requested = requested;
        record.serial = serial;
        let (block, id) = (record.block, record.id(number));
        self.handed_out = serial.wrapping_add(1);
        self.totals_mut(block.kind).handed_out(block.size, block.requested);
        Some(id)
    }

    fn should_split(&self, block: &Block, size: u64) -> bool {
        let rest = block.size.saturating_sub(size);
        match block.kind {
            _ if self.no_split => false,
            SegmentKind::Small => rest >= MIN_BLOCK_SIZE,
            SegmentKind::Large => {
                size < self.options.max_split_size().unwrap_or(u64::MAX) && rest > SMALL_SIZE
            }
        }
    }

    fn insert(&mut self, segment: &FreeSegment) -> Result<u32, SegmentError> {
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
        let first = self.blocks.insert(record).map_err(|_| SegmentError::Full)?;
        self.segments.insert(address, Segment { bytes, stream, kind, serial: self.came, first });
        self.came = self.came.wrapping_add(1);
        self.totals_mut(kind).segment_came(bytes);
        self.enter_pool(first);
        Ok(first)
    }

    pub(super) fn pool(&mut self, kind: SegmentKind) -> &mut BlockPool {
        match kind {
            SegmentKind::Small => &mut self.small,
            SegmentKind::Large => &mut self.large,
        }
    }

    pub(super) fn totals_mut(&mut self, kind: SegmentKind) -> &mut Totals {
        match kind {
            SegmentKind::Small => &mut self.small_totals,
            SegmentKind::Large => &mut self.large_totals,
        }
    }
}

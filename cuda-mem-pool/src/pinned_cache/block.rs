//! Blocks of pinned memory, as their users have them.
//!
//! # Safety
//!
//! Relies on the engine giving no byte to two blocks at a time, on all bytes of a segment being initialised (the system
//! hands out zeroes, and whatever is written over them are values too), and on the segment staying where it is while a
//! block of it exists. Device uses are in the block's `Uses`: every way to the bytes waits for them, and the allocator
//! gives the bytes to nobody else before they have ended.

#![allow(unsafe_code, reason = "hands out slices over pinned memory")]

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cuda_mem_core::host::{HostElements, HostMemory};
use cuda_mem_core::{Error, Result, Stream, StreamUse, Uses, forked};

use super::arena::{Arena, Segment};
use super::heap::{BlockId, Grant};
use crate::engine::classes;
use crate::mempool_id::MempoolId;

/// A block of pinned memory out of a [`PinnedCachingAllocator`](super::PinnedCachingAllocator). Dropped, it goes back there.
///
/// It can be copied from and to by everything that takes host memory, and dropped while streams still use it: it is handed out again
/// when they are done. It may outlive the allocator. Its bytes are what the last user left, or zero if there was none. The memory
/// starts at a multiple of 256 bytes.
///
/// ```
/// use cuda_mem_pool::cuda_mem_core::{DeviceBuffer, Driver, Stream, Transfer};
/// use cuda_mem_pool::PinnedCachingAllocator;
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let allocator = PinnedCachingAllocator::new(&context);
/// let mut block = allocator.allocate(3000)?;
/// block.as_mut_slice()?.fill(7);
/// let device = DeviceBuffer::<u8>::uninit(&stream, 3000)?;
/// let block = Transfer::upload(&stream, block, &device.whole())?.wait()?;
/// assert_eq!((block.len(), block.capacity()), (3000, 3072));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PinnedBlock {
    pub(super) start: NonNull<u8>,
    len: usize,
    /// Taken out when the block is dropped.
    block: ManuallyDrop<FreeBlock>,
}

impl PinnedBlock {
    #[inline]
    pub(super) fn new(block: FreeBlock, len: usize) -> Self {
        let start = block.segment.address(block.offset);
        Self { start, len, block: ManuallyDrop::new(block) }
    }

    /// The bytes that were asked for.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes that the block takes: its size class, or whole pages from 1 MiB on.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.block.capacity
    }

    /// Whether no stream uses it any more, nor a graph, as far as is known within a moment.
    pub fn is_unused(&mut self) -> bool {
        // An idle stream comes to an event within that, which is what some streams have to be asked by.
        let is_unused =
            !*self.block.captured.get_mut() && self.block.uses.wait_for(Duration::from_micros(50)).is_ok();
        if is_unused {
            self.block.uses = Uses::new();
        }
        is_unused
    }

    /// The NUMA node that it was asked to lie on.
    #[must_use]
    pub fn numa_id(&self) -> Option<u32> {
        self.block.arena().numa_id
    }

    /// The private pool that it is of, if it is of one.
    #[must_use]
    pub fn pool(&self) -> Option<MempoolId> {
        self.block.arena().pool
    }

    /// Where the bytes start. A device may be writing them.
    #[inline]
    #[must_use]
    pub fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    /// The bytes, once every device use that is known of has ended. Blocks the calling thread until then. Without recorded uses
    /// that takes no driver call.
    ///
    /// Wraps [`cuStreamSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html), or
    /// `cuEventSynchronize` where an event stands for a stream ([`Uses::wait`](cuda_mem_core::Uses::wait)).
    pub fn as_slice(&self) -> Result<&[u8]> {
        self.block.uses.wait()?;
        // SAFETY: `len` initialised bytes of a block that this value alone has; no device writes them now, and safe device
        // operations that write them take `&mut` of the block or of this slice.
        Ok(unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) })
    }

    /// The bytes, to change, as [`PinnedBlock::as_slice`].
    pub fn as_mut_slice(&mut self) -> Result<&mut [u8]> {
        self.block.uses.wait()?;
        // SAFETY: as in `as_slice`, and `&mut self` makes it the only reference.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }

    /// Says that work which reads or writes the memory is about to be put into `stream`, and gives the device's address of
    /// it, as [`DeviceBuffer::on`](cuda_mem_core::DeviceBuffer::on) does.
    ///
    /// # Capture
    ///
    /// [`Error::Capturing`] if the stream captures, for a block of the default pool: the graph would outlive it. A block of a
    /// private pool may become part of a graph; dropped then, it serves nobody else until the pool is released or the
    /// allocator's last handle is dropped.
    pub fn on<'b>(&'b self, stream: &'b Stream) -> Result<StreamUse<'b>> {
        let block = self.admit(stream, "PinnedBlock::on")?;
        block.uses.on(block.segment.device_address(stream.context(), block.offset)?, stream)
    }

    /// Says that `stream` was given work that uses the memory, so that the memory is handed out again only behind it. Orders
    /// nothing. PyTorch calls it recording an event, and `Tensor.record_stream`. Fails as [`PinnedBlock::on`] does.
    pub fn record_stream(&self, stream: &Stream) -> Result<()> {
        self.admit(stream, "PinnedBlock::record_stream")?.uses.record_stream(stream)
    }

    /// What there is for `stream` to use, if it may.
    pub(super) fn admit(&self, stream: &Stream, call: &'static str) -> Result<&Body> {
        let arena = self.block.arena();
        arena.shared.context.driver().expect_same(stream.context().driver(), "the stream")?;
        let captures = match stream.is_capturing() {
            // What it was given before it was lost sight of is waited for.
            Err(Error::Disowned) => false,
            captures => captures?,
        };
        if captures {
            if arena.pool.is_none() {
                return Err(Error::Capturing { call });
            }
            self.block.captured.store(true, Ordering::Relaxed);
        }
        Ok(&self.block)
    }
}

impl Drop for PinnedBlock {
    #[inline]
    fn drop(&mut self) {
        if forked() {
            // It is the parent's.
            return;
        }
        // SAFETY: taken once; the value is not used after its drop.
        let mut block = unsafe { ManuallyDrop::take(&mut self.block) };
        if block.uses.is_empty() && !*block.captured.get_mut() {
            Arena::free_unused(block);
        } else {
            Arena::free_used(block);
        }
    }
}

// SAFETY: memory that stays in place until the block is dropped. A device writes it only through `&mut` of the block or
// through its use set, which every way to the bytes waits for.
unsafe impl HostMemory for PinnedBlock {
    fn as_ptr(&self) -> *const u8 {
        self.start.as_ptr()
    }

    fn byte_len(&self) -> usize {
        self.len
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn order_behind_uses(&self, stream: &Stream) -> Result<()> {
        self.block.uses.order(stream)
    }

    fn wait_for_uses(&self) -> Result<()> {
        self.block.uses.wait()
    }
}

// SAFETY: `len` initialised bytes that the block owns alone.
unsafe impl HostElements for PinnedBlock {
    type Element = u8;

    fn as_mut_ptr(&mut self) -> *mut u8 {
        self.start.as_ptr()
    }
}

// SAFETY: the address is that of memory which this value alone has.
unsafe impl Send for PinnedBlock {}
// SAFETY: a shared block gives out shared slices, and its uses are behind a lock.
unsafe impl Sync for PinnedBlock {}

crate::impl_debug!(PinnedBlock, |it| address: it.start, len: it.len);

/// A block that belongs to nobody, or to the [`PinnedBlock`] around it. One pointer, because it is moved several times on the way
/// between a thread cache and its user, and back.
pub(super) type FreeBlock = Box<Body>;

#[derive(Debug)]
pub(super) struct Body {
    pub(super) segment: Arc<Segment>,
    pub(super) id: BlockId,
    pub(super) offset: usize,
    pub(super) capacity: usize,
    /// The size class that `capacity` is or is in.
    pub(super) class: usize,
    /// The allocator, if threads may keep the block: not those of private pools and other nodes.
    pub(super) kept_by: Option<u64>,
    /// The streams that use it since it was handed out.
    pub(super) uses: Uses,
    pub(super) captured: AtomicBool,
}

impl Body {
    pub(super) fn new(grant: Grant<'_, Arc<Segment>>, size: usize) -> FreeBlock {
        let arena = &grant.segment.arena;
        Box::new(Self {
            segment: Arc::clone(grant.segment),
            id: grant.block,
            offset: grant.offset,
            capacity: size,
            class: classes::floor(size),
            kept_by: arena.is_home.then(|| arena.shared.id),
            uses: Uses::new(),
            captured: AtomicBool::new(false),
        })
    }

    #[inline]
    pub(super) fn arena(&self) -> &Arc<Arena> {
        &self.segment.arena
    }
}

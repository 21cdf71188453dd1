//! Blocks of a caching allocator, handed over where they are.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use cuda_mem_pool::caching::{CachingAllocator, Pin};
use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::vmm::CreateOptions;
use cuda_mem_pool::cuda_mem_core::{
    self as core, DeviceCopy, DeviceRange, Driver, Stream, StreamUse, UsedElsewhere,
};
use cuda_mem_pool::{Allocation, DeviceAccessible};

use super::buffer::{Holder, Share};
use super::free::Past;
use super::pool::expect_bytes;
use super::segment::Segment;
use super::wire::{MOST_HANDLES, Place};
use super::words::ReleaseFence;
use crate::background;
use crate::error::{Error, Result};
use crate::primitive::{lock, refuse_forked};

/// A block of a [`CachingAllocator`] that was found to suit other processes. Clones are handles to the same block.
///
/// Nothing is copied. The handles that the block lies in are pinned for as long as any process has it, and so are the blocks beside
/// it: pinned memory does not move, and does not go back to the driver. **A peer gets whole handles**, with whatever else lies in
/// them. What it must not see, or what is handed over all the time, belongs into a [`SharedPool`](super::SharedPool), whose segments
/// have one handle each, or into one of its [isolated](super::SharedPool::allocate_isolated) buffers, with handles of their own.
///
/// It remembers every stream that uses it. When its last handle is dropped, and every receiver that it was handed to is done or
/// gone, the block goes back to its allocator once their work is done; no call waits for that. The receivers unmap the handles
/// when the last block in them is gone.
///
/// ```
/// use cuda_mem_ipc::shared::Exportable;
/// use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_ipc::cuda_mem_pool::{MemoryResource, caching::{CachingAllocator, CachingOptions}};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
/// let block = allocator.allocate(10 << 20, &stream)?;
/// let address = block.address();
/// let buffer = Exportable::new(&allocator, block)?; // to be handed over by an Exporter
/// assert_eq!((buffer.as_raw(), buffer.len()), (address, 10 << 20));
/// assert_eq!(allocator.pins().len(), 1);
/// drop(buffer);
/// assert!(allocator.pins().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Exportable {
    exported: Arc<Exported>,
}

struct Exported {
    /// Shared with whoever waits for receivers before it goes back.
    block: Arc<Block>,
    /// Receivers that are done.
    last: Past,
    /// Whole handles side by side, which the block lies in.
    segment: Arc<Segment>,
}

type Block = Allocation<DeviceAccessible>;

/// A block that cannot be given to other processes: it comes back, with the reason.
/// [`Exportable::new`] has the reasons.  [`Exportable`] has an example.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct NotExportable {
    /// Why.
    #[source]
    pub error: Error,
    /// The block, as it was.
    pub block: Block,
}

/// Where handles are: the driver, the first address and how many.
type Whereabouts = (Driver, CUdeviceptr, usize);

/// Those that somebody has. Memory that is pinned stays where it is, so that the place names it.
static SEGMENTS: LazyLock<Mutex<HashMap<Whereabouts, Weak<Segment>>>> = LazyLock::new(Mutex::default);

impl Exportable {
    /// Pins a block where it is, for other processes.
    ///
    /// # Errors
    ///
    /// The block comes back with the error. [`Error::TooManyHandles`] if it lies in more than [`MOST_HANDLES`]; [`Error::Pool`] with
    /// `UnknownAddress` if it is not of this allocator's default pool; [`core::Error::NotShareable`] on a device whose memory cannot be
    /// shared, [`core::Error::NotAccepted`] for one without bytes.
    #[allow(clippy::result_large_err, reason = "the block comes back")]
    pub fn new(allocator: &CachingAllocator, block: Block) -> Result<Self, NotExportable> {
        match pinned(allocator, &block) {
            Ok(segment) => {
                let last = Past::default();
                Ok(Self { exported: Arc::new(Exported { block: Arc::new(block), last, segment }) })
            }
            Err(error) => Err(NotExportable { error, block }),
        }
    }

    /// Its size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.exported.block.len()
    }

    /// Its address. Work that is put into a stream by it is ordered behind nothing, and nothing behind it: see [`Exportable::on`].
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.exported.block.address()
    }

    /// Says that work which reads or writes the memory is about to be put into `stream`, and gives its address: as
    /// [`SharedBuffer::on`](super::SharedBuffer::on).
    pub fn on<'b>(&'b self, stream: &'b Stream) -> Result<StreamUse<'b>> {
        refuse_forked()?;
        let Exported { block, last, .. } = &*self.exported;
        block.context().driver().expect_same(stream.context().driver(), "the stream")?;
        last.order(stream)?;
        Ok(block.on(stream)?)
    }

    /// Its memory as elements, as many as fit, for copies. They are ordered as with [`Exportable::on`].
    pub fn as_range<T: DeviceCopy>(&self) -> core::Result<DeviceRange<'_, T>> {
        refuse_forked()?;
        self.exported.block.whole().behind(&self.exported.last).cast()
    }

    /// A part of it, to be handed over: [`core::Error::OutOfRange`] also for one without bytes.
    pub fn range(&self, range: Range<usize>) -> Result<Share> {
        Share::from(self).range(range)
    }
}

/// What a block lies in, which stays where it is from now on.
fn pinned(allocator: &CachingAllocator, block: &Block) -> Result<Arc<Segment>> {
    refuse_forked()?;
    let (address, bytes) = (block.address(), block.len());
    expect_bytes("the size of a block to share", bytes)?;
    let pinned = allocator.pin(address, bytes, Pin::Exported)?;
    let parts = pinned.segments()?;
    if parts.len() > MOST_HANDLES {
        return Err(Error::TooManyHandles { handles: parts.len(), most: MOST_HANDLES });
    }
    let sizes = parts.iter().map(|part| part.bytes as u64).collect::<Vec<_>>();
    let total = parts.iter().map(|part| part.bytes).sum::<usize>();
    let start = parts.first().map_or(address, |part| part.address);
    let device = block.context().device();
    let whereabouts = (device.driver(), start, total);
    // Of two threads that come first at once the second finds what the first has made.
    let mut segments = lock(&SEGMENTS);
    if let Some(segment) = segments.get(&whereabouts).and_then(Weak::upgrade) {
        return Ok(segment);
    }
    if !CreateOptions::supported_by(device)?.shareable {
        return Err(core::Error::NotShareable { what: "a POSIX file descriptor" }.into());
    }
    let uuid = device.uuid()?;
    let place = if sizes.len() > 1 { Place::Parts { uuid, sizes } } else { Place::Device(uuid) };
    let segment = Arc::new(Segment::lent(place, start, total, pinned));
    segments.retain(|_, segment| segment.strong_count() > 0);
    segments.insert(whereabouts, Arc::downgrade(&segment));
    Ok(segment)
}

impl From<&Exportable> for Share {
    fn from(buffer: &Exportable) -> Self {
        let (exported, segment) = (&buffer.exported, &buffer.exported.segment);
        let offset = usize::try_from(buffer.as_raw().wrapping_sub(segment.address(0))).unwrap_or(usize::MAX);
        let (holder, driver) = (Arc::<Exported>::clone(exported), exported.block.context().driver());
        Self { driver, segment: Arc::clone(segment), offset, len: buffer.len(), holder }
    }
}

impl Holder for Exported {
    fn order(&self, stream: &Stream) -> Result<()> {
        self.last.order(stream)?;
        Ok(self.block.order_behind_uses(stream)?)
    }

    fn released(&self, fence: ReleaseFence) {
        self.last.add_release(fence);
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        if core::forked() {
            // Before any lock: the memory is the parent's, as the block's own drop knows.
            return;
        }
        let last = self.last.take();
        // The allocator uses it again behind this process's streams, and has it back when its receivers are done.
        if !last.is_over(None) {
            let block = Arc::clone(&self.block);
            background::until(move || {
                let _keeps = &block;
                last.is_over(None)
            });
        }
    }
}

crate::impl_debug!(Exportable, |it| address: format_args!("{:#x}", it.as_raw()), len: it.len());

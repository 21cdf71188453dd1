//! Buffers of a shared pool.
//!
//! # Safety
//!
//! Relies on the pool giving the bytes of a block to nobody else while the block lives, and on its segment staying mapped behind its uses.

#![allow(unsafe_code, reason = "makes ranges of addresses")]

use std::ops::Range;
use std::sync::{Arc, Mutex};

use cuda_mem_pool::cuda_mem_core::host::SharedMapping;
use cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_pool::cuda_mem_core::{
    self as core, DeviceCopy, DeviceRange, Driver, Stream, StreamUse, UsedElsewhere, Uses,
};

use super::free::Past;
use super::pool::{Cut, Pool};
use super::segment::Segment;
use super::words::ReleaseFence;
use super::{expect_host, until_unused};
use crate::error::Result;
use crate::primitive::refuse_forked;
use crate::transport::Deadline;

/// Memory of a [`SharedPool`](super::SharedPool), owned. Clones are handles to the same memory.
///
/// It remembers every stream that uses it. When its last handle is dropped, and every receiver that it was handed to is done or
/// gone, its memory is used again, behind all of their work. [`Exporter::listen`](super::Exporter::listen) has an example.
#[derive(Clone)]
pub struct SharedBuffer {
    block: Arc<Block>,
}

#[derive(Debug)]
pub(super) struct Block {
    pool: Arc<Pool>,
    segment: Arc<Segment>,
    offset: usize,
    len: usize,
    room: usize,
    uses: Uses,
    /// What has to be waited for besides: whoever had the memory before, and receivers that are done.
    last: Past,
}

impl SharedBuffer {
    pub(super) fn new(pool: &Arc<Pool>, cut: Cut, len: usize, stream: &Stream) -> Result<Self> {
        let Cut { segment, offset, room, last } = cut;
        // From here on its drop gives it back.
        let (pool, last) = (Arc::clone(pool), Past(Mutex::new(last)));
        let block = Block { pool, segment, offset, len, room, uses: Uses::new(), last };
        block.last.order(stream)?;
        // Who gets the memory next waits for this stream, and with it for all that it waits for.
        block.uses.record_stream(stream)?;
        drop(block.last.take());
        Ok(Self { block: Arc::new(block) })
    }

    /// Its size in bytes: what was asked for.
    #[must_use]
    pub fn len(&self) -> usize {
        self.block.len
    }

    /// Its address. Work that is put into a stream by it is ordered behind nothing, and nothing behind it: see [`SharedBuffer::on`].
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.block.segment.address(self.block.offset)
    }

    /// Says that work which reads or writes the memory is about to be put into `stream`, and gives its address: as
    /// [`DeviceBuffer::on`](core::DeviceBuffer::on). The stream also waits for receivers that have given the memory back; who
    /// writes while a receiver has it writes under its eyes.
    pub fn on<'b>(&'b self, stream: &'b Stream) -> Result<StreamUse<'b>> {
        refuse_forked()?;
        self.block.pool.context.driver().expect_same(stream.context().driver(), "the stream")?;
        self.block.last.order(stream)?;
        Ok(self.block.uses.on(self.as_raw(), stream)?)
    }

    /// Its memory as elements, as many as fit, for copies. They are ordered as with [`SharedBuffer::on`].
    pub fn as_range<T: DeviceCopy>(&self) -> core::Result<DeviceRange<'_, T>> {
        refuse_forked()?;
        let (block, driver) = (&*self.block, self.block.pool.context.driver());
        // SAFETY: as many bytes of the block, which lives longer than this borrow and is used again behind its uses.
        unsafe { DeviceRange::<u8>::from_mapped(&block.uses, driver, self.as_raw(), block.len) }?
            .behind(&block.last)
            .cast()
    }

    /// A part of it, to be handed over: [`core::Error::OutOfRange`] also for one without bytes.
    pub fn range(&self, range: Range<usize>) -> Result<Share> {
        Share::from(self).range(range)
    }

    /// Copies bytes of a buffer in host memory out, from `offset` on, once its uses in this process are done, and those of
    /// receivers that have given it back. A receiver that still has it is not waited for. Blocks the calling thread.
    ///
    /// # Errors
    ///
    /// [`Error::NotOnHost`](crate::Error::NotOnHost), [`Error::Timeout`](crate::Error::Timeout), [`core::Error::OutOfRange`].
    pub fn read(&self, offset: usize, into: &mut [u8], deadline: impl Into<Deadline>) -> Result<()> {
        let (host, at) = self.host(offset, into.len(), deadline.into())?;
        Ok(host.read(at, into)?)
    }

    /// Copies bytes into a buffer in host memory, from `offset` on, behind the same as [`SharedBuffer::read`].
    /// Errors: as [`SharedBuffer::read`].
    pub fn write(&self, offset: usize, from: &[u8], deadline: impl Into<Deadline>) -> Result<()> {
        let (host, at) = self.host(offset, from.len(), deadline.into())?;
        Ok(host.write(at, from)?)
    }

    fn host(&self, offset: usize, len: usize, deadline: Deadline) -> Result<(&SharedMapping, usize)> {
        let block = &*self.block;
        let host = expect_host(&block.segment, block.offset, block.len, offset, len)?;
        until_unused(&block.uses, Some(&block.last), deadline).map(|()| host)
    }
}

impl From<&SharedBuffer> for Share {
    fn from(buffer: &SharedBuffer) -> Self {
        let block = &buffer.block;
        let (driver, segment) = (block.pool.context.driver(), Arc::clone(&block.segment));
        Self { driver, segment, offset: block.offset, len: block.len, holder: Arc::<Block>::clone(block) }
    }
}

impl Holder for Block {
    fn order(&self, stream: &Stream) -> Result<()> {
        self.last.order(stream)?;
        Ok(self.uses.order(stream)?)
    }

    fn released(&self, fence: ReleaseFence) {
        self.last.add_release(fence);
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if core::forked() {
            // Before any lock: the memory is the parent's.
            return;
        }
        let (uses, last) = (std::mem::take(&mut self.uses), self.last.take());
        let segment = Arc::clone(&self.segment);
        self.pool.free(Cut { segment, offset: self.offset, room: self.room, last }, uses);
    }
}

crate::impl_debug!(SharedBuffer, |it| address: format_args!("{:#x}", it.as_raw()), len: it.len());

/// A buffer, or a part of one, to be handed over: [`Exporter::hand_over`](super::Exporter::hand_over) takes it.
///
/// Made from a [`SharedBuffer`] or an [`Exportable`](super::Exportable), whole by `From`, or in part by their `range`. What was received
/// is not handed on: its third process makes a connection of its own to the owner.
///
/// ```
/// use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_ipc::shared::{Share, SharedPool, SharedPoolOptions};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let pool = SharedPool::new(&context, &SharedPoolOptions::default())?;
/// let buffer = pool.allocate(4096, &Stream::new(&context)?)?;
/// let (whole, half) = (Share::from(&buffer), buffer.range(0..2048)?);
/// # drop((whole, half));
/// # Ok::<(), cuda_mem_ipc::Error>(())
/// ```
#[derive(Clone)]
pub struct Share {
    pub(super) driver: Driver,
    pub(super) segment: Arc<Segment>,
    /// In the segment.
    pub(super) offset: usize,
    pub(super) len: usize,
    pub(super) holder: Arc<dyn Holder>,
}

/// What keeps handed memory and its segment, and is told when its receiver is done.
pub(super) trait Holder: Send + Sync {
    /// Orders `stream` behind all uses of the memory.
    fn order(&self, stream: &Stream) -> Result<()>;

    /// A receiver is done behind this fence.
    fn released(&self, fence: ReleaseFence);
}

impl Share {
    /// A part of it, in bytes: [`core::Error::OutOfRange`] also for one without any.
    pub fn range(&self, range: Range<usize>) -> Result<Self> {
        let len = range.end.saturating_sub(range.start);
        if len == 0 || range.end > self.len {
            return Err(core::Error::OutOfRange { range, len: self.len }.into());
        }
        Ok(Self { offset: self.offset.saturating_add(range.start), len, ..self.clone() })
    }

    /// How many bytes it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }
}

crate::impl_debug!(Share, |it| offset: it.offset, len: it.len);

//! Device memory, allocated and freed in stream order.
//!
//! # Safety
//!
//! Relies on `cuMemAllocAsync` giving memory that belongs to its receiver until `cuMemFreeAsync`, and on work of one stream
//! running in order. [`Uses`] names every stream that has work with the memory; the free is ordered behind all of them.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Bound, RangeBounds};

use cuda_mem_sys::CUdeviceptr;

use super::{DeviceRange, StreamUse};
use crate::context::Context;
use crate::driver::refuse_forked;
use crate::element::{DeviceCopy, size_of_elements};
use crate::error::{Error, Refused, Result, WithBytes, call};
use crate::fork;
use crate::stream::Stream;
use crate::uses::{Access, Entries, Uses};

/// Elements in device memory.
///
/// Allocated on a stream, from the pool that is current for the stream's device, and freed on it when dropped: after the
/// work of every stream that used the buffer, without the host waiting for any.
///
/// ```
/// use cuda_mem_core::{DeviceBuffer, Driver, Stream};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let buffer = DeviceBuffer::from_slice(&stream, &[1u32, 2, 3])?;
/// assert_eq!(buffer.to_vec(&stream)?, [1, 2, 3]);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
pub struct DeviceBuffer<T: DeviceCopy> {
    address: CUdeviceptr,
    len: usize,
    /// The stream that it was allocated on and is freed on.
    home: Stream,
    uses: Uses,
    _elements: PhantomData<T>,
}

impl<T: DeviceCopy> DeviceBuffer<T> {
    /// Memory for `len` elements with whatever bytes are there. Nothing is allocated for zero bytes.
    ///
    /// Wraps [`cuMemAllocAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html). Ordered on
    /// `stream`; the address is known at once, the memory may be used after this point of the stream.
    ///
    /// # Capture
    ///
    /// [`Error::Capturing`] if the stream captures: the driver would make the memory part of the graph.
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`], [`Error::Driver`] (out of memory among others), [`Error::WrongThread`], [`Error::Forked`].
    pub fn uninit(stream: &Stream, len: usize) -> Result<Self> {
        stream.refuse_capturing("DeviceBuffer::uninit")?;
        Self::allocate(stream, len)
    }

    /// Allocates without asking whether the stream captures: for callers that find out by their next call.
    fn allocate(stream: &Stream, len: usize) -> Result<Self> {
        refuse_forked()?;
        let bytes = size_of_elements::<T>(len)?;
        let mut address = 0;
        if bytes > 0 {
            stream.context().deferred().reclaim();
            let entered = stream.enter()?;
            // SAFETY: one address to write; a live stream.
            unsafe { call!(stream.driver(), cuMemAllocAsync(&mut address, bytes, entered.raw())) }
                .with_bytes(bytes)?;
        }
        Ok(Self {
            address,
            len,
            home: stream.clone(),
            uses: Uses::starting_on(stream),
            _elements: PhantomData,
        })
    }

    /// Memory for `len` elements, all of whose bytes are zero.
    ///
    /// Adds [`cuMemsetD8Async`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html) to
    /// [`DeviceBuffer::uninit`]. Ordered on `stream`; uses on other streams wait for it.
    ///
    /// # Capture
    ///
    /// [`Error::Capturing`] if the stream captures.
    ///
    /// # Errors
    ///
    /// As [`DeviceBuffer::uninit`].
    pub fn zeroed(stream: &Stream, len: usize) -> Result<Self> {
        stream.refuse_capturing("DeviceBuffer::zeroed")?;
        let buffer = Self::allocate(stream, len)?;
        buffer.whole().fill(stream, 0)?;
        Ok(buffer)
    }

    /// The elements of `source` in device memory. Returns when they are there.
    ///
    /// # Capture
    ///
    /// Fails if the stream captures, and the capture with it.
    ///
    /// # Errors
    ///
    /// As [`DeviceBuffer::uninit`] and [`DeviceRange::copy_from_slice`].
    pub fn from_slice(stream: &Stream, source: &[T]) -> Result<Self> {
        // On a capturing stream the copy fails, and takes the graph that would have owned the memory with it.
        let buffer = Self::allocate(stream, source.len())?;
        buffer.copy_from_slice(stream, source)?;
        Ok(buffer)
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        // Checked when the buffer was made.
        self.len.wrapping_mul(size_of::<T>())
    }

    /// The stream that it was allocated on and is freed on.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.home
    }

    /// The context it belongs to.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.home.context()
    }

    /// Its address on the device; 0 if it has no bytes.
    ///
    /// For work that is ordered by other means than [`DeviceBuffer::on`]; the release does not know of it.
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.address
    }

    /// Says that work which reads or writes the buffer is about to be put into `stream`, and gives the address for it.
    ///
    /// `stream` waits for all earlier uses on other streams; the host waits for nothing. Hold the result until the work is
    /// enqueued.
    ///
    /// # Capture
    ///
    /// On a capturing stream only if no other stream has used the buffer; the graph does not keep it alive.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignContext`] for another driver's stream, [`Error::Capturing`] if an earlier user captures now,
    /// [`Error::WrongThread`], [`Error::Driver`], [`Error::Forked`].
    pub fn on<'b>(&'b self, stream: &'b Stream) -> Result<StreamUse<'b>> {
        self.begin(stream, Access::Write)?;
        Ok(StreamUse::new(self.address, &self.uses, stream))
    }

    /// As [`DeviceBuffer::on`], for work that only reads: readers on several streams do not wait for each other.
    ///
    /// # Errors
    ///
    /// As [`DeviceBuffer::on`].
    pub fn on_read<'b>(&'b self, stream: &'b Stream) -> Result<StreamUse<'b>> {
        self.begin(stream, Access::Read)?;
        Ok(StreamUse::new(self.address, &self.uses, stream))
    }

    #[inline]
    pub(crate) fn begin(&self, stream: &Stream, access: Access) -> Result<()> {
        if stream.driver() != self.home.driver() {
            return Err(Error::ForeignContext { what: "the stream" });
        }
        self.uses.begin(stream, access)
    }

    #[inline]
    pub(crate) fn end(&self, stream: &Stream) -> Result<()> {
        self.uses.end(stream)
    }

    /// A part of it, by element numbers.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if it reaches beyond the end or ends before it starts.
    pub fn range(&self, range: impl RangeBounds<usize>) -> Result<DeviceRange<'_, T>> {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.saturating_add(1),
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.len,
        };
        if start > end || end > self.len {
            return Err(Error::OutOfRange { range: start..end, len: self.len });
        }
        Ok(DeviceRange::new(self, start..end))
    }

    /// All of it.
    #[must_use]
    pub fn whole(&self) -> DeviceRange<'_, T> {
        DeviceRange::new(self, 0..self.len)
    }

    /// Copies `source` into it. See [`DeviceRange::copy_from_slice`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn copy_from_slice(&self, stream: &Stream, source: &[T]) -> Result<()> {
        self.whole().copy_from_slice(stream, source)
    }

    /// Copies it into `target`. See [`DeviceRange::copy_to_slice`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn copy_to_slice(&self, stream: &Stream, target: &mut [T]) -> Result<()> {
        self.whole().copy_to_slice(stream, target)
    }

    /// Its elements in host memory.
    ///
    /// # Errors
    ///
    /// As [`DeviceRange::copy_to_slice`].
    pub fn to_vec(&self, stream: &Stream) -> Result<Vec<T>> {
        // SAFETY: `DeviceCopy` makes every bit pattern a value, zero too.
        let zero = unsafe { std::mem::zeroed::<T>() };
        let mut target = vec![zero; self.len];
        self.copy_to_slice(stream, &mut target)?;
        Ok(target)
    }

    /// Frees it now, in stream order, and tells whether the driver took it.
    ///
    /// # Capture
    ///
    /// [`Error::Capturing`] if a stream that used it captures; dropping it frees it after the capture.
    ///
    /// # Errors
    ///
    /// The buffer comes back with the error.
    pub fn close(self) -> Result<(), Refused<Self>> {
        if let Err(error) = refuse_forked() {
            return Err(Refused::new(error, self));
        }
        let len = self.len;
        self.into_block().free().map_err(|(error, block)| Refused::new(error, Self::from_block(block, len)))
    }

    /// Takes the memory out, without freeing it.
    fn into_block(self) -> Block {
        let mut this = ManuallyDrop::new(self);
        let uses = this.uses.take();
        let home = &this.home;
        // SAFETY: `this` is not dropped and not used again, so its stream is moved out once; `address` and `len` are plain
        // numbers, and `uses` was emptied.
        let home = unsafe { std::ptr::read(home) };
        Block { address: this.address, home, uses }
    }

    fn from_block(block: Block, len: usize) -> Self {
        let Block { address, home, uses } = block;
        Self { address, len, home, uses: Uses::from(uses), _elements: PhantomData }
    }
}

impl<T: DeviceCopy> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if self.address == 0 || fork::forked() {
            return;
        }
        let block = Block { address: self.address, home: self.home.clone(), uses: self.uses.take() };
        if let Err((error, block)) = block.free().or_else(|(_, block)| block.free()) {
            let context = block.home.context().clone();
            match error {
                // After the capture it will be taken.
                Error::Capturing { .. } => context.deferred().push(block),
                error => context.driver().report_release_failure(&error),
            }
        }
    }
}

/// Device memory without its type: what is left of a buffer to free.
#[derive(Debug)]
pub(crate) struct Block {
    address: CUdeviceptr,
    home: Stream,
    uses: Entries,
}

impl Block {
    /// Frees the memory behind all its uses, in stream order where that is possible. On an error the memory is still there.
    pub(crate) fn free(self) -> Result<(), (Error, Self)> {
        match self.try_free() {
            Ok(()) => Ok(()),
            Err(error) => Err((error, self)),
        }
    }

    fn try_free(&self) -> Result<()> {
        if self.address == 0 {
            return Ok(());
        }
        let driver = self.home.driver();
        match self.home.enter() {
            Ok(entered) => {
                self.uses.hold_up(&self.home)?;
                // SAFETY: memory that this value owns, freed once, in an order behind every stream that used it.
                let freed = unsafe { call!(driver, cuMemFreeAsync(self.address, entered.raw())) };
                match freed {
                    // A capturing stream refuses memory from outside its graph, and the capture goes on (seen on hardware).
                    Err(_) if self.home.is_capturing()? => {
                        Err(Error::Capturing { call: "DeviceBuffer::close" })
                    }
                    freed => freed,
                }
            }
            Err(Error::WrongThread) => {
                // Another thread's default stream has no name here: wait, and free without a stream.
                if self.uses.any_capturing()? {
                    return Err(Error::Capturing { call: "DeviceBuffer::close" });
                }
                self.uses.synchronize()?;
                // SAFETY: memory that this value owns, freed once; no use of it runs any more.
                unsafe { call!(driver, cuMemFree(self.address)) }
            }
            Err(error) => Err(error),
        }
    }
}

impl<T: DeviceCopy> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceBuffer")
            .field("address", &format_args!("{:#x}", self.address))
            .field("len", &self.len)
            .field("size_bytes", &self.size_bytes())
            .field("stream", &self.home)
            .finish_non_exhaustive()
    }
}

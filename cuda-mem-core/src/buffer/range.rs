//! Parts of device buffers, and the copies that need no host memory to stay.
//!
//! # Safety
//!
//! Relies on [`crate::buffer::DeviceBuffer::range`] checking the bounds once, and on [`Stream::drain`] returning only when
//! the stream runs nothing any more: until then the borrowed slices below are borrowed.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::ops::Range;

use cuda_mem_sys::CUdeviceptr;

use super::DeviceBuffer;
use crate::element::DeviceCopy;
use crate::error::{Error, Result, WithBytes, call};
use crate::stream::Stream;
use crate::uses::Access;

/// A part of a [`DeviceBuffer`].
///
/// ```
/// use cuda_mem_core::{DeviceBuffer, Driver, Stream};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let buffer = DeviceBuffer::<u8>::zeroed(&stream, 8)?;
/// buffer.range(2..4)?.copy_from_slice(&stream, &[7, 9])?;
/// assert_eq!(buffer.to_vec(&stream)?, [0, 0, 7, 9, 0, 0, 0, 0]);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceRange<'b, T: DeviceCopy> {
    buffer: &'b DeviceBuffer<T>,
    start: usize,
    len: usize,
}

// Not derived: a derive would ask `T: Clone` of a reference.
impl<T: DeviceCopy> Clone for DeviceRange<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: DeviceCopy> Copy for DeviceRange<'_, T> {}

impl<'b, T: DeviceCopy> DeviceRange<'b, T> {
    /// The caller has checked that `range` lies in the buffer.
    pub(super) fn new(buffer: &'b DeviceBuffer<T>, range: Range<usize>) -> Self {
        Self { buffer, start: range.start, len: range.end.saturating_sub(range.start) }
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
        // No more than the buffer's, which was checked.
        self.len.wrapping_mul(size_of::<T>())
    }

    /// The buffer it is a part of.
    #[must_use]
    pub fn buffer(&self) -> &'b DeviceBuffer<T> {
        self.buffer
    }

    /// Its address on the device. See [`DeviceBuffer::as_raw`].
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        // Inside the buffer, whose end is an address too: neither step can overflow.
        self.buffer.as_raw().wrapping_add(self.start.wrapping_mul(size_of::<T>()) as CUdeviceptr)
    }

    /// Copies `source` into it, and returns when the bytes are there.
    ///
    /// Wraps [`cuMemcpyHtoDAsync` and `cuStreamSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    /// Ordered on `stream`, and waits for everything that the stream was given before: somebody may have registered the
    /// memory behind `source`, and then only a wait proves that the device reads it no more. Overlapping copies with other
    /// work takes [`crate::copy::Transfer`] or [`crate::scope`].
    ///
    /// # Capture
    ///
    /// Fails if the stream captures, and the capture with it.
    ///
    /// # Errors
    ///
    /// [`Error::LengthMismatch`], those of [`DeviceBuffer::on`], and [`Error::Driver`], also for earlier work that failed.
    pub fn copy_from_slice(&self, stream: &Stream, source: &[T]) -> Result<()> {
        // SAFETY: the source is borrowed until the drain below has returned.
        let copied = unsafe { self.upload(stream, source.as_ptr().cast::<u8>(), size_of_val(source)) };
        finish(stream, copied)
    }

    /// Copies it into `target`, and returns when the bytes are there.
    ///
    /// Wraps [`cuMemcpyDtoHAsync` and `cuStreamSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    /// Ordered on `stream`, and waits for everything that the stream was given before.
    ///
    /// # Capture
    ///
    /// Fails if the stream captures, and the capture with it.
    ///
    /// # Errors
    ///
    /// As [`DeviceRange::copy_from_slice`]. The bytes of `target` are unspecified then.
    pub fn copy_to_slice(&self, stream: &Stream, target: &mut [T]) -> Result<()> {
        let bytes = size_of_val(target);
        // SAFETY: the target is borrowed mutably until the drain below has returned, and `DeviceCopy` makes any bytes valid.
        let copied = unsafe { self.download(stream, target.as_mut_ptr().cast::<u8>(), bytes) };
        finish(stream, copied)
    }

    /// Copies the elements of `source` into it, on the device.
    ///
    /// Wraps [`cuMemcpyDtoDAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html), or
    /// `cuMemcpyPeerAsync` if the two are in different contexts. Ordered on `stream`; the host waits for nothing.
    ///
    /// # Capture
    ///
    /// [`Error::Capturing`] if the stream captures.
    ///
    /// # Errors
    ///
    /// [`Error::LengthMismatch`], those of [`DeviceBuffer::on`], [`Error::Driver`].
    pub fn copy_from(&self, stream: &Stream, source: &DeviceRange<'_, T>) -> Result<()> {
        stream.refuse_capturing("DeviceRange::copy_from")?;
        let bytes = self.expect_bytes(source.size_bytes())?;
        if bytes == 0 {
            return Ok(());
        }
        source.buffer.begin(stream, Access::Read)?;
        self.buffer.begin(stream, Access::Write)?;
        let (driver, to, from) = (stream.driver(), self.buffer.context(), source.buffer.context());
        let entered = stream.enter()?;
        let copied = if to == from {
            // SAFETY: both ranges lie in live buffers of `bytes` bytes, whose releases are ordered behind this stream.
            unsafe { call!(driver, cuMemcpyDtoDAsync(self.as_raw(), source.as_raw(), bytes, entered.raw())) }
        } else {
            let (to, from) = (to.as_raw().cast(), from.as_raw().cast());
            // SAFETY: as above, each in the context that it is named with.
            unsafe {
                call!(
                    driver,
                    cuMemcpyPeerAsync(self.as_raw(), to, source.as_raw(), from, bytes, entered.raw())
                )
            }
        };
        copied.with_bytes(bytes)?;
        source.buffer.end(stream)?;
        self.buffer.end(stream)
    }

    /// Sets each of its bytes to `value`.
    ///
    /// Wraps [`cuMemsetD8Async`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html). Ordered on `stream`; the
    /// host waits for nothing.
    ///
    /// # Capture
    ///
    /// [`Error::Capturing`] if the stream captures.
    ///
    /// # Errors
    ///
    /// Those of [`DeviceBuffer::on`], [`Error::Driver`].
    pub fn fill_bytes(&self, stream: &Stream, value: u8) -> Result<()> {
        stream.refuse_capturing("DeviceRange::fill_bytes")?;
        self.fill(stream, value)
    }

    /// Fills on a stream that is known not to capture.
    pub(super) fn fill(&self, stream: &Stream, value: u8) -> Result<()> {
        let bytes = self.size_bytes();
        if bytes == 0 {
            return Ok(());
        }
        self.buffer.begin(stream, Access::Write)?;
        let entered = stream.enter()?;
        // SAFETY: `bytes` bytes of a live buffer, whose release is ordered behind this stream.
        unsafe { call!(stream.driver(), cuMemsetD8Async(self.as_raw(), value, bytes, entered.raw())) }
            .with_bytes(bytes)?;
        self.buffer.end(stream)
    }

    /// Puts a copy from host memory into the stream.
    ///
    /// # Safety
    ///
    /// `source` must be readable for `bytes` bytes and unchanged until the stream has run the copy.
    pub(crate) unsafe fn upload(&self, stream: &Stream, source: *const u8, bytes: usize) -> Result<()> {
        if self.expect_bytes(bytes)? == 0 {
            return Ok(());
        }
        self.buffer.begin(stream, Access::Write)?;
        let entered = stream.enter()?;
        // SAFETY: the caller's promise for the source; the target lies in a live buffer of at least `bytes` bytes, whose
        // release is ordered behind this stream.
        unsafe {
            call!(stream.driver(), cuMemcpyHtoDAsync(self.as_raw(), source.cast(), bytes, entered.raw()))
        }
        .with_bytes(bytes)?;
        self.buffer.end(stream)
    }

    /// Puts a copy to host memory into the stream.
    ///
    /// # Safety
    ///
    /// `target` must be writable for `bytes` bytes, and nobody may look at them until the stream has run the copy.
    pub(crate) unsafe fn download(&self, stream: &Stream, target: *mut u8, bytes: usize) -> Result<()> {
        if self.expect_bytes(bytes)? == 0 {
            return Ok(());
        }
        self.buffer.begin(stream, Access::Read)?;
        let entered = stream.enter()?;
        // SAFETY: the caller's promise for the target; the source as in `upload`.
        unsafe {
            call!(stream.driver(), cuMemcpyDtoHAsync(target.cast(), self.as_raw(), bytes, entered.raw()))
        }
        .with_bytes(bytes)?;
        self.buffer.end(stream)
    }

    /// The size of both sides of a copy, if it is the same.
    fn expect_bytes(&self, other: usize) -> Result<usize> {
        if other == self.size_bytes() {
            Ok(other)
        } else {
            Err(Error::LengthMismatch { source_len: other, target_len: self.size_bytes() })
        }
    }
}

/// Waits for a copy of borrowed memory, whether or not enqueueing it was reported as a success.
fn finish(stream: &Stream, copied: Result<()>) -> Result<()> {
    match copied {
        Ok(()) => stream.drain(),
        // The length did not match or the stream did not take the call: nothing was enqueued, unless the failure came after.
        Err(error) => {
            if matches!(error, Error::Driver(_)) {
                // The first error is the one to tell; draining is for the memory's sake.
                let _ = stream.drain();
            }
            Err(error)
        }
    }
}

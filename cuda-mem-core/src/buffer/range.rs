//! Parts of device buffers, and the copies that need no host memory to stay.
//!
//! # Safety
//!
//! Relies on [`DeviceBuffer::range`] checking the bounds once, and on [`Stream::drain`] returning only when the stream runs
//! nothing any more that it was given before: until then the borrowed slices below are borrowed.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use cuda_mem_sys::CUdeviceptr;

use super::{DeviceBuffer, DeviceBytes, Enqueued};
use crate::driver::Relaxed;
use crate::element::DeviceCopy;
use crate::error::{Error, Result, WithBytes, call};
use crate::host::HostMemory;
use crate::stream::{Quiet, Stream};
use crate::uses::Access;

/// So much of a file is in memory at once, on its way to a device.
const PIECE: usize = 32 << 20;

/// A part of a [`DeviceBuffer`].
///
/// ```
/// use cuda_mem_core::{DeviceBuffer, Driver, Stream};
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // with a GPU: Driver::system()?
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
    /// work takes [`Transfer`](crate::Transfer) or [`scope`](crate::scope()).
    ///
    /// # Errors
    ///
    /// [`Error::LengthMismatch`], those of [`DeviceBuffer::on`], and [`Error::Driver`], also for earlier work that failed.
    pub fn copy_from_slice(&self, stream: &Stream, source: &[T]) -> Result<()> {
        let relaxed = Relaxed::enter(stream.driver())?;
        stream.refuse_capturing("DeviceRange::copy_from_slice")?;
        self.copy_from_slice_relaxed(stream, source, &relaxed)
    }

    /// Copies in the relaxed capture mode.
    pub(super) fn copy_from_slice_relaxed(
        &self,
        stream: &Stream,
        source: &[T],
        _relaxed: &Relaxed,
    ) -> Result<()> {
        // SAFETY: the source is borrowed until the copy was waited for.
        let copied = unsafe { self.upload(stream, source.as_ptr().cast::<u8>(), size_of_val(source)) };
        copied.wait(stream).or_abort("DeviceRange::copy_from_slice")
    }

    /// Copies it into `target`, and returns when the bytes are there.
    ///
    /// Wraps [`cuMemcpyDtoHAsync` and `cuStreamSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    /// Ordered on `stream`, and waits for everything that the stream was given before.
    ///
    /// # Errors
    ///
    /// As [`DeviceRange::copy_from_slice`]. The bytes of `target` are unspecified then.
    pub fn copy_to_slice(&self, stream: &Stream, target: &mut [T]) -> Result<()> {
        let _relaxed = Relaxed::enter(stream.driver())?;
        stream.refuse_capturing("DeviceRange::copy_to_slice")?;
        let bytes = size_of_val(target);
        // SAFETY: the target is borrowed mutably until the copy was waited for, and `DeviceCopy` makes any bytes valid.
        let copied = unsafe { self.download(stream, target.as_mut_ptr().cast::<u8>(), bytes) };
        copied.wait(stream).or_abort("DeviceRange::copy_to_slice")
    }

    /// Copies the elements of `source` into it, on the device. The two must not overlap.
    ///
    /// Wraps [`cuMemcpyDtoDAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html), or
    /// `cuMemcpyPeerAsync` if the two are in different contexts. Ordered on `stream`; the host waits for nothing.
    ///
    /// # Errors
    ///
    /// [`Error::LengthMismatch`], [`Error::Overlapping`], those of [`DeviceBuffer::on`], [`Error::Driver`].
    pub fn copy_from(&self, stream: &Stream, source: &DeviceRange<'_, T>) -> Result<()> {
        const CALL: &str = "DeviceRange::copy_from";
        stream.refuse_capturing(CALL)?;
        let bytes = self.size_bytes();
        expect_equal(source.size_bytes(), bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        if std::ptr::eq(self.buffer, source.buffer) && self.start.abs_diff(source.start) < self.len {
            return Err(Error::Overlapping);
        }
        let read = source.buffer.block().begin(stream, Access::Read)?;
        let written = self.buffer.block().begin(stream, Access::Write)?;
        let (driver, to, from) = (stream.driver(), self.buffer.context(), source.buffer.context());
        let entered = stream.enter_context()?;
        stream.refuse_capturing(CALL)?;
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
        read.end()?;
        written.end()?;
        stream.spoil_capture(CALL)
    }

    /// Sets each of its bytes to `value`.
    ///
    /// Wraps [`cuMemsetD8Async`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html). Ordered on `stream`; the
    /// host waits for nothing.
    ///
    /// # Errors
    ///
    /// Those of [`DeviceBuffer::on`], [`Error::Driver`].
    pub fn fill_bytes(&self, stream: &Stream, value: u8) -> Result<()> {
        const CALL: &str = "DeviceRange::fill_bytes";
        stream.refuse_capturing(CALL)?;
        let bytes = self.size_bytes();
        if bytes == 0 {
            return Ok(());
        }
        let written = self.buffer.block().begin(stream, Access::Write)?;
        let entered = stream.enter_context()?;
        stream.refuse_capturing(CALL)?;
        // SAFETY: `bytes` bytes of a live buffer, whose release is ordered behind this stream.
        unsafe { call!(stream.driver(), cuMemsetD8Async(self.as_raw(), value, bytes, entered.raw())) }
            .with_bytes(bytes)?;
        written.end()?;
        stream.spoil_capture(CALL)
    }

    /// Puts a copy of `bytes` bytes of any host memory, from the byte `offset` on, into the stream.
    ///
    /// # Safety
    ///
    /// The bytes must lie in `source`, which must stay alive and unchanged until the stream has run the copy.
    pub(crate) unsafe fn upload_from<M: HostMemory>(
        &self,
        stream: &Stream,
        source: &M,
        offset: usize,
        bytes: usize,
    ) -> Enqueued {
        if let Err(error) = expect_equal(bytes, self.size_bytes()) {
            return Enqueued::Nothing(error);
        }
        match source.file() {
            Some((file, below)) if bytes < below => match self.upload_file(stream, file, offset) {
                Ok(()) => Enqueued::Copy,
                Err(error) => Enqueued::Nothing(error),
            },
            _ => {
                // SAFETY: the caller's promise: the offset lies in the memory or is its end.
                let start = unsafe { source.as_ptr().add(offset) };
                // SAFETY: the caller's promise; `HostMemory` allows a device to read the bytes at any time.
                unsafe { self.upload(stream, start, bytes) }
            }
        }
    }

    /// Copies a part of a file here, in pieces that are read and waited for one after the other.
    fn upload_file(&self, stream: &Stream, file: &File, offset: usize) -> Result<()> {
        // The waits would fail captures of others.
        let _relaxed = Relaxed::enter(stream.driver())?;
        let target = self.bytes();
        let mut memory = vec![0; target.len().min(PIECE)];
        for start in (0..target.len()).step_by(PIECE) {
            let part = target.part(start..start.saturating_add(PIECE));
            memory.truncate(part.len());
            let at = (offset as u64).saturating_add(start as u64);
            file.read_exact_at(&mut memory, at)
                .map_err(|error| Error::Io { call: "pread", source: error.into() })?;
            // SAFETY: as many bytes as the part has, which live until the copy was waited for.
            match unsafe { part.upload(stream, memory.as_ptr()) }.wait(stream) {
                Quiet::Yes(copied) => copied?,
                Quiet::Unknown(error) => {
                    // The device may read it still.
                    std::mem::forget(memory);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Puts a copy from host memory into the stream.
    ///
    /// # Safety
    ///
    /// As [`DeviceBytes::upload`].
    pub(crate) unsafe fn upload(&self, stream: &Stream, source: *const u8, bytes: usize) -> Enqueued {
        if let Err(error) = expect_equal(bytes, self.size_bytes()) {
            return Enqueued::Nothing(error);
        }
        // SAFETY: the caller's promise, for as many bytes.
        unsafe { self.bytes().upload(stream, source) }
    }

    /// Puts a copy to host memory into the stream.
    ///
    /// # Safety
    ///
    /// As [`DeviceBytes::download`].
    pub(crate) unsafe fn download(&self, stream: &Stream, target: *mut u8, bytes: usize) -> Enqueued {
        if let Err(error) = expect_equal(self.size_bytes(), bytes) {
            return Enqueued::Nothing(error);
        }
        // SAFETY: the caller's promise, for as many bytes.
        unsafe { self.bytes().download(stream, target) }
    }

    /// The same part of the buffer, whatever its elements are.
    pub(crate) fn bytes(&self) -> DeviceBytes<'b> {
        DeviceBytes::new(self.buffer.block(), self.as_raw(), self.size_bytes())
    }
}

pub(crate) fn expect_equal(source_len: usize, target_len: usize) -> Result<()> {
    if source_len == target_len { Ok(()) } else { Err(Error::LengthMismatch { source_len, target_len }) }
}

//! Parts of the memory of devices, and the copies that need no host memory to stay.
//!
//! # Safety
//!
//! Relies on [`Borrowed::range`] and [`DeviceRange::range`] checking the bounds once, and on [`Stream::drain`] returning only when the stream runs
//! nothing any more that it was given before: until then the borrowed slices below are borrowed.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::fs::File;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::{Bound, RangeBounds};
use std::os::unix::fs::FileExt;

use cuda_mem_sys::{CUdeviceptr, CUresult};

use super::borrowed::explain;
use super::{Borrowed, Enqueued, UsedElsewhere};
use crate::driver::{Context, Driver, Relaxed};
use crate::element::{DeviceCopy, size_of_elements};
use crate::error::{Error, Result, call};
use crate::host::HostMemory;
use crate::stream::{Quiet, Stream};
use crate::uses::{Access, Uses};

/// So much of a file is in memory at once, on its way to a device.
const PIECE: usize = 32 << 20;

/// A part of the memory of a device: of a [`DeviceBuffer`](super::DeviceBuffer), or of whatever else has such memory and gives it as a range of elements
/// (`as_range`). It is borrowed, and copied on any stream, behind all that used it.
///
/// ```
/// use cuda_mem_core::{DeviceBuffer, Driver, Stream};
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
/// let stream = Stream::new(&context)?;
/// let buffer = DeviceBuffer::<u8>::zeroed(&stream, 8)?;
/// buffer.range(2..4)?.copy_from_slice(&stream, &[7, 9])?;
/// assert_eq!(buffer.to_vec(&stream)?, [0, 0, 7, 9, 0, 0, 0, 0]);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceRange<'b, T: DeviceCopy> {
    memory: Borrowed<'b>,
    address: CUdeviceptr,
    len: usize,
    _elements: PhantomData<T>,
}

// Not derived: a derive would ask `T: Clone` of a reference.
impl<T: DeviceCopy> Clone for DeviceRange<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: DeviceCopy> Copy for DeviceRange<'_, T> {}

impl<'b, T: DeviceCopy> DeviceRange<'b, T> {
    /// The caller has checked that the elements lie in the memory, and are aligned.
    pub(super) fn new(memory: Borrowed<'b>, address: CUdeviceptr, len: usize) -> Self {
        Self { memory, address, len, _elements: PhantomData }
    }

    /// Memory of another library: `len` elements from an address on, which was allocated in `context`.
    ///
    /// ```
    /// use cuda_mem_core::{DeviceBuffer, DeviceRange, Driver, Stream, Uses};
    ///
    /// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
    /// let stream = Stream::new(&context)?;
    /// let theirs = DeviceBuffer::<u32>::zeroed(&stream, 100)?; // some other library's
    /// stream.synchronize()?;
    /// let uses = Uses::new();
    /// // SAFETY: the buffer stays, and no other code uses it before the uses are waited for.
    /// let range = unsafe { DeviceRange::<u32>::from_raw_parts(&uses, &context, theirs.as_raw(), 100) }?;
    /// range.copy_from_slice(&stream, &[7; 100])?;
    /// uses.wait()?; // from here on it may be freed
    /// # Ok::<(), cuda_mem_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Misaligned`]; [`Error::TooLarge`] for more bytes than an address space has.
    ///
    /// # Safety
    ///
    /// The memory is a device's, and stays allocated while `uses` is borrowed. Its free, and each other use, are ordered behind `uses`
    /// ([`Uses::order`], [`Uses::wait`]), and earlier uses that still run are in there.
    pub unsafe fn from_raw_parts(
        uses: &'b Uses,
        context: &'b Context,
        address: CUdeviceptr,
        len: usize,
    ) -> Result<Self> {
        Borrowed::of(uses, context).range(address, size_of_elements::<T>(len)?)
    }

    /// As [`from_raw_parts`](Self::from_raw_parts), for memory that is mapped or registered: it belongs to no context.
    ///
    /// # Safety
    ///
    /// As there, for every device of the driver that a copy of it is made on.
    pub unsafe fn from_mapped(
        uses: &'b Uses,
        driver: Driver,
        address: CUdeviceptr,
        len: usize,
    ) -> Result<Self> {
        let memory = Borrowed { uses, driver, context: None, behind: None };
        memory.range(address, size_of_elements::<T>(len)?)
    }

    /// The same memory, whose copies wait for uses elsewhere too: for these in place of those that it waited for before.
    #[must_use]
    pub fn behind(mut self, elsewhere: &'b dyn UsedElsewhere) -> Self {
        self.memory.behind = Some(elsewhere);
        self
    }

    /// The same bytes as other elements, as many as fit.
    ///
    /// # Errors
    ///
    /// [`Error::Misaligned`].
    pub fn cast<U: DeviceCopy>(&self) -> Result<DeviceRange<'b, U>> {
        self.memory.range(self.address, self.size_bytes())
    }

    /// A part of it, by element numbers. Makes no driver call.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`] if it reaches beyond the end or ends before it starts.
    pub fn range(&self, range: impl RangeBounds<usize>) -> Result<Self> {
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
        // Inside the memory, whose end is an address too: neither step can overflow.
        let address = self.address.wrapping_add(start.wrapping_mul(size_of::<T>()) as CUdeviceptr);
        Ok(Self { address, len: end.saturating_sub(start), ..*self })
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
        // No more than the memory's, which was checked.
        self.len.wrapping_mul(size_of::<T>())
    }

    /// Its address on the device. See [`DeviceBuffer::as_raw`](super::DeviceBuffer::as_raw).
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.address
    }

    /// Copies `source` into it, and returns when the bytes are there.
    ///
    /// Wraps [`cuMemcpyAsync` and `cuStreamSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    /// Ordered on `stream`, and waits for everything that the stream was given before: other code may have registered the
    /// memory behind `source`, and then only a wait proves that the device reads it no more. For a copy that overlaps other
    /// work use [`Transfer`](crate::Transfer) or [`scope`](crate::scope()).
    ///
    /// # Errors
    ///
    /// [`Error::LengthMismatch`], those of [`DeviceBuffer::on`](super::DeviceBuffer::on).
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
    /// Wraps [`cuMemcpyAsync` and `cuStreamSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
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
    /// Wraps [`cuMemcpyAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html), or
    /// `cuMemcpyPeerAsync` if the two are in different contexts and of no pool of the host. Ordered on `stream`; the host waits for nothing.
    ///
    /// # Errors
    ///
    /// [`Error::LengthMismatch`], [`Error::Overlapping`], those of [`DeviceBuffer::on`](super::DeviceBuffer::on).
    pub fn copy_from(&self, stream: &Stream, source: &DeviceRange<'_, T>) -> Result<()> {
        const CALL: &str = "DeviceRange::copy_from";
        stream.refuse_capturing(CALL)?;
        let bytes = self.size_bytes();
        expect_equal(source.size_bytes(), bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        if self.memory.driver == source.memory.driver && self.address.abs_diff(source.address) < bytes as u64
        {
            return Err(Error::Overlapping);
        }
        let read = source.memory.begin(stream, Access::Read)?;
        let written = self.memory.begin(stream, Access::Write)?;
        let driver = stream.driver();
        let contexts = self.memory.context.zip(source.memory.context).filter(|(to, from)| to != from);
        let entered = stream.enter_context()?;
        stream.refuse_capturing(CALL)?;
        let (to, from, on) = (self.as_raw(), source.as_raw(), entered.raw());
        // A copy between two contexts needs no device to reach the other's memory.
        let reached: &[_] = if contexts.is_none() { &[to, from] } else { &[] };
        let between = contexts.map(|(there, here)| {
            let (there, here) = (there.as_raw().cast(), here.as_raw().cast());
            // SAFETY: both ranges lie in live memory of `bytes` bytes and the contexts named; their releases are ordered behind this stream.
            unsafe { call!(driver, cuMemcpyPeerAsync(to, there, from, here, bytes, on)) }
        });
        let copied = match between {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) if error.code() != Some(CUresult::CUDA_ERROR_INVALID_VALUE) => Err(error),
            // So memory of a pool of the host is refused there (seen on hardware).
            // SAFETY: as above.
            _ => unsafe { call!(driver, cuMemcpyAsync(to, from, bytes, on)) },
        };
        copied.map_err(|error| explain(error, bytes, stream, reached))?;
        read.end()?;
        written.end()?;
        stream.spoil_capture(CALL)
    }

    /// Sets each of its bytes to `value`.
    ///
    /// Wraps [`cuMemsetD8Async`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html). Ordered on `stream`; the
    /// host waits for nothing.
    /// Errors: those of [`DeviceBuffer::on`](super::DeviceBuffer::on).
    pub fn fill_bytes(&self, stream: &Stream, value: u8) -> Result<()> {
        const CALL: &str = "DeviceRange::fill_bytes";
        stream.refuse_capturing(CALL)?;
        let bytes = self.size_bytes();
        if bytes == 0 {
            return Ok(());
        }
        let written = self.memory.begin(stream, Access::Write)?;
        let entered = stream.enter_context()?;
        stream.refuse_capturing(CALL)?;
        // SAFETY: `bytes` bytes of a live buffer, whose release is ordered behind this stream.
        unsafe { call!(stream.driver(), cuMemsetD8Async(self.as_raw(), value, bytes, entered.raw())) }
            .map_err(|error| explain(error, bytes, stream, &[self.as_raw()]))?;
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
            let part = target.range(start..start.saturating_add(PIECE).min(target.len()))?;
            memory.truncate(part.len());
            let at = (offset as u64).saturating_add(start as u64);
            file.read_exact_at(&mut memory, at)
                .map_err(|error| Error::Io { call: "pread", source: error.into() })?;
            // SAFETY: as many bytes as the part has, which live until the copy was waited for.
            match unsafe { part.upload(stream, memory.as_ptr(), part.len()) }.wait(stream) {
                Quiet::Yes(copied) => copied?,
                Quiet::Unknown(error) => {
                    // The device may read it still.
                    let _ = ManuallyDrop::new(memory);
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
    /// `source` must be readable for so many bytes, and unchanged until the stream has run the copy.
    pub(crate) unsafe fn upload(&self, stream: &Stream, source: *const u8, bytes: usize) -> Enqueued {
        if let Err(error) = expect_equal(bytes, self.size_bytes()) {
            return Enqueued::Nothing(error);
        }
        let copy = (self.address, source as CUdeviceptr, bytes);
        // SAFETY: the caller's promise for the source; the target lies in live memory, whose release is ordered behind this stream.
        unsafe { self.memory.enqueue(stream, Access::Write, copy) }
    }

    /// Puts a copy to host memory into the stream.
    ///
    /// # Safety
    ///
    /// `target` must be writable for so many bytes, and nobody may look at them until the stream has run the copy.
    pub(crate) unsafe fn download(&self, stream: &Stream, target: *mut u8, bytes: usize) -> Enqueued {
        if let Err(error) = expect_equal(self.size_bytes(), bytes) {
            return Enqueued::Nothing(error);
        }
        let copy = (target as CUdeviceptr, self.address, bytes);
        // SAFETY: the caller's promise for the target; the source as in `upload`.
        unsafe { self.memory.enqueue(stream, Access::Read, copy) }
    }

    /// The same part of the memory, whatever its elements are.
    pub(crate) fn bytes(&self) -> DeviceRange<'b, u8> {
        DeviceRange::new(self.memory, self.address, self.size_bytes())
    }
}

pub(crate) fn expect_equal(source_len: usize, target_len: usize) -> Result<()> {
    if source_len == target_len { Ok(()) } else { Err(Error::LengthMismatch { source_len, target_len }) }
}

//! Copies that own the host memory until they are done.
//!
//! # Safety
//!
//! Relies on [`HostMemory`] for where the bytes are. The memory stays in the [`Transfer`] until its stream has passed the
//! copy; forgotten, a transfer leaks the memory and never frees it.

#![allow(unsafe_code, reason = "puts copies of owned memory into streams")]

use std::fmt;
use std::mem::ManuallyDrop;

use crate::buffer::DeviceRange;
use crate::element::DeviceCopy;
use crate::error::{Error, Refused, Result};
use crate::event::Event;
use crate::fork;
use crate::host::{HostElements, HostMemory};
use crate::stream::Stream;

/// A copy under way between host memory that it owns and device memory.
///
/// The host does not wait until [`Transfer::wait`]. From pinned or registered memory the copy runs beside everything else;
/// from pageable memory the driver stages it first.
///
/// Dropped early, it waits. The device side is free to be used on any stream: later uses are ordered behind the copy.
///
/// ```
/// use cuda_mem_core::{DeviceBuffer, Driver, PinnedBuffer, Stream, Transfer, host::PinnedFlags};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let pinned = PinnedBuffer::<u32>::zeroed(&context, 1024, PinnedFlags::default())?;
/// let device = DeviceBuffer::<u32>::uninit(&stream, 1024)?;
/// let upload = Transfer::upload(&stream, pinned, &device.whole())?;
/// let pinned = upload.wait()?;
/// assert_eq!(pinned.len(), 1024);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[must_use = "dropped, it waits for the copy"]
pub struct Transfer<M: HostMemory> {
    memory: ManuallyDrop<M>,
    stream: Stream,
    /// Taken by [`Transfer::wait`].
    done: Option<Event>,
}

impl<M: HostMemory> Transfer<M> {
    /// Copies all bytes of `source` to `target`, which must have as many.
    ///
    /// Wraps [`cuMemcpyHtoDAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html). Ordered on `stream`.
    ///
    /// # Capture
    ///
    /// [`Error::Capturing`] if the stream captures: a graph would keep nothing alive.
    ///
    /// # Errors
    ///
    /// The memory comes back with the error: [`Error::LengthMismatch`], those of
    /// [`DeviceBuffer::on`](crate::DeviceBuffer::on), [`Error::Driver`].
    pub fn upload<T: DeviceCopy>(
        stream: &Stream,
        source: M,
        target: &DeviceRange<'_, T>,
    ) -> Result<Self, Refused<M>> {
        Self::start(stream, source, "Transfer::upload", |source| {
            let (address, bytes) = (source.as_ptr(), source.byte_len());
            // SAFETY: the source stays in the transfer until the stream has passed the copy.
            unsafe { target.upload(stream, address, bytes) }
        })
    }

    /// Whether the copy is done.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], also for work of the stream that failed; [`Error::Forked`].
    pub fn is_done(&self) -> Result<bool> {
        self.done.as_ref().map_or(Ok(true), Event::is_complete)
    }

    /// Waits until the copy is done, and gives the memory back. Blocks the calling thread.
    ///
    /// # Errors
    ///
    /// The memory comes back with the error; no copy runs any more then. [`Error::Driver`], also for work of the stream that
    /// failed before.
    pub fn wait(mut self) -> Result<M, Refused<M>> {
        let waited = self.finish();
        // SAFETY: `finish` has left no copy under way and nothing to wait for in `drop`, which does not touch the memory
        // then: it is taken out once.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        match waited {
            Ok(()) => Ok(memory),
            Err(error) => Err(Refused::new(error, memory)),
        }
    }

    fn start(
        stream: &Stream,
        mut memory: M,
        call: &'static str,
        enqueue: impl FnOnce(&mut M) -> Result<()>,
    ) -> Result<Self, Refused<M>> {
        let event = match stream.refuse_capturing(call).and_then(|()| Event::pooled(stream.context())) {
            Ok(event) => event,
            Err(error) => return Err(Refused::new(error, memory)),
        };
        if let Err(error) = enqueue(&mut memory).and_then(|()| stream.record(&event)) {
            // The copy may be under way: the failure may have come after it.
            if matches!(error, Error::Driver(_)) {
                // The first error is the one to tell; draining is for the memory's sake.
                let _ = stream.drain();
            }
            return Err(Refused::new(error, memory));
        }
        Ok(Self { memory: ManuallyDrop::new(memory), stream: stream.clone(), done: Some(event) })
    }

    /// Leaves no copy under way.
    fn finish(&mut self) -> Result<()> {
        match self.done.take() {
            // A failed wait for the point is no proof: then the whole stream is drained.
            Some(event) => event.synchronize().or_else(|error| self.stream.drain().and(Err(error))),
            None => Ok(()),
        }
    }
}

impl<M: HostElements> Transfer<M> {
    /// Copies all of `source` to `target`, which must have as many bytes.
    ///
    /// Wraps [`cuMemcpyDtoHAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html). Ordered on `stream`.
    ///
    /// # Capture
    ///
    /// As [`Transfer::upload`].
    ///
    /// # Errors
    ///
    /// As [`Transfer::upload`]; and [`Error::ReadOnly`] if the target may not be written.
    pub fn download<T: DeviceCopy>(
        stream: &Stream,
        source: &DeviceRange<'_, T>,
        target: M,
    ) -> Result<Self, Refused<M>> {
        if !target.is_writable() {
            return Err(Refused::new(Error::ReadOnly, target));
        }
        Self::start(stream, target, "Transfer::download", |target| {
            let (address, bytes) = (target.as_mut_ptr().cast::<u8>(), target.byte_len());
            // SAFETY: the target stays in the transfer, out of everybody's sight, until the stream has passed the copy; its
            // elements take any bytes.
            unsafe { source.download(stream, address, bytes) }
        })
    }
}

impl<M: HostMemory> Drop for Transfer<M> {
    fn drop(&mut self) {
        if self.done.is_none() {
            // `wait` took the memory.
            return;
        }
        if !fork::forked()
            && let Err(error) = self.finish()
        {
            self.stream.driver().report_release_failure(&error);
        }
        // SAFETY: dropped once, when no copy uses it any more; in a forked child none ever did.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
    }
}

impl<M: HostMemory> fmt::Debug for Transfer<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("bytes", &self.memory.byte_len())
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

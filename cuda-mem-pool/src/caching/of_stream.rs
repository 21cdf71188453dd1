//! Allocations for one stream, whose heap is looked up once.

use std::fmt;
use std::marker::PhantomData;

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{Stream, StreamId};

use super::allocator::CachingAllocator;
use super::shared::{Shared, refuse_forked};
use super::slot::StreamSlot;
use crate::error::Result;

/// An allocator for work of one stream: for whoever allocates on the same few streams all the time, and remembers this.
///
/// It stays in its thread: the default stream of a thread ends with it, and what belonged to that serves another stream then.
///
/// ```
/// use cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
/// let on_stream = allocator.of_stream(&stream)?;
/// let address = on_stream.allocate_by_address(1000)?;
/// // SAFETY: nothing uses it.
/// unsafe { allocator.free_by_address(address) }?;
/// assert_eq!(on_stream.allocate_by_address(900)?, address);
/// # unsafe { allocator.free_by_address(address) }?;
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct StreamAllocator<'a> {
    shared: &'a Shared,
    slot: &'a StreamSlot,
    stream: StreamId,
    /// Another thread could use it while the stream ends.
    _here: PhantomData<*const ()>,
}

impl CachingAllocator {
    /// This allocator for work of a stream.
    ///
    /// # Errors
    ///
    /// [`Error::Core`](crate::Error::Core) if it is a stream of another context, or another thread's default stream;
    /// [`Error::TooManyStreams`](crate::Error::TooManyStreams).
    pub fn of_stream(&self, stream: &Stream) -> Result<StreamAllocator<'_>> {
        refuse_forked()?;
        let shared = self.shared();
        let slot = shared.slot(stream)?;
        Ok(StreamAllocator { shared, slot, stream: stream.id(), _here: PhantomData })
    }
}

impl<'a> StreamAllocator<'a> {
    /// As [`CachingAllocator::allocate_by_address`] for the stream.
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// As there; [`Error::StreamEnded`](crate::Error::StreamEnded).
    #[inline]
    pub fn allocate_by_address(&self, bytes: usize) -> Result<CUdeviceptr> {
        self.shared.allocate_in(self.slot, self.stream, bytes)
    }

    /// The stream.
    #[must_use]
    pub fn stream(&self) -> StreamId {
        self.stream
    }
}

impl fmt::Debug for StreamAllocator<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamAllocator").field("stream", &self.stream()).finish_non_exhaustive()
    }
}

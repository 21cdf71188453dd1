//! Where a resource works when it is told no stream.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{Context, Stream};

use crate::error::{Error, Result};

/// A resource's context, its internal stream, and the streams of what was allocated by address.
///
/// ```
/// use cuda_mem_core::Driver;
/// use cuda_mem_pool::{DeviceMemoryResource, MemoryResource};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let resource = DeviceMemoryResource::new(&driver.device(0)?.primary_context()?, None)?;
/// let block = resource.allocate(4096, None)?;
/// assert_eq!(block.stream(), resource.resource_context().stream()?);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Debug)]
pub struct ResourceContext {
    context: Context,
    /// Made when it is first needed.
    stream: OnceLock<Stream>,
    /// The stream of each allocation whose receiver keeps nothing but its address.
    streams: Mutex<HashMap<CUdeviceptr, Stream>>,
}

impl ResourceContext {
    /// For a resource that works in `context`.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self { context: context.clone(), stream: OnceLock::new(), streams: Mutex::default() }
    }

    /// The context.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The internal stream, on which allocations are ordered that name none. It is made at the first call, by [`Stream::new`].
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// Those of [`Stream::new`], at the first call.
    pub fn stream(&self) -> Result<&Stream> {
        if let Some(stream) = self.stream.get() {
            return Ok(stream);
        }
        let stream = Stream::new(&self.context)?;
        // Of two threads that come first at once, one stream is dropped again.
        Ok(self.stream.get_or_init(|| stream))
    }

    /// Remembers the stream of an allocation.
    pub(crate) fn remember(&self, address: CUdeviceptr, stream: &Stream) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let replaced = streams.insert(address, stream.clone());
        drop(streams);
        // Outside the lock: the last handle to a stream may go here.
        drop(replaced);
    }

    /// Takes out the stream of an allocation.
    pub(crate) fn recall(&self, address: CUdeviceptr) -> Result<Stream> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.remove(&address).ok_or(Error::UnknownAddress { address })
    }
}

//! Another try after a failed allocation.
//!
//! # Safety
//!
//! Hands memory of the upstream through as it is.

#![allow(unsafe_code, reason = "implements the unsafe traits of resources")]

use std::alloc::Layout;
use std::fmt;
use std::sync::Arc;

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{MemorySource, Stream};

use super::adaptor;
use crate::error::{Error, Result};
use crate::resource::{MemoryResource, RawResource, ResourceContext};

type Callback = dyn Fn(usize, &Error) -> bool + Send + Sync;

/// Asks the program when an allocation fails, and tries again as long as it says so: it may have freed memory meanwhile.
///
/// ```
/// use std::sync::Mutex;
///
/// use cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::{DeviceMemoryResource, FailureCallbackAdaptor, LimitingAdaptor, MemoryResource};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let limited = LimitingAdaptor::new(DeviceMemoryResource::new(&context, None)?, 10_000);
/// let cached = Mutex::new(Some(limited.allocate(8_000, &stream)?));
/// let resource = FailureCallbackAdaptor::new(limited, move |_bytes, error| {
///     // Once: the second time there is nothing left to free.
///     error.is_out_of_memory() && cached.lock().is_ok_and(|mut cached| cached.take().is_some())
/// });
/// assert_eq!(resource.allocate(8_000, &stream)?.len(), 8_000);
/// assert!(resource.allocate(20_000, &stream).is_err());
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Clone)]
pub struct FailureCallbackAdaptor<R> {
    upstream: R,
    inner: Arc<Inner>,
}

struct Inner {
    upstream: Arc<dyn RawResource>,
    callback: Box<Callback>,
}

impl<R: MemoryResource> FailureCallbackAdaptor<R> {
    /// Memory of `upstream`. When it has none, `callback` gets the bytes that were asked for and the error, and says whether
    /// to try again.
    ///
    /// It is asked about every error, in the thread that allocates, with no lock held: it may use the resource itself, or
    /// panic. It has to say no at some point: an error that trying again cannot help, such as [`Error::Alignment`], comes back
    /// each time.
    #[must_use]
    pub fn new(upstream: R, callback: impl Fn(usize, &Error) -> bool + Send + Sync + 'static) -> Self {
        let inner = Inner { upstream: upstream.raw(), callback: Box::new(callback) };
        Self { upstream, inner: Arc::new(inner) }
    }
}

adaptor!(FailureCallbackAdaptor);

// SAFETY: the memory is the upstream's, handed through.
unsafe impl MemorySource for Inner {
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem_core::Result<()> {
        // SAFETY: the caller's promise; what came from here came from the upstream.
        unsafe { self.upstream.deallocate(address, layout, stream) }
    }
}

// SAFETY: the memory is the upstream's, handed through.
unsafe impl RawResource for Inner {
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        loop {
            match self.upstream.allocate(layout, stream) {
                Err(error) if (self.callback)(layout.size(), &error) => {}
                result => return result,
            }
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("upstream", &self.upstream).finish_non_exhaustive()
    }
}

//! Who hears of the driver's calls that an allocator makes.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cuda_mem_core::{StreamId, catch_panic};

/// A call of the driver that an allocator made, with its arguments: addresses, handles of memory and events, sizes in bytes.
/// [`CallObserver`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are the call's arguments")]
pub enum DriverCall {
    /// `cuMemAddressReserve`.
    Reserve { address: u64, bytes: u64 },
    /// `cuMemCreate`; no memory if there was not enough.
    Create { memory: Option<u64>, bytes: u64 },
    /// `cuMemMap` of a whole handle.
    Map { address: u64, memory: u64, bytes: u64 },
    /// `cuMemSetAccess` over a mapping, or several one behind the other.
    SetAccess { address: u64, bytes: u64 },
    /// `cuMemUnmap` of a whole mapping, or of several one behind the other.
    Unmap { address: u64, bytes: u64 },
    /// `cuMemRelease`.
    Release { memory: u64, bytes: u64 },
    /// `cuEventRecord`; no event if the allocator did not make it.
    Record { stream: StreamId, event: Option<u64> },
    /// `cuEventQuery`.
    Query,
    /// `cuStreamWaitEvent`: a stream waits for another; no event if that was recorded just before.
    StreamWait { stream: StreamId, of: StreamId, event: Option<u64> },
}

/// Hears of each call of the driver that an allocator makes for memory, mappings and order, right after it returned.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use std::time::Duration;
///
/// use cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::MemoryResource;
/// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions, CallObserver, DriverCall};
///
/// #[derive(Default)]
/// struct Created(Mutex<u64>);
///
/// impl CallObserver for Created {
///     fn called(&self, call: &DriverCall, _took: Duration) {
///         if let (DriverCall::Create { memory: Some(_), bytes }, Ok(mut sum)) = (call, self.0.lock()) {
///             *sum += bytes;
///         }
///     }
/// }
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let created = Arc::new(Created::default());
/// let allocator = CachingAllocator::observed(&context, &CachingOptions::default(), created.clone())?;
/// drop(allocator.allocate(100_000_000, &Stream::new(&context)?)?);
/// assert_eq!(created.0.lock().map(|sum| *sum).ok(), Some(allocator.reserved_bytes() as u64));
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
pub trait CallObserver: Send + Sync {
    /// A call was made, which took so long. The allocator's locks are held: it must not be called from here. A panic ends here, and the
    /// allocator goes on.
    fn called(&self, call: &DriverCall, took: Duration);
}

/// The observer, if there is one. Without one no clock is read.
#[derive(Clone, Default)]
pub(super) struct Observer(pub(super) Option<Arc<dyn CallObserver>>);

impl Observer {
    /// Makes a call; one that fails is not told.
    pub(super) fn watch<R, E>(
        &self,
        call: impl FnOnce() -> Result<R, E>,
        told: impl FnOnce(&R) -> DriverCall,
    ) -> Result<R, E> {
        self.watch_all(call, |result| vec![told(result)])
    }

    /// Does what makes several calls, which share its time.
    pub(super) fn watch_all<R, E>(
        &self,
        calls: impl FnOnce() -> Result<R, E>,
        told: impl FnOnce(&R) -> Vec<DriverCall>,
    ) -> Result<R, E> {
        let Some(observer) = &self.0 else { return calls() };
        let started = Instant::now();
        let result = calls()?;
        let took = started.elapsed();
        let told = told(&result);
        let each = took / u32::try_from(told.len()).unwrap_or(u32::MAX).max(1);
        for call in &told {
            // The books are yet to be told of what the driver has done.
            let _ = catch_panic(|| observer.called(call, each));
        }
        Ok(result)
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observer").field(&self.0.is_some()).finish()
    }
}

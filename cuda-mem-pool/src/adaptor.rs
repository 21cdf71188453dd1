//! [`TrackingAdaptor`], a resource over another resource: observes each allocation, and their sums and peaks.
//!
//! It holds no lock while its upstream works: an allocation may release what waited for the end of a capture, which comes back
//! through the same adaptor.
//!
//! # Safety
//!
//! Hands memory of the upstream through as it is.

#![allow(unsafe_code, reason = "implements the unsafe traits of resources")]

use std::alloc::Layout;
use std::backtrace::Backtrace;
use std::sync::Arc;

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{MemorySource, Result as CoreResult, Stream, StreamId, forked};

use crate::error::Result;
use crate::primitive::{Mutex, lock};
use crate::resource::{ByAddress, MemoryResource, RawResource, ResourceContext, equal_handles};
use crate::statistics::Stat;

/// Remembers each allocation until it is freed: its size, its stream and, on request, the calls that led to it. Refuses a free of
/// something that is not allocated, or with another size. Counts them.
///
/// An allocation counts when the upstream has made it, a free when the upstream has taken it: what waits for the end of a
/// capture is still allocated. Allocations of no bytes do not count.
///
/// ```
/// use cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::{DeviceMemoryResource, MemoryResource, TrackingAdaptor};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let resource = TrackingAdaptor::new(DeviceMemoryResource::new(&context, None)?, false);
/// let block = resource.allocate(1000, &stream)?;
/// let out = resource.outstanding_allocations();
/// assert_eq!((out.len(), out[0].address, out[0].bytes), (1, block.address(), 1000));
/// block.close().map_err(|refused| refused.error)?;
/// assert!(resource.outstanding_allocations().is_empty());
/// assert_eq!(resource.bytes().to_string(), "0 now, 1000 at most, 1000 allocated, 1000 freed");
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Clone)]
pub struct TrackingAdaptor<R> {
    upstream: R,
    inner: Arc<Tracker>,
}

#[derive(Debug)]
struct Tracker {
    upstream: Arc<dyn RawResource>,
    capture_backtraces: bool,
    live: ByAddress<(StreamId, Option<Arc<Backtrace>>)>,
    /// Bytes as they were asked for, and allocations.
    counted: Mutex<[Stat; 2]>,
}

/// An allocation that has not been freed. [`TrackingAdaptor`] has an example.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct OutstandingAllocation {
    /// Where it is.
    pub address: CUdeviceptr,
    /// Its size in bytes, as it was asked for.
    pub bytes: usize,
    /// The stream that it was allocated on.
    pub stream: StreamId,
    /// The calls that led to it, if they are captured.
    pub backtrace: Option<Arc<Backtrace>>,
}

impl<R: MemoryResource> TrackingAdaptor<R> {
    /// Remembers the memory of `upstream` that is allocated through the adaptor. Backtraces cost tens of microseconds for each
    /// allocation; they are captured whatever `RUST_BACKTRACE` says.
    #[must_use]
    pub fn new(upstream: R, capture_backtraces: bool) -> Self {
        let (live, counted) = (ByAddress::default(), Mutex::default());
        let inner = Tracker { upstream: upstream.raw(), capture_backtraces, live, counted };
        Self { upstream, inner: Arc::new(inner) }
    }

    /// The resource that the memory comes from.
    #[must_use]
    pub fn upstream(&self) -> &R {
        &self.upstream
    }

    /// The bytes that were asked for.
    #[must_use]
    pub fn bytes(&self) -> Stat {
        self.counted()[0]
    }

    /// The number of allocations.
    #[must_use]
    pub fn allocations(&self) -> Stat {
        self.counted()[1]
    }

    fn counted(&self) -> [Stat; 2] {
        if forked() { Default::default() } else { *lock(&self.inner.counted) }
    }

    /// What is allocated, by address. A backtrace is resolved when it is printed, which takes long.
    #[must_use]
    pub fn outstanding_allocations(&self) -> Vec<OutstandingAllocation> {
        let row = |address, bytes, (stream, backtrace): &(StreamId, Option<Arc<Backtrace>>)| {
            OutstandingAllocation { address, bytes, stream: *stream, backtrace: backtrace.clone() }
        };
        self.inner.live.list(row)
    }
}

// SAFETY: all memory comes from `upstream`, of which the same is true.
unsafe impl<R: MemoryResource> MemoryResource for TrackingAdaptor<R> {
    type Access = R::Access;

    fn raw(&self) -> Arc<dyn RawResource> {
        Arc::clone(&self.inner) as Arc<dyn RawResource>
    }

    fn resource_context(&self) -> &ResourceContext {
        self.upstream.resource_context()
    }
}

equal_handles!(TrackingAdaptor<R>, inner);

// Not derived: a resource need not be printable, and what it gives memory from is.
crate::impl_debug!([R] TrackingAdaptor<R>, |it| inner: it.inner);

// SAFETY: the memory is the upstream's, handed through.
unsafe impl MemorySource for Tracker {
    unsafe fn deallocate(&self, address: CUdeviceptr, layout: Layout, stream: &Stream) -> CoreResult<()> {
        // Before the upstream has it: from then on the address may be somebody else's.
        let known = self.live.take_out(address, layout.size())?;
        let count = |change: fn(&mut Stat, u64)| {
            let [bytes, allocations] = &mut *lock(&self.counted);
            change(bytes, layout.size() as u64);
            change(allocations, 1);
        };
        count(Stat::decrease);
        // SAFETY: the caller's promise; what came from here came from the upstream.
        let freed = unsafe { self.upstream.deallocate(address, layout, stream) };
        if freed.is_err() {
            self.live.enter(address, layout.size(), known);
            // It never went.
            count(|stat, amount| {
                stat.increase(amount);
                (stat.allocated, stat.freed) = (stat.allocated - amount, stat.freed - amount);
            });
        }
        freed
    }
}

// SAFETY: the memory is the upstream's, handed through.
unsafe impl RawResource for Tracker {
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        let address = self.upstream.allocate(layout, stream)?;
        if address != 0 {
            let backtrace = self.capture_backtraces.then(|| Arc::new(Backtrace::force_capture()));
            self.live.enter(address, layout.size(), (stream.id(), backtrace));
            let [bytes, allocations] = &mut *lock(&self.counted);
            bytes.increase(layout.size() as u64);
            allocations.increase(1);
        }
        Ok(address)
    }
}

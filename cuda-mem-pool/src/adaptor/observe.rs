//! [`TrackingAdaptor`]: observes each allocation, and their sums and peaks.
//!
//! # Safety
//!
//! Hands memory of the upstream through as it is.

#![allow(unsafe_code, reason = "implements the unsafe traits of resources")]

use std::alloc::Layout;
use std::backtrace::Backtrace;
use std::fmt::{self, Write};
use std::sync::Arc;

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{MemorySource, Result as CoreResult, Stream, StreamId};

use super::adaptor;
use crate::error::Result;
use crate::primitive::{Mutex, lock};
use crate::resource::{ByAddress, MemoryResource, RawResource, ResourceContext};

/// Remembers each allocation until it is freed: its size, its stream and, on request, the calls that led to it. Refuses a free of
/// something that is not allocated, or with another size. Counts them: now, at most, and in all; as a whole and in nested scopes.
///
/// An allocation counts when the upstream has made it, a free when the upstream has taken it: what waits for the end of a
/// capture is still allocated. Allocations of no bytes do not count.
///
/// ```
/// use cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::{DeviceMemoryResource, MemoryResource, TrackingAdaptor};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let resource = TrackingAdaptor::new(DeviceMemoryResource::new(&context, None)?, false);
/// let block = resource.allocate(1000, &stream)?;
/// let out = resource.outstanding_allocations();
/// assert_eq!((out.len(), out[0].address, out[0].bytes), (1, block.address(), 1000));
/// resource.push_counters();
/// drop(resource.allocate(20, &stream)?);
/// let scope = resource.pop_counters().unwrap_or_default();
/// assert_eq!((scope.bytes.current, scope.bytes.peak, scope.bytes.total), (0, 20, 20));
/// block.close().map_err(|refused| refused.error)?;
/// assert_eq!(resource.outstanding_report(), "nothing is allocated\n");
/// assert_eq!(resource.statistics().bytes.to_string(), "0 now, 1020 at most, 1020 in all");
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
    scopes: Mutex<Scopes>,
}

#[derive(Debug, Default)]
struct Scopes {
    /// The innermost, which is what is counted in.
    current: Statistics,
    /// Those around it, the outermost first.
    outer: Vec<Statistics>,
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
        let (live, scopes) = (ByAddress::default(), Mutex::default());
        let inner = Tracker { upstream: upstream.raw(), capture_backtraces, live, scopes };
        Self { upstream, inner: Arc::new(inner) }
    }

    /// The bytes that are allocated.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.inner.live.list(|_, bytes, _| bytes as u64).into_iter().sum()
    }

    /// What is allocated, by address.
    #[must_use]
    pub fn outstanding_allocations(&self) -> Vec<OutstandingAllocation> {
        let row = |address, bytes, (stream, backtrace): &(StreamId, Option<Arc<Backtrace>>)| {
            OutstandingAllocation { address, bytes, stream: *stream, backtrace: backtrace.clone() }
        };
        self.inner.live.list(row)
    }

    /// What is allocated, to be read by people: a line for each allocation, with its backtrace below it if there is one.
    #[must_use]
    pub fn outstanding_report(&self) -> String {
        // Backtraces are resolved when they are printed, which takes long: not under the lock.
        report(&self.outstanding_allocations()).unwrap_or_default()
    }

    /// The counters of the innermost scope; without a scope, those since the adaptor was made.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        lock(&self.inner.scopes).current
    }

    /// Begins a scope with counters at 0, and returns those of the scope around it. The scopes are the adaptor's, not a
    /// thread's: what other threads allocate meanwhile counts.
    pub fn push_counters(&self) -> Statistics {
        let mut scopes = lock(&self.inner.scopes);
        let around = std::mem::take(&mut scopes.current);
        scopes.outer.push(around);
        around
    }

    /// Ends the innermost scope: its counters, which are added to those of the scope around it. None if no scope has begun.
    pub fn pop_counters(&self) -> Option<Statistics> {
        let mut scopes = lock(&self.inner.scopes);
        let around = scopes.outer.pop()?;
        let ended = std::mem::replace(&mut scopes.current, around);
        scopes.current.bytes.merge(&ended.bytes);
        scopes.current.allocations.merge(&ended.allocations);
        Some(ended)
    }
}

adaptor!(TrackingAdaptor);

fn report(outstanding: &[OutstandingAllocation]) -> Result<String, fmt::Error> {
    if outstanding.is_empty() {
        return Ok("nothing is allocated\n".to_owned());
    }
    let mut text = String::new();
    writeln!(text, "{:>18}  {:>16}  {:>10}", "address", "bytes", "stream")?;
    for OutstandingAllocation { address, bytes, stream, backtrace } in outstanding {
        writeln!(text, "{:>18}  {bytes:>16}  {:>10}", format!("{address:#x}"), stream.as_raw())?;
        if let Some(backtrace) = backtrace {
            writeln!(text, "{backtrace}")?;
        }
    }
    let bytes = outstanding.iter().fold(0u64, |sum, one| sum.saturating_add(one.bytes as u64));
    let (count, plural) = (outstanding.len(), if outstanding.len() == 1 { "" } else { "s" });
    writeln!(text, "{bytes} bytes in {count} allocation{plural}")?;
    Ok(text)
}

// SAFETY: the memory is the upstream's, handed through.
unsafe impl MemorySource for Tracker {
    unsafe fn deallocate(&self, address: CUdeviceptr, layout: Layout, stream: &Stream) -> CoreResult<()> {
        // Before the upstream has it: from then on the address may be somebody else's.
        let known = self.live.take_out(address, layout.size())?;
        // SAFETY: the caller's promise; what came from here came from the upstream.
        let freed = unsafe { self.upstream.deallocate(address, layout, stream) };
        if freed.is_err() {
            self.live.enter(address, layout.size(), known);
            return freed;
        }
        let statistics = &mut lock(&self.scopes).current;
        statistics.bytes.subtract(layout.size() as i64);
        statistics.allocations.subtract(1);
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
            let statistics = &mut lock(&self.scopes).current;
            statistics.bytes.add(layout.size() as i64);
            statistics.allocations.add(1);
        }
        Ok(address)
    }
}

/// A quantity within a scope. It starts at 0 when the scope does. [`TrackingAdaptor`] has an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counter {
    /// What was allocated in the scope less what was freed in it: below 0 where memory from before it was freed.
    pub current: i64,
    /// The highest `current`, or 0 if that was never above it.
    pub peak: i64,
    /// What was allocated in the scope, freed or not.
    pub total: i64,
}

impl Counter {
    fn add(&mut self, amount: i64) {
        self.current = self.current.saturating_add(amount);
        self.total = self.total.saturating_add(amount);
        self.peak = self.peak.max(self.current);
    }

    fn subtract(&mut self, amount: i64) {
        self.current = self.current.saturating_sub(amount);
    }

    /// Adds a scope that lay inside: its peak stood on what was there when it began.
    fn merge(&mut self, inner: &Self) {
        self.peak = self.peak.max(self.current.saturating_add(inner.peak));
        self.current = self.current.saturating_add(inner.current);
        self.total = self.total.saturating_add(inner.total);
    }
}

impl fmt::Display for Counter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} now, {} at most, {} in all", self.current, self.peak, self.total)
    }
}

/// The counters of a scope. [`TrackingAdaptor`] has an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes that were asked for.
    pub bytes: Counter,
    /// Allocations.
    pub allocations: Counter,
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bytes: {}\nallocations: {}", self.bytes, self.allocations)
    }
}

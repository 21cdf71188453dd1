//! How much memory is and was allocated.
//!
//! # Safety
//!
//! Hands memory of the upstream through as it is.

#![allow(unsafe_code, reason = "implements the unsafe traits of resources")]

use std::alloc::Layout;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{MemorySource, Stream};

use super::adaptor;
use crate::error::Result;
use crate::resource::{MemoryResource, RawResource, ResourceContext};

/// A quantity over time, within a scope. It starts at 0 when the scope does. [`StatisticsAdaptor`] has an example.
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

/// The counters of a scope. [`StatisticsAdaptor`] has an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes that were asked for.
    pub bytes: Counter,
    /// Allocations.
    pub allocations: Counter,
}

/// Counts what is allocated through it: now, at most, and in all; as a whole and in nested scopes.
///
/// An allocation counts when the upstream has made it, a free when the upstream has taken it: what waits for the end of a
/// capture is still allocated. Allocations of no bytes do not count.
///
/// ```
/// use cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::{DeviceMemoryResource, MemoryResource, StatisticsAdaptor};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let resource = StatisticsAdaptor::new(DeviceMemoryResource::new(&context, None)?);
/// let kept = resource.allocate(100, &stream)?;
/// resource.push_counters();
/// drop(resource.allocate(20, &stream)?);
/// let scope = resource.pop_counters().unwrap_or_default();
/// assert_eq!((scope.bytes.current, scope.bytes.peak, scope.bytes.total), (0, 20, 20));
/// let whole = resource.counters();
/// assert_eq!((whole.bytes.current, whole.bytes.peak, whole.bytes.total), (100, 120, 120));
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Clone)]
pub struct StatisticsAdaptor<R> {
    upstream: R,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    upstream: Arc<dyn RawResource>,
    scopes: Mutex<Scopes>,
}

#[derive(Debug, Default)]
struct Scopes {
    /// The innermost, which is what is counted in.
    current: Statistics,
    /// Those around it, the outermost first.
    outer: Vec<Statistics>,
}

impl<R: MemoryResource> StatisticsAdaptor<R> {
    /// Counts the memory of `upstream` that is allocated through the adaptor.
    #[must_use]
    pub fn new(upstream: R) -> Self {
        let inner = Inner { upstream: upstream.raw(), scopes: Mutex::default() };
        Self { upstream, inner: Arc::new(inner) }
    }
}

impl<R> StatisticsAdaptor<R> {
    /// The counters of the innermost scope; without a scope, those since the adaptor was made.
    #[must_use]
    pub fn counters(&self) -> Statistics {
        self.inner.scopes().current
    }

    /// Begins a scope with counters at 0, and returns those of the scope around it. The scopes are the adaptor's, not a
    /// thread's: what other threads allocate meanwhile counts.
    pub fn push_counters(&self) -> Statistics {
        let mut scopes = self.inner.scopes();
        let around = std::mem::take(&mut scopes.current);
        scopes.outer.push(around);
        around
    }

    /// Ends the innermost scope: its counters, which are added to those of the scope around it. None if no scope has begun.
    pub fn pop_counters(&self) -> Option<Statistics> {
        let mut scopes = self.inner.scopes();
        let around = scopes.outer.pop()?;
        let ended = std::mem::replace(&mut scopes.current, around);
        scopes.current.bytes.merge(&ended.bytes);
        scopes.current.allocations.merge(&ended.allocations);
        Some(ended)
    }
}

adaptor!(StatisticsAdaptor);

impl Inner {
    fn scopes(&self) -> MutexGuard<'_, Scopes> {
        self.scopes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn signed(bytes: usize) -> i64 {
    // A layout's size always fits.
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

// SAFETY: the memory is the upstream's, handed through.
unsafe impl MemorySource for Inner {
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem_core::Result<()> {
        // SAFETY: the caller's promise; what came from here came from the upstream.
        unsafe { self.upstream.deallocate(address, layout, stream) }?;
        let mut scopes = self.scopes();
        scopes.current.bytes.subtract(signed(layout.size()));
        scopes.current.allocations.subtract(1);
        Ok(())
    }
}

// SAFETY: the memory is the upstream's, handed through.
unsafe impl RawResource for Inner {
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        let address = self.upstream.allocate(layout, stream)?;
        if address != 0 {
            let mut scopes = self.scopes();
            scopes.current.bytes.add(signed(layout.size()));
            scopes.current.allocations.add(1);
        }
        Ok(address)
    }
}

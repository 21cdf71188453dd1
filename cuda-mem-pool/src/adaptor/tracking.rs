//! What is allocated, and where it was.
//!
//! # Safety
//!
//! Hands memory of the upstream through as it is.

#![allow(unsafe_code, reason = "implements the unsafe traits of resources")]

use std::alloc::Layout;
use std::backtrace::Backtrace;
use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{MemorySource, Stream, StreamId};

use super::adaptor;
use crate::error::Result;
use crate::resource::{MemoryResource, RawResource, ResourceContext};

/// Remembers each allocation until it is freed: its size, its stream and, on request, the calls that led to it.
///
/// A free of something that is not allocated, or with another size than it was allocated with, is an error, and nothing is
/// freed.
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
/// block.close().map_err(|refused| refused.error)?;
/// assert_eq!(resource.outstanding_report(), "nothing is allocated\n");
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Clone)]
pub struct TrackingAdaptor<R> {
    upstream: R,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    upstream: Arc<dyn RawResource>,
    capture_backtraces: bool,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    /// By address.
    entries: BTreeMap<CUdeviceptr, Entry>,
    /// The sum of their bytes.
    bytes: u64,
}

#[derive(Debug, Clone)]
struct Entry {
    bytes: usize,
    stream: StreamId,
    backtrace: Option<Arc<Backtrace>>,
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
        let inner = Inner { upstream: upstream.raw(), capture_backtraces, books: Mutex::default() };
        Self { upstream, inner: Arc::new(inner) }
    }
}

impl<R> TrackingAdaptor<R> {
    /// The bytes that are allocated.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.inner.books().bytes
    }

    /// What is allocated, by address.
    #[must_use]
    pub fn outstanding_allocations(&self) -> Vec<OutstandingAllocation> {
        let books = self.inner.books();
        let outstanding = |(address, entry): (&CUdeviceptr, &Entry)| OutstandingAllocation {
            address: *address,
            bytes: entry.bytes,
            stream: entry.stream,
            backtrace: entry.backtrace.clone(),
        };
        books.entries.iter().map(outstanding).collect()
    }

    /// What is allocated, to be read by people: a line for each allocation, with its backtrace below it if there is one.
    #[must_use]
    pub fn outstanding_report(&self) -> String {
        // Backtraces are resolved when they are printed, which takes long: not under the lock.
        report(&self.outstanding_allocations()).unwrap_or_default()
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

impl Inner {
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    fn enter(&mut self, address: CUdeviceptr, entry: Entry) {
        self.bytes = self.bytes.saturating_add(entry.bytes as u64);
        self.entries.insert(address, entry);
    }

    /// Takes an allocation out that is said to have so many bytes.
    fn take_out(&mut self, address: CUdeviceptr, bytes: usize) -> cuda_mem_core::Result<Entry> {
        let entry = self.entries.get(&address).ok_or(cuda_mem_core::Error::NotAllocated { address })?;
        if entry.bytes != bytes {
            let allocated = entry.bytes;
            return Err(cuda_mem_core::Error::WrongSize { address, given: bytes, allocated });
        }
        self.bytes = self.bytes.saturating_sub(bytes as u64);
        self.entries.remove(&address).ok_or(cuda_mem_core::Error::NotAllocated { address })
    }
}

// SAFETY: the memory is the upstream's, handed through.
unsafe impl MemorySource for Inner {
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem_core::Result<()> {
        // Before the upstream has it: from then on the address may be somebody else's.
        let entry = self.books().take_out(address, layout.size())?;
        // SAFETY: the caller's promise; what came from here came from the upstream.
        let freed = unsafe { self.upstream.deallocate(address, layout, stream) };
        if freed.is_err() {
            self.books().enter(address, entry);
        }
        freed
    }
}

// SAFETY: the memory is the upstream's, handed through.
unsafe impl RawResource for Inner {
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        let address = self.upstream.allocate(layout, stream)?;
        if address != 0 {
            let backtrace = self.capture_backtraces.then(|| Arc::new(Backtrace::force_capture()));
            let entry = Entry { bytes: layout.size(), stream: stream.id(), backtrace };
            self.books().enter(address, entry);
        }
        Ok(address)
    }
}

//! A log of what is allocated and freed.
//!
//! # Safety
//!
//! Hands memory of the upstream through as it is.

#![allow(unsafe_code, reason = "implements the unsafe traits of resources, and asks for the thread's number")]

mod journal;

use std::alloc::Layout;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{MemorySource, Stream};

use self::journal::Journal;
use super::adaptor;
use crate::error::Result;
use crate::primitive::thread_number;
use crate::resource::{MemoryResource, RawResource, ResourceContext};

/// Writes a row for each allocation and each free, in the format of RMM, whose tools replay such logs.
///
/// ```text
/// Thread,Time,Action,Pointer,Size,Stream
/// 4711,09:25:01.000042,allocate,0x7f3200000000,1048576,0x55d0c8a3b2f0
/// 4711,09:25:01.000311,allocate failure,0x0,99999999999,0x55d0c8a3b2f0
/// 4711,09:25:02.120009,free,0x7f3200000000,1048576,0x55d0c8a3b2f0
/// ```
///
/// The thread is the system's number of it, the time of day is UTC, the stream is the driver's handle. A free that the upstream
/// refuses is not logged, and one that waits for the end of a capture is logged once, when it happens. Rows stand in an order in
/// which they can be replayed: an address is freed before it is allocated again, whatever threads do. Allocations of no bytes
/// are not logged.
///
/// ```
/// use cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::{DeviceMemoryResource, LoggingAdaptor, MemoryResource};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let resource = LoggingAdaptor::new(DeviceMemoryResource::new(&context, None)?, std::io::stderr());
/// drop(resource.allocate(1 << 20, &stream)?);
/// assert_eq!(resource.write_failures(), 0);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Clone)]
pub struct LoggingAdaptor<R> {
    upstream: R,
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    upstream: Arc<dyn RawResource>,
    journal: Journal,
}

impl<R: MemoryResource> LoggingAdaptor<R> {
    /// Logs what is allocated of `upstream` through the adaptor to `writer`, beginning with the header.
    ///
    /// What goes wrong with the writer, a panic of it too, fails no allocation: see
    /// [`write_failures`](LoggingAdaptor::write_failures). It must not use this adaptor itself.
    #[must_use]
    pub fn new(upstream: R, writer: impl Write + Send + 'static) -> Self {
        let inner = Inner { upstream: upstream.raw(), journal: Journal::new(Box::new(writer)) };
        Self { upstream, inner: Arc::new(inner) }
    }

    /// As [`LoggingAdaptor::new`], to a file, which is made, or emptied if it is there. Rows are collected and written in
    /// large pieces; [`flush`](LoggingAdaptor::flush) writes what there is.
    ///
    /// # Errors
    ///
    /// The system's, if the file cannot be made.
    pub fn to_path(upstream: R, path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self::new(upstream, BufWriter::new(File::create(path)?)))
    }
}

impl<R> LoggingAdaptor<R> {
    /// Has the writer pass on what it holds back.
    ///
    /// # Errors
    ///
    /// The writer's.
    pub fn flush(&self) -> io::Result<()> {
        self.inner.journal.flush()
    }

    /// How many rows could not be written, the header among them.
    #[must_use]
    pub fn write_failures(&self) -> u64 {
        self.inner.journal.failures()
    }
}

adaptor!(LoggingAdaptor);

fn row(action: &str, address: CUdeviceptr, layout: Layout, stream: &Stream) -> String {
    // A clock before 1970 is set wrongly, and any time will do.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, micros) = (since.as_secs(), since.subsec_micros());
    let (hours, minutes) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!(
        "{},{hours:02}:{minutes:02}:{:02}.{micros:06},{action},{address:#x},{},{:#x}\n",
        thread_number(),
        seconds % 60,
        layout.size(),
        stream.as_raw().addr(),
    )
}

// SAFETY: the memory is the upstream's, handed through.
unsafe impl MemorySource for Inner {
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem_core::Result<()> {
        // Its place is taken before the upstream has the memory: after that the address may be allocated again.
        let place = self.journal.place();
        let row = row("free", address, layout, stream);
        // SAFETY: the caller's promise; what came from here came from the upstream.
        unsafe { self.upstream.deallocate(address, layout, stream) }?;
        place.fill(row);
        Ok(())
    }
}

// SAFETY: the memory is the upstream's, handed through.
unsafe impl RawResource for Inner {
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        let result = self.upstream.allocate(layout, stream);
        match &result {
            Ok(0) => {}
            Ok(address) => self.journal.place().fill(row("allocate", *address, layout, stream)),
            Err(_) => self.journal.place().fill(row("allocate failure", 0, layout, stream)),
        }
        result
    }
}

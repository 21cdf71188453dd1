//! Writes a log of what is allocated and freed, in an order in which it can be replayed.
//!
//! # Safety
//!
//! Hands memory of the upstream through as it is.

#![allow(unsafe_code, reason = "implements the unsafe traits of resources")]

use std::alloc::Layout;
use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{MemorySource, Result as CoreResult, Stream, catch_panic};

use super::adaptor;
use crate::error::Result;
use crate::primitive::{Mutex, lock, thread_number};
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
/// The thread is the system's number of it, the time of day is UTC, the stream is the driver's handle. Rows stand in an order in
/// which they can be replayed: an address is freed before it is allocated again, whatever threads do. A free that the upstream
/// refuses and allocations of no bytes are not logged; a free that waits for the end of a capture is, when it happens.
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
    inner: Arc<Logger>,
}

#[derive(Debug)]
struct Logger {
    upstream: Arc<dyn RawResource>,
    rows: Mutex<Rows>,
}

impl<R: MemoryResource> LoggingAdaptor<R> {
    /// Logs what is allocated of `upstream` through the adaptor to `writer`, beginning with the header.
    ///
    /// What goes wrong with the writer, a panic of it too, fails no allocation: see
    /// [`write_failures`](LoggingAdaptor::write_failures). It must not use this adaptor itself.
    #[must_use]
    pub fn new(upstream: R, writer: impl Write + Send + 'static) -> Self {
        let mut rows = Rows { writer: Box::new(writer), failures: 0, rows: VecDeque::new(), first: 0 };
        rows.write("Thread,Time,Action,Pointer,Size,Stream\n");
        let inner = Logger { upstream: upstream.raw(), rows: Mutex::new(rows) };
        Self { upstream, inner: Arc::new(inner) }
    }

    /// As [`LoggingAdaptor::new`], to a file, which is made, or emptied if it is there. Rows are collected and written in
    /// large pieces; [`flush`](LoggingAdaptor::flush) writes what there is.
    pub fn to_path(upstream: R, path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self::new(upstream, BufWriter::new(File::create(path)?)))
    }

    /// Flushes the writer.
    pub fn flush(&self) -> io::Result<()> {
        let mut rows = lock(&self.inner.rows);
        contained(|| rows.writer.flush())
    }

    /// How many rows could not be written, the header among them.
    #[must_use]
    pub fn write_failures(&self) -> u64 {
        lock(&self.inner.rows).failures
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
unsafe impl MemorySource for Logger {
    unsafe fn deallocate(&self, address: CUdeviceptr, layout: Layout, stream: &Stream) -> CoreResult<()> {
        // Reserved before the upstream has the memory: after that the address may be allocated again.
        let mut reserved = self.reserve();
        let row = row("free", address, layout, stream);
        // SAFETY: the caller's promise; what came from here came from the upstream.
        unsafe { self.upstream.deallocate(address, layout, stream) }?;
        reserved.row = Row::Filled(row);
        Ok(())
    }
}

// SAFETY: the memory is the upstream's, handed through.
unsafe impl RawResource for Logger {
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        let result = self.upstream.allocate(layout, stream);
        let (action, address) = match &result {
            Ok(0) => return result,
            Ok(address) => ("allocate", *address),
            Err(_) => ("allocate failure", 0),
        };
        self.reserve().row = Row::Filled(row(action, address, layout, stream));
        result
    }
}

/// A writer, and the rows that wait for earlier ones.
struct Rows {
    writer: Box<dyn Write + Send>,
    failures: u64,
    /// From the first one that is still open on.
    rows: VecDeque<Row>,
    /// The number of the first of them.
    first: u64,
}

enum Row {
    Open,
    Filled(String),
    Void,
}

impl Logger {
    /// Takes the next row. It is left out if it is dropped unfilled.
    fn reserve(&self) -> ReservedRow<'_> {
        let mut rows = lock(&self.rows);
        let number = rows.first.wrapping_add(rows.rows.len() as u64);
        rows.rows.push_back(Row::Open);
        ReservedRow { rows: &self.rows, number, row: Row::Void }
    }
}

impl Rows {
    fn fill(&mut self, number: u64, row: Row) {
        let index = usize::try_from(number.wrapping_sub(self.first)).ok();
        if let Some(reserved) = index.and_then(|index| self.rows.get_mut(index)) {
            *reserved = row;
        }
        while self.rows.front().is_some_and(|row| !matches!(row, Row::Open)) {
            self.first = self.first.wrapping_add(1);
            if let Some(Row::Filled(text)) = self.rows.pop_front() {
                self.write(&text);
            }
        }
    }

    fn write(&mut self, row: &str) {
        if contained(|| self.writer.write_all(row.as_bytes())).is_err() {
            self.failures = self.failures.saturating_add(1);
        }
    }
}

/// Makes a panic of the writer an error: memory that was just allocated must not be lost over a row.
fn contained(write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    catch_panic(write).unwrap_or_else(|| Err(io::Error::other("the writer panicked")))
}

/// A row whose position in the log is taken, whenever it is filled.
struct ReservedRow<'j> {
    rows: &'j Mutex<Rows>,
    number: u64,
    row: Row,
}

impl Drop for ReservedRow<'_> {
    fn drop(&mut self) {
        let row = std::mem::replace(&mut self.row, Row::Void);
        lock(self.rows).fill(self.number, row);
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("failures", &self.failures).finish_non_exhaustive()
    }
}

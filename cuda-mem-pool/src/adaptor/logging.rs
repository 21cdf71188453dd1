//! Writes a log of what is allocated and freed, in an order in which it can be replayed.
//!
//! # Safety
//!
//! Hands memory of the upstream through as it is.

#![allow(unsafe_code, reason = "implements the unsafe traits of resources")]

use std::alloc::Layout;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
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
    log: Mutex<Log>,
}

impl<R: MemoryResource> LoggingAdaptor<R> {
    /// Logs what is allocated of `upstream` through the adaptor to `writer`, beginning with the header.
    ///
    /// What goes wrong with the writer, a panic of it too, fails no allocation: see
    /// [`write_failures`](LoggingAdaptor::write_failures). It must not use this adaptor itself.
    #[must_use]
    pub fn new(upstream: R, writer: impl Write + Send + 'static) -> Self {
        let mut log = Log { writer: Box::new(writer), failures: 0, leaving: HashMap::new(), entered: 0 };
        log.write("Thread,Time,Action,Pointer,Size,Stream\n");
        let inner = Logger { upstream: upstream.raw(), log: Mutex::new(log) };
        Self { upstream, inner: Arc::new(inner) }
    }

    /// As [`LoggingAdaptor::new`], to a file, which is made, or emptied if it is there. Rows are collected and written in
    /// large pieces; [`flush`](LoggingAdaptor::flush) writes what there is.
    pub fn to_path(upstream: R, path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self::new(upstream, BufWriter::new(File::create(path)?)))
    }

    /// Flushes the writer.
    pub fn flush(&self) -> io::Result<()> {
        contained(|| lock(&self.inner.log).writer.flush())
    }

    /// How many rows could not be written, the header among them.
    #[must_use]
    pub fn write_failures(&self) -> u64 {
        lock(&self.inner.log).failures
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
        let row = row("free", address, layout, stream);
        // Entered before the upstream has the memory: after that the address may be allocated again.
        let number = lock(&self.log).enter(address, row);
        // SAFETY: the caller's promise; what came from here came from the upstream.
        let freed = unsafe { self.upstream.deallocate(address, layout, stream) };
        lock(&self.log).leave(address, |entered| *entered == number, freed.is_ok());
        freed
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
        let row = row(action, address, layout, stream);
        let mut log = lock(&self.log);
        // Who frees it has not come to it yet.
        log.leave(address, |_| true, true);
        log.write(&row);
        result
    }
}

struct Log {
    writer: Box<dyn Write + Send>,
    failures: u64,
    /// The rows of frees that the upstream has not confirmed, with their numbers, by address.
    leaving: HashMap<CUdeviceptr, (u64, String)>,
    entered: u64,
}

impl Log {
    fn enter(&mut self, address: CUdeviceptr, row: String) -> u64 {
        self.entered = self.entered.wrapping_add(1);
        self.leaving.insert(address, (self.entered, row));
        self.entered
    }

    /// Takes out the free of an address, if it is the right one, and writes it, if it happened.
    fn leave(&mut self, address: CUdeviceptr, is_right: impl Fn(&u64) -> bool, happened: bool) {
        let Entry::Occupied(leaving) = self.leaving.entry(address) else { return };
        if is_right(&leaving.get().0) {
            let (_, row) = leaving.remove();
            if happened {
                self.write(&row);
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

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("failures", &self.failures).finish_non_exhaustive()
    }
}

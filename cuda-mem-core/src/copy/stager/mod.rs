//! Pageable memory at the speed of the link.
//!
//! The driver copies pageable memory with one thread, at a fifth of what the link carries. Here several threads move it through
//! a ring of pinned slots: they fill slots, or empty them, while the link works on others.
//!
//! - `board`: who may touch which slot and which part of it, and the threads. It knows no memory, and has models for loom.
//! - `ring`: the memory, and the copies of the link.
//! - `task`: what the threads do.
//! - `upload`, `download`: the two directions.
//! - `tuning`: every figure that was chosen.
//!
//! # Safety
//!
//! Each public call borrows the host's memory or file for as long as it runs, and the loads that name it end with the call.

#![allow(unsafe_code, reason = "has threads copy borrowed memory")]

mod board;
mod download;
mod past_cache;
mod primitive;
mod ring;
mod task;
mod tuning;
mod upload;

use std::fs::File;
use std::io::Read;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;

use self::board::{Board, Pool};
use self::download::Download;
use self::ring::Ring;
use self::task::{Host, HostBytes, Task};
use self::tuning::{
    PAGE, SLOT_BYTES, SLOT_BYTES_ACCEPTED, SLOTS, SLOTS_ACCEPTED, STRAIGHT, THREADS, THREADS_ACCEPTED,
};
use self::upload::Upload;
use crate::buffer::{DeviceRange, expect_equal};
use crate::driver::{Context, refuse_forked};
use crate::element::DeviceCopy;
use crate::error::{Error, Result};
use crate::stream::Stream;

/// Copies between pageable memory, or files, and devices at the speed of the link, through a ring of pinned memory.
///
/// Clones are handles to the same ring and threads. Any number of threads may copy at a time, on any streams of the driver: they
/// share the ring slot by slot, first come, first served. A full ring makes callers wait; it never grows. If all of it is held by
/// streams that do not get on, others copy without it, at the driver's own rate.
///
/// Memory that is pinned or registered already needs no stager: [`scope`](crate::scope()) and [`Transfer`](crate::Transfer) copy
/// it faster.
///
/// The ring keeps a stream, as a buffer does, until it has seen that the stream's copies are done: at a later copy, or when the
/// last handle is dropped, which waits for them.
///
/// ```
/// use cuda_mem_core::{DeviceBuffer, Driver, Stream, copy::Stager};
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
/// let stream = Stream::new(&context)?;
/// let stager = Stager::builder(&context).threads(4).slots(4).slot_bytes(1 << 20).build()?;
/// assert_eq!((stager.threads(), stager.slots(), stager.slot_bytes()), (4, 4, 1 << 20));
///
/// let mut host: Vec<u32> = (0..1 << 20).collect();
/// let device = DeviceBuffer::<u32>::uninit(&stream, host.len())?;
/// stager.upload(&stream, &host, &device.whole())?;
/// host.fill(0); // it may be used again, whether or not the device has the bytes yet
/// stager.download(&stream, &device.whole(), &mut host)?;
/// assert!(host.iter().copied().eq(0..1 << 20));
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Clone)]
pub struct Stager {
    inner: Arc<Inner>,
}

struct Inner {
    /// Dropped first: no thread works on the ring then.
    pool: Pool<Task>,
    ring: Ring,
}

/// What each thread of the pool does.
fn copy_parts(board: &Board<Task>) {
    while let Some(part) = board.claim() {
        // SAFETY: a part that this thread has claimed; its load is posted, and the call that posted it has borrowed what the
        // task names.
        part.copy(|task, range| unsafe { task.run(range) });
    }
}

impl Stager {
    /// A stager with the usual number of threads and slots: 9 threads, or as many as the process may run at
    /// once if that is less, and 8 slots of 4 MiB.
    /// Errors: those of [`StagerBuilder::build`].
    pub fn new(context: &Context) -> Result<Self> {
        Self::builder(context).build()
    }

    /// A stager to order. Its ring is allocated in `context`, and pinned for all contexts of the driver.
    pub fn builder(context: &Context) -> StagerBuilder<'_> {
        StagerBuilder::new(context)
    }

    /// How many threads copy, the caller among them.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.inner.pool.len().saturating_add(1)
    }

    /// How many slots the ring has.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.inner.ring.len()
    }

    /// The size of a slot in bytes.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.inner.ring.slot_bytes()
    }

    /// Copies `source` to `target`, which must have as many elements. Returns when `source` may be used again.
    ///
    /// Wraps [`cuMemcpyAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html). Ordered on `stream`: later
    /// work on it sees the bytes, and uses of the buffer on other streams wait for them. The host waits for the stream only where
    /// the ring is full; up to 64 KiB it does what [`DeviceRange::copy_from_slice`] does.
    ///
    /// # Errors
    ///
    /// [`Error::LengthMismatch`], those of [`DeviceBuffer::on`](crate::DeviceBuffer::on). The bytes of `target` are unspecified then, and
    /// the device does not read `source` any more.
    pub fn upload<T: DeviceCopy>(
        &self,
        stream: &Stream,
        source: &[T],
        target: &DeviceRange<'_, T>,
    ) -> Result<()> {
        let bytes = size_of_val(source);
        expect_equal(bytes, target.size_bytes())?;
        if bytes <= STRAIGHT {
            self.begin(stream, "Stager::upload")?;
            return target.copy_from_slice(stream, source);
        }
        let host = Host::Source(HostBytes::new(source.as_ptr().cast::<u8>().cast_mut(), bytes));
        let upload = Upload { plan: self.begin(stream, "Stager::upload")?, target: target.bytes() };
        // SAFETY: the source is borrowed for this call, and as long as the target.
        unsafe { upload.run(&Arc::new(host)) }
    }

    /// Copies `source` to `target`, which must have as many elements. Returns when the bytes are there.
    ///
    /// Wraps [`cuMemcpyAsync`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html). Ordered on `stream`, and
    /// waits for what the stream was given before. Pages of `target` that were never touched are faulted in by all threads
    /// together.
    ///
    /// # Errors
    ///
    /// As [`Stager::upload`]. The bytes of `target` are unspecified then; nobody writes them any more.
    pub fn download<T: DeviceCopy>(
        &self,
        stream: &Stream,
        source: &DeviceRange<'_, T>,
        target: &mut [T],
    ) -> Result<()> {
        let bytes = size_of_val(target);
        expect_equal(source.size_bytes(), bytes)?;
        if bytes <= STRAIGHT {
            self.begin(stream, "Stager::download")?;
            return source.copy_to_slice(stream, target);
        }
        let host = Host::Target(HostBytes::new(target.as_mut_ptr().cast::<u8>(), bytes));
        let download = Download { plan: self.begin(stream, "Stager::download")?, source: source.bytes() };
        // SAFETY: the target is borrowed mutably for this call, as long as the source, and its elements take any bytes.
        unsafe { download.run(&Arc::new(host)) }
    }

    /// Copies the file's bytes from `offset` on, as many as `target` has. Returns when they are read.
    ///
    /// The threads [`pread`](https://man7.org/linux/man-pages/man2/pread.2.html) into the ring: there is no mapping, and a file
    /// that becomes shorter meanwhile is an error and no signal. The file's own position stays. Ordered on `stream`, as
    /// [`Stager::upload`] is.
    ///
    /// ```
    /// use cuda_mem_core::{DeviceBuffer, Driver, Stream, copy::Stager};
    ///
    /// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
    /// let context = driver.device(0)?.primary_context()?;
    /// let stream = Stream::new(&context)?;
    /// let (stager, file) = (Stager::new(&context)?, std::fs::File::open("Cargo.toml")?);
    /// let device = DeviceBuffer::<u8>::zeroed(&stream, 9)?;
    /// stager.upload_file(&stream, &file, 0, &device.whole())?;
    /// assert_eq!(device.to_vec(&stream)?, b"[package]");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Stager::upload`]; and [`Error::Source`] if the file cannot be read or ends too early, with the first byte that is
    /// missing. What lies before it may be in `target` then, up to the slot that it belongs to.
    pub fn upload_file(
        &self,
        stream: &Stream,
        file: &File,
        offset: u64,
        target: &DeviceRange<'_, u8>,
    ) -> Result<()> {
        let plan = self.begin(stream, "Stager::upload_file")?;
        let upload = Upload { plan, target: target.bytes() };
        let host = Host::File { descriptor: file.as_raw_fd(), offset };
        // SAFETY: the file is borrowed for this call, and so open.
        unsafe { upload.run(&Arc::new(host)) }
    }

    /// Copies what `source` yields, as many bytes as `target` has. Returns when they are read; `source` is not read further.
    ///
    /// The calling thread reads, straight into the ring, while the link copies what was read before. Ordered on `stream`, as
    /// [`Stager::upload`] is. What `source` finds in the memory that it is given is left from other copies.
    ///
    /// # Errors
    ///
    /// As [`Stager::upload_file`]. A panic of `source` goes on; the stager stays usable.
    pub fn upload_from(
        &self,
        stream: &Stream,
        source: &mut (impl Read + ?Sized),
        target: &DeviceRange<'_, u8>,
    ) -> Result<()> {
        let plan = self.begin(stream, "Stager::upload_from")?;
        Upload { plan, target: target.bytes() }.read(source)
    }

    /// What every copy begins with.
    fn begin<'s>(&'s self, stream: &'s Stream, call: &'static str) -> Result<CopyPlan<'s>> {
        refuse_forked()?;
        let ring = &self.inner.ring;
        ring.driver().expect_same(stream.driver(), "the stream")?;
        stream.refuse_capturing(call)?;
        Ok(CopyPlan { ring, stream, threads: self.threads() })
    }
}

impl_debug!(Stager, |it| threads: it.threads(), slots: it.slots(), slot_bytes: it.slot_bytes());

/// How many threads a [`Stager`] has, and how large its ring is. From [`Stager::builder`].
#[derive(Debug, Clone)]
#[must_use = "it makes a stager when it is built"]
pub struct StagerBuilder<'c> {
    context: &'c Context,
    threads: usize,
    slots: usize,
    slot_bytes: usize,
}

impl<'c> StagerBuilder<'c> {
    fn new(context: &'c Context) -> Self {
        let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(THREADS);
        Self { context, threads, slots: SLOTS, slot_bytes: SLOT_BYTES }
    }

    /// How many threads copy, the one that calls among them: with 1, none is started. By default 9, or as many as the process
    /// may run at once if that is less.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// How many pieces are on their way at a time. By default 8.
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots;
        self
    }

    /// The largest piece in bytes, rounded up to whole pages of 4 KiB. By default 4 MiB.
    pub fn slot_bytes(mut self, slot_bytes: usize) -> Self {
        self.slot_bytes = slot_bytes;
        self
    }

    /// Allocates the ring and starts the threads.
    ///
    /// Wraps [`cuMemHostAlloc`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    ///
    /// # Errors
    ///
    /// [`Error::NotAccepted`] for a value that is not, [`Error::Io`] if a thread cannot be started.
    pub fn build(self) -> Result<Stager> {
        refuse_forked()?;
        expect("threads", self.threads, THREADS_ACCEPTED)?;
        expect("slots", self.slots, SLOTS_ACCEPTED)?;
        expect("slot_bytes", self.slot_bytes, SLOT_BYTES_ACCEPTED)?;
        let ring = Ring::new(self.context, self.slots, self.slot_bytes.next_multiple_of(PAGE))?;
        let pool = Pool::start(ring.board(), self.threads.saturating_sub(1), copy_parts)
            .map_err(|error| Error::Io { call: "pthread_create", source: error.into() })?;
        Ok(Stager { inner: Arc::new(Inner { pool, ring }) })
    }
}

fn expect(option: &'static str, value: usize, accepted: RangeInclusive<usize>) -> Result<()> {
    if accepted.contains(&value) { Ok(()) } else { Err(Error::NotAccepted { option, value, accepted }) }
}

/// What a copy goes by.
#[derive(Clone, Copy)]
struct CopyPlan<'s> {
    ring: &'s Ring,
    stream: &'s Stream,
    /// How many threads copy, the caller among them.
    threads: usize,
}

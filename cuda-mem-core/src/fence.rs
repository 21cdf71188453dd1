//! Fences: a point in one stream's work that other streams, and other parties, wait for.
//!
//! # Safety
//!
//! Relies on the words of a [`FenceLine`] staying allocated while any of its fences or any stream can still touch them: fences
//! hold the line, and the line's words know the streams that were told of them, as any pinned buffer's do.

#![allow(unsafe_code, reason = "has streams write and wait for words, and reads them atomically")]

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_sys::CUdeviceptr;

use crate::context::Context;
use crate::driver::refuse_forked;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::fork;
use crate::host::{HostMemory, PinnedBuffer, PinnedFlags, device_address};
use crate::stream::{Stream, StreamId};
use crate::stream_mem::{self, WaitFlags};

/// A point that streams and the host can wait for.
///
/// Made of an event, it is what [`Event`] is. Made of a generation word ([`FenceLine`]), it can also be completed from
/// outside, with poison, when the one who was to reach it is dead: nobody waits for the dead, and everybody learns of it.
///
/// ```
/// use cuda_mem_core::{Driver, Error, Fence, FenceLine, Stream};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let (producer, consumer) = (Stream::new(&context)?, Stream::new(&context)?);
///
/// let fence = Fence::record(&producer)?;
/// fence.hold_up(&consumer)?; // the consumer's later work comes after the producer's earlier work
///
/// let line = FenceLine::new(&context)?;
/// let fence = line.record(&producer)?;
/// fence.synchronize(None)?;
/// line.poison(); // the producer has died
/// assert!(matches!(fence.is_complete(), Err(Error::Poisoned)));
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Fence {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Event(Event),
    Word { line: Arc<Line>, generation: u64 },
}

/// A row of fences on one word in pinned memory, each a generation: reached when the word has come that far.
///
/// The word is written and waited for by stream memory operations, so it can be shared with whoever maps the memory.
///
/// A stream that waits for a word occupies one of the device's few hardware queues; eight such waits hold up other streams too
/// (seen on hardware). Record before you wait. [`Fence`] has an example.
#[derive(Debug, Clone)]
pub struct FenceLine {
    line: Arc<Line>,
}

struct Line {
    /// The generation word, and a word that is not zero once the line is poisoned.
    words: PinnedBuffer<u64>,
    address: CUdeviceptr,
    /// Held while a fence is recorded, so that generations are written in order.
    issued: Mutex<Issued>,
}

/// What was given out last.
#[derive(Debug, Default)]
struct Issued {
    generation: u64,
    /// The stream that writes it.
    writer: Option<StreamId>,
}

/// What completes every generation of a line: as a signed number it is ahead of all that are given out.
const POISON: u64 = i64::MAX as u64;

impl Fence {
    /// The point that `stream` has reached when everything it was given so far is done.
    ///
    /// Wraps [`cuEventRecord`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html).
    ///
    /// # Capture
    ///
    /// [`Error::Capturing`] if the stream captures.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], [`Error::WrongThread`], [`Error::Forked`].
    pub fn record(stream: &Stream) -> Result<Self> {
        stream.refuse_capturing("Fence::record")?;
        let event = Event::pooled(stream.context())?;
        stream.record(&event)?;
        Ok(Self { kind: Kind::Event(event) })
    }

    /// Has `stream`'s later work wait for the fence. The host waits for nothing.
    ///
    /// Wraps [`cuStreamWaitEvent`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html) for an event, and
    /// [`cuStreamWaitValue64`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEMOP.html) for a word.
    ///
    /// Work behind a fence that is poisoned later starts all the same: ask [`Fence::is_complete`] before its results are used.
    ///
    /// # Capture
    ///
    /// [`Error::Capturing`] if the stream captures.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`] if it is poisoned already, [`Error::ForeignContext`], [`Error::Driver`], [`Error::WrongThread`],
    /// [`Error::Forked`].
    pub fn hold_up(&self, stream: &Stream) -> Result<()> {
        stream.refuse_capturing("Fence::hold_up")?;
        match &self.kind {
            Kind::Event(event) => stream.wait(event),
            Kind::Word { line, generation } => {
                if line.reached(*generation)? {
                    return Ok(());
                }
                line.enqueue(stream, |address| {
                    // SAFETY: the line's word, which `enqueue` keeps allocated for the stream.
                    unsafe { stream_mem::wait_value64(stream, address, *generation, WaitFlags::empty()) }
                })
            }
        }
    }

    /// Whether the point was reached.
    ///
    /// Wraps [`cuEventQuery`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html), for a fence of an event; a word is
    /// read without a call.
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`] if it never will be; [`Error::Driver`], [`Error::Forked`].
    pub fn is_complete(&self) -> Result<bool> {
        match &self.kind {
            Kind::Event(event) => event.is_complete(),
            Kind::Word { line, generation } => line.reached(*generation),
        }
    }

    /// Has the calling thread wait for the fence, for at most `limit` if one is given.
    ///
    /// Wraps [`cuEventSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html) without a limit; otherwise
    /// asks again and again.
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`], [`Error::Poisoned`]; [`Error::Driver`], [`Error::Forked`].
    pub fn synchronize(&self, limit: Option<Duration>) -> Result<()> {
        if let (Kind::Event(event), None) = (&self.kind, limit) {
            return event.synchronize();
        }
        let start = Instant::now();
        let mut pause = Duration::from_micros(1);
        while !self.is_complete()? {
            let waited = start.elapsed();
            if let Some(limit) = limit.filter(|limit| waited >= *limit) {
                return Err(Error::Timeout(limit));
            }
            // Short waits stay fast, long ones cost little.
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_micros(200));
        }
        Ok(())
    }
}

impl FenceLine {
    /// A line with no fence reached or open, on two words of pinned memory ([`PinnedBuffer::zeroed`]).
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device's streams cannot wait for 64-bit words; those of [`PinnedBuffer::zeroed`].
    pub fn new(context: &Context) -> Result<Self> {
        refuse_forked()?;
        stream_mem::expect_supported(context.device())?;
        let words = PinnedBuffer::zeroed(context, 2, PinnedFlags::PORTABLE | PinnedFlags::MAPPED)?;
        let address = device_address(context, words.as_ptr())?;
        let line = Line { words, address, issued: Mutex::default() };
        Ok(Self { line: Arc::new(line) })
    }

    /// A fence that is reached when everything that `stream` was given so far is done. Fences of one line are reached in the
    /// order in which they were recorded, whatever streams they are on.
    ///
    /// Wraps [`cuStreamWriteValue64`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEMOP.html). Ordered on
    /// `stream`, which waits for the line's last fence if that is on another stream.
    ///
    /// # Capture
    ///
    /// [`Error::Capturing`] if the stream captures.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`] if the line is; [`Error::ForeignContext`], [`Error::Driver`], [`Error::WrongThread`],
    /// [`Error::Forked`].
    pub fn record(&self, stream: &Stream) -> Result<Fence> {
        refuse_forked()?;
        let line = &self.line;
        stream.refuse_capturing("FenceLine::record")?;
        let mut issued = line.issued.lock().unwrap_or_else(PoisonError::into_inner);
        line.refuse_poisoned()?;
        let last = issued.generation;
        // 2^62 fences do not come to pass; they stay below the poison.
        let generation = last.saturating_add(1);
        line.enqueue(stream, |address| {
            if issued.writer.is_some_and(|writer| writer != stream.id()) {
                // For the word and not for an event, so that poison lets this stream go as well.
                // SAFETY: the line's word, which `enqueue` keeps allocated for the stream.
                unsafe { stream_mem::wait_value64(stream, address, last, WaitFlags::empty()) }?;
            }
            // SAFETY: as above.
            unsafe { stream_mem::write_value64(stream, address, generation) }
        })?;
        *issued = Issued { generation, writer: Some(stream.id()) };
        Ok(Fence { kind: Kind::Word { line: Arc::clone(line), generation } })
    }

    /// Completes every fence of the line, those to come too, as never reached: streams that wait go on, and whoever asks gets
    /// [`Error::Poisoned`].
    pub fn poison(&self) {
        self.line.poison();
    }
}

impl Line {
    /// Puts what `operation` does with the word into `stream`, and has the memory outlive it.
    fn enqueue(&self, stream: &Stream, operation: impl FnOnce(CUdeviceptr) -> Result<()>) -> Result<()> {
        if self.words.context().driver() != stream.driver() {
            return Err(Error::ForeignContext { what: "the stream" });
        }
        let open = self.words.note(stream)?;
        operation(self.address)?;
        open.end()
    }

    fn reached(&self, generation: u64) -> Result<bool> {
        refuse_forked()?;
        let word = self.word(0).load(Ordering::SeqCst);
        self.refuse_poisoned()?;
        // As the device compares: the difference as a signed number.
        Ok(word.wrapping_sub(generation).cast_signed() >= 0)
    }

    fn refuse_poisoned(&self) -> Result<()> {
        if self.word(1).load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        // A writer that lives on after the poison moves the word back, and whoever waits would wait again.
        self.word(0).store(POISON, Ordering::SeqCst);
        Err(Error::Poisoned)
    }

    fn poison(&self) {
        if fork::forked() {
            // Pinned memory is the parent's too.
            return;
        }
        self.word(1).store(1, Ordering::SeqCst);
        // After the flag: whoever sees the word must see why.
        self.word(0).store(POISON, Ordering::SeqCst);
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        let words = self.words.as_ptr().cast::<u64>();
        // SAFETY: the buffer has two words, and `index` is 0 or 1 at each call.
        let word = unsafe { words.add(index) };
        // SAFETY: aligned, initialised, and alive as long as `self`; host and device only ever access it atomically, 64 bits
        // at a time.
        unsafe { AtomicU64::from_ptr(word.cast_mut()) }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        // Streams may still wait for a fence that nobody will reach now: let them go, so that the words' own drop, which waits
        // for those streams, ends.
        self.poison();
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("word", &self.word(0).load(Ordering::Relaxed)).finish_non_exhaustive()
    }
}

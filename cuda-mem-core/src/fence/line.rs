//! A row of fences on one word.
//!
//! # Safety
//!
//! Relies on the words of a line staying allocated while any of its fences or any stream can still touch them: fences hold the
//! line, and the line's words know the streams that were told of them, as any pinned buffer's do.

#![allow(unsafe_code, reason = "has streams write and wait for words")]

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use cuda_mem_sys::CUdeviceptr;

use super::memory::{Issued, LAST, Memory, Word, let_go};
use super::{Fence, Kind};
use crate::driver::{Context, Event, LateReports, fork, refuse_forked};
use crate::error::{Error, Result};
use crate::host::{HostMemory, PinnedBuffer, PinnedFlags};
use crate::pointer::device_address;
use crate::stream::Stream;
use crate::stream::idle::WhenIdle;
use crate::stream::stream_mem::{self, WaitFlags};

/// A row of fences on one word in host memory, each a generation: reached when the word has come that far.
///
/// The word is written and waited for by stream memory operations, in pinned memory of this process
/// ([`FenceLine::new`]) or in memory that another process maps too ([`SharedWords`](super::SharedWords)).
///
/// A stream that waits for a word occupies one of the device's few hardware queues; eight such waits hold up other streams too
/// (seen on hardware). Record before you wait. [`Fence`] has an example.
#[derive(Debug, Clone)]
pub struct FenceLine {
    line: Arc<Line>,
}

/// The next fence of a line, which the calling thread records. [`FenceLine::reserve`] has an example.
#[derive(Debug)]
#[must_use = "other threads wait for it to be recorded or dropped"]
pub struct ReservedFence<'l> {
    line: &'l Arc<Line>,
    /// Locked, so that no other thread records a fence in between.
    issued: MutexGuard<'l, Issued>,
    last: u64,
    generation: u64,
    is_announced: bool,
}

pub(super) struct Line {
    memory: Memory,
}

impl FenceLine {
    /// A line with no fence reached or open, on two words of pinned memory ([`PinnedBuffer::zeroed`]).
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device's streams cannot wait for 64-bit words; those of [`PinnedBuffer::zeroed`].
    pub fn new(context: &Context) -> Result<Self> {
        refuse_forked()?;
        stream_mem::expect_supported(context.device())?;
        let words = PinnedBuffer::zeroed(context, 2, PinnedFlags::PORTABLE | PinnedFlags::MAPPED)?;
        let address = device_address(context, words.as_ptr())?;
        Ok(Self::over(Memory::own(words, address)))
    }

    pub(super) fn over(memory: Memory) -> Self {
        Self { line: Arc::new(Line { memory }) }
    }

    /// A fence that is reached when everything that `stream` was given so far is done. Fences of one line are reached in the
    /// order in which they were recorded, whatever streams they are on.
    ///
    /// A line in shared memory is recorded on in one process only.
    ///
    /// Wraps [`cuStreamWriteValue64`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEMOP.html), before which the
    /// device makes all earlier writes of the stream visible, to the host and to other devices too. Ordered on
    /// `stream`, which waits for the line's last fence if that is on another stream: for the word, and in shared memory for an event
    /// ([`cuEventRecord`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html)), which no other process can take back.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`] if the line is; [`Error::OtherStream`] behind another stream's fence without an event.
    pub fn record(&self, stream: &Stream) -> Result<Fence> {
        self.reserve()?.record(stream)
    }

    /// The number that the line's next fence will have, so that another process can prepare for the fence while the driver records it.
    /// Until the result is recorded or dropped, other calls that record on this line wait: for ever, if they are of the same thread or the
    /// result is forgotten.
    ///
    /// A stream that waits for a fence which its own process is about to record may hold up the recording stream, in the same hardware
    /// queue: tell other processes only.
    ///
    /// ```
    /// use cuda_mem_core::{Driver, FenceLine, Stream};
    ///
    /// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
    /// let context = driver.device(0)?.primary_context()?;
    /// let (line, stream) = (FenceLine::new(&context)?, Stream::new(&context)?);
    /// let mut reserved = line.reserve()?;
    /// let announced = reserved.announce(); // the number, for the process that is to wait
    /// let fence = reserved.record(&stream)?;
    /// assert_eq!(fence.generation(), Some(announced));
    /// # Ok::<(), cuda_mem_core::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`] if the line is.
    pub fn reserve(&self) -> Result<ReservedFence<'_>> {
        self.reserve_above(0)
    }

    /// As [`FenceLine::reserve`], with a number above `least`, so that a late fence of a word's last user completes none of the next one's.
    pub fn reserve_above(&self, least: u64) -> Result<ReservedFence<'_>> {
        refuse_forked()?;
        let line = &self.line;
        let issued = line.memory.issued();
        line.refuse_poisoned()?;
        // Shared memory may have seen a writer before this process.
        let seen = line.memory.word(Word::Generation).load(Ordering::SeqCst);
        let last = if seen > LAST { issued.generation } else { issued.generation.max(seen) };
        // 2^62 fences do not come to pass; they stay below the poison.
        let generation = last.max(least).saturating_add(1).min(LAST);
        Ok(ReservedFence { line, issued, last, generation, is_announced: false })
    }

    /// The fence that the process at the other end of a shared line has recorded, by its [`Fence::generation`].
    ///
    /// The number is checked, but not whether the other end will ever come to it: a process that waits should be ready to
    /// [`poison`](FenceLine::poison) the line when that end has died.
    ///
    /// # Errors
    ///
    /// [`Error::NotAccepted`] for a number that no fence has.
    pub fn fence(&self, generation: u64) -> Result<Fence> {
        refuse_forked()?;
        if generation == 0 || generation > LAST {
            let (value, last) = (usize::try_from(generation), usize::try_from(LAST));
            return Err(Error::NotAccepted {
                option: "the generation of a fence",
                value: value.unwrap_or(usize::MAX),
                accepted: 1..=last.unwrap_or(usize::MAX),
            });
        }
        Ok(Fence { kind: Kind::Word { line: Arc::clone(&self.line), generation } })
    }

    /// Completes every fence of the line, those to come too, as never reached: streams that wait go on, and calls on the line get
    /// [`Error::Poisoned`], in every process that has the line.
    ///
    /// A writer that was given its fence before moves the word back. A stream that comes to its wait after that goes on with the next call
    /// that asks about the line ([`FenceLine::is_poisoned`], [`Fence::is_complete`]), or when the line is dropped: ask before the host waits
    /// for such a stream, and again as long as it does.
    pub fn poison(&self) {
        self.line.poison();
    }

    /// Whether the line was poisoned, by whichever end.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        !fork::forked() && self.line.memory.is_poisoned()
    }
}

impl ReservedFence<'_> {
    /// Its number. It stands for the next fence too if this one is not recorded.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Its number, to be sent to another process. If it is not recorded after this, the line is poisoned: the next fence would have
    /// the number, and would complete waits for this one.
    pub fn announce(&mut self) -> u64 {
        self.is_announced = true;
        self.generation
    }

    /// As [`FenceLine::record`].
    pub fn record(self, stream: &Stream) -> Result<Fence> {
        self.record_counted(stream).1
    }

    /// As [`FenceLine::record`], and whether the word was written or may be: an error may come from behind the write.
    pub fn record_counted(mut self, stream: &Stream) -> (bool, Result<Fence>) {
        // The last handle to a stream may go with an earlier use of the words, and the program's hook may record here.
        let (_reports, mut replaced) = (LateReports::new(), None);
        let recorded = self.record_late(stream, &mut replaced);
        let counts = self.issued.generation == self.generation;
        // Before what was replaced: the last handle to a context may go with it.
        drop(self);
        (counts, recorded)
    }

    fn record_late(&mut self, stream: &Stream, replaced: &mut Option<Event>) -> Result<Fence> {
        const CALL: &str = "FenceLine::record";
        let (line, generation) = (self.line, self.generation);
        line.enqueue(stream, CALL, |address| {
            line.order(stream, address, &self.issued, self.last)?;
            stream.refuse_capturing(CALL)?;
            // SAFETY: the line's word, which `enqueue` keeps allocated for the stream.
            unsafe { stream_mem::write_value64(stream, address, generation) }?;
            // Also if there is no event: the word will come to this number.
            let written = Issued { generation, writer: Some(stream.id()), behind: None };
            *replaced = std::mem::replace(&mut *self.issued, written).behind;
            Ok(())
        })?;
        if let Memory::Shared { of_one_stream: false, .. } = line.memory {
            // For `Line::order` of the next stream. Without one there is the fence all the same.
            self.issued.behind = stream.point("FenceLine::record").ok();
        }
        self.is_announced = false;
        Ok(Fence { kind: Kind::Word { line: Arc::clone(line), generation } })
    }
}

impl Drop for ReservedFence<'_> {
    fn drop(&mut self) {
        if self.is_announced {
            // Before the lock goes.
            self.line.poison();
        }
    }
}

impl Line {
    /// Puts what `operation` does with the word into `stream`, and has the memory outlive it.
    pub(super) fn enqueue(
        &self,
        stream: &Stream,
        call: &'static str,
        operation: impl FnOnce(CUdeviceptr) -> Result<()>,
    ) -> Result<()> {
        self.memory.driver().expect_same(stream.driver(), "the stream")?;
        stream.refuse_capturing(call)?;
        let open = self.memory.note(stream)?;
        operation(self.memory.address())?;
        open.end()?;
        stream.spoil_capture(call)
    }

    /// Has `stream` wait for the line's last fence, if that is on another stream.
    fn order(&self, stream: &Stream, address: CUdeviceptr, issued: &Issued, last: u64) -> Result<()> {
        if issued.writer.is_none_or(|writer| writer == stream.id()) {
            return Ok(());
        }
        if let Memory::Own(_) = self.memory {
            // For the word and not for an event, so that poison lets this stream go as well.
            // SAFETY: the line's word, which `enqueue` keeps allocated for the stream.
            return unsafe { stream_mem::wait_value64(stream, address, last, WaitFlags::empty()) };
        }
        // Another process can take back what the word had come to.
        match (&issued.behind, &self.memory) {
            (Some(behind), _) => stream.wait_uncaptured(behind),
            // The driver refused it.
            (None, Memory::Shared { of_one_stream: false, .. }) if self.memory.has_come_to(last) => Ok(()),
            (None, _) => Err(Error::OtherStream),
        }
    }

    pub(super) fn reached(&self, generation: u64) -> Result<bool> {
        refuse_forked()?;
        let reached = self.memory.has_come_to(generation);
        self.refuse_poisoned()?;
        Ok(reached)
    }

    /// A stream was made to wait for a generation.
    pub(super) fn note_awaited(&self, generation: u64) {
        self.memory.state().awaited.fetch_max(generation, Ordering::SeqCst);
    }

    fn refuse_poisoned(&self) -> Result<()> {
        if self.memory.is_poisoned() { Err(Error::Poisoned) } else { Ok(()) }
    }

    fn poison(&self) {
        // The parent's memory is the parent's.
        if !fork::forked() {
            self.memory.poison();
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if fork::forked() || matches!(self.memory, Memory::Shared { .. }) {
            return;
        }
        // Streams may still wait for a fence that nobody will reach now: let them go, so that the words' own drop, which
        // waits for those streams, ends. Who goes with shared words does so for all lines at once.
        self.memory.poison();
        let driver = self.memory.driver();
        if let Memory::Own(own) = &mut self.memory {
            // So that it is dropped here, and not by a thread that is looking whether it is awaited.
            driver.service::<WhenIdle>().forget(own);
            let_go(own);
        }
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.memory.word(Word::Generation).load(Ordering::Relaxed);
        f.debug_struct("Line").field("word", &word).finish_non_exhaustive()
    }
}

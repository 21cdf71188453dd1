//! The order of streams: points in them, who waits for those, and waits on the host.
//!
//! # Safety
//!
//! Relies on a [`Stream`] existing as long as its value, and on events being destroyed only after the calls that name them: whoever
//! calls here has both.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::thread;
use std::time::Duration;

use cuda_mem_sys::CUresult;

use super::{Stream, is_capturing};
use crate::capture::Relaxed;
use crate::error::{Error, Result, call, query};
use crate::event::Event;

/// So many waits in a row that fail, without a capture in the way, are taken for a lost context.
const REFUSALS: u32 = 16;

impl Stream {
    /// Has the driver remember this point in `event`.
    ///
    /// Wraps [`cuEventRecord`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html). Ordered on this stream;
    /// the host waits for nothing.
    ///
    /// # Capture
    ///
    /// Becomes part of the graph if the stream captures.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignContext`], [`Error::WrongThread`], [`Error::Driver`], [`Error::Forked`].
    pub fn record(&self, event: &Event) -> Result<()> {
        self.context().expect_same(event.context(), "the event")?;
        let entered = self.enter()?;
        // SAFETY: a live event and a live stream of the same context.
        unsafe { call!(self.driver(), cuEventRecord(event.handle(), entered.raw())) }
    }

    /// Has this stream's later work wait for `event`.
    ///
    /// Wraps [`cuStreamWaitEvent`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html). The wait is for the
    /// point that the event stands for now. The host waits for nothing; the event may be of another device of the driver.
    ///
    /// # Capture
    ///
    /// An event recorded in a capture draws this stream into it; a capturing stream cannot wait for any other.
    ///
    /// # Errors
    ///
    /// [`Error::ForeignContext`] for another driver's event, [`Error::WrongThread`], [`Error::Driver`], [`Error::Forked`].
    pub fn wait(&self, event: &Event) -> Result<()> {
        self.lend();
        self.wait_uncaptured(event)
    }

    /// As [`Stream::wait`], for an event that no capture has.
    pub(crate) fn wait_uncaptured(&self, event: &Event) -> Result<()> {
        if event.context().driver() != self.driver() {
            return Err(Error::ForeignContext { what: "the event" });
        }
        let entered = self.enter()?;
        // SAFETY: a live event and a live stream of the same driver; no flags.
        unsafe { call!(self.driver(), cuStreamWaitEvent(entered.raw(), event.handle(), 0)) }
    }

    /// Has this stream's later work wait for everything that `other` has been given so far.
    ///
    /// Wraps [`cuEventRecord`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html) and
    /// [`cuStreamWaitEvent`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html). Costs an event for a
    /// moment, which is taken from a pool. The host waits for nothing.
    ///
    /// # Capture
    ///
    /// [`Error::Capturing`] if either stream captures: this one would be drawn into the graph of `other`, or its own graph
    /// would fail. Inside a capture, streams are joined with [`Stream::record`] and [`Stream::wait`].
    ///
    /// # Errors
    ///
    /// [`Error::ForeignContext`] for another driver's stream, [`Error::WrongThread`], [`Error::Driver`], [`Error::Forked`].
    pub fn wait_stream(&self, other: &Self) -> Result<()> {
        if self.id() == other.id() && self.context() == other.context() {
            return Ok(());
        }
        if other.driver() != self.driver() {
            return Err(Error::ForeignContext { what: "the other stream" });
        }
        self.refuse_capturing("Stream::wait_stream")?;
        let event = other.point("Stream::wait_stream")?;
        self.wait_uncaptured(&event)
    }

    /// Waits until everything that the stream was given is done. Blocks the calling thread.
    ///
    /// Wraps [`cuStreamSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html).
    ///
    /// # Capture
    ///
    /// Fails while the stream captures, and the capture with it.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], also with the code of earlier work that failed; [`Error::WrongThread`], [`Error::Forked`].
    pub fn synchronize(&self) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver())?;
        self.wait_until_idle()
    }

    fn wait_until_idle(&self) -> Result<()> {
        let entered = self.enter()?;
        // SAFETY: a live stream.
        unsafe { call!(self.driver(), cuStreamSynchronize(entered.raw())) }
    }

    /// Whether everything that the stream was given is done.
    ///
    /// Wraps [`cuStreamQuery`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html).
    ///
    /// # Capture
    ///
    /// Fails while the stream captures, and the capture with it.
    ///
    /// # Errors
    ///
    /// As [`Stream::synchronize`].
    pub fn is_idle(&self) -> Result<bool> {
        let entered = self.enter()?;
        let _relaxed = Relaxed::enter(self.driver())?;
        // SAFETY: a live stream.
        unsafe { query!(self.driver(), cuStreamQuery(entered.raw())) }
    }

    /// Whether the stream records a graph instead of running its work.
    ///
    /// Wraps [`cuStreamIsCapturing`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html). An invalidated
    /// capture counts until it is ended. The legacy stream counts as capturing while a blocking stream of its context does.
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::WrongThread`], [`Error::Driver`], [`Error::Forked`].
    pub fn is_capturing(&self) -> Result<bool> {
        let entered = self.enter()?;
        is_capturing(self.driver(), entered.raw())
    }

    /// [`Error::Capturing`] for `call` if the stream captures.
    pub(crate) fn refuse_capturing(&self, call: &'static str) -> Result<()> {
        if self.is_capturing()? { Err(Error::Capturing { call }) } else { Ok(()) }
    }

    /// Waits until nothing runs any more that the stream was given before, for callers whose memory is at stake. See
    /// [`until_quiet`] for what the result means.
    pub(crate) fn drain(&self) -> Result<()> {
        // Without the relaxed mode somebody's capture may fail, but the memory is still safe.
        let _relaxed = Relaxed::enter(self.driver()).ok();
        self.drain_relaxed()
    }

    /// As [`Stream::drain`], for callers in the relaxed capture mode.
    pub(crate) fn drain_relaxed(&self) -> Result<()> {
        until_quiet(self, || self.wait_until_idle())
    }
}

/// Waits in one way, and if that fails for all that the stream was given, until nothing of it can run any more.
///
/// `Ok` and `Err` both mean that: an `Err` is the first failure of a wait, or says how the work or the context was lost. While
/// a capture that somebody began meanwhile keeps the stream from being waited for, this waits for the capture's end.
pub(crate) fn until_quiet(stream: &Stream, wait: impl Fn() -> Result<()>) -> Result<()> {
    let mut first = None;
    let mut refusals = 0;
    let mut pause = Duration::from_micros(10);
    loop {
        let waited = wait().or_else(|error| match stream.wait_until_idle() {
            // Another thread's default stream cannot be waited for as a whole: what counts is why the wait failed.
            Err(Error::WrongThread) => Err(error),
            // Its owner may have destroyed it, and what it was given runs on.
            Err(Error::Disowned) => stream.context().synchronize(),
            waited => waited,
        });
        match waited {
            Ok(()) => return first.map_or(Ok(()), Err),
            Err(Error::Driver(error)) if error.context_is_lost() => return Err(first.unwrap_or(error.into())),
            Err(error) => {
                let captured = matches!(&error, Error::Driver(error) if error.is_capture());
                // In a host function the driver refuses because of where it is asked, and everything runs on.
                let elsewhere = error.code() == Some(CUresult::CUDA_ERROR_NOT_PERMITTED);
                first.get_or_insert(error);
                // A driver that keeps refusing to wait, without a capture, has lost the context: see docs/soundness.md.
                refusals = if captured || elsewhere { 0 } else { refusals + 1 };
                if refusals == REFUSALS {
                    return first.map_or(Ok(()), Err);
                }
            }
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}

//! The order of streams: points in them, who waits for those, and waits on the host.
//!
//! # Safety
//!
//! Relies on a [`Stream`] existing as long as its value, and on events being destroyed only after the calls that name them: whoever
//! calls here has both.

#![allow(unsafe_code, reason = "calls driver functions")]

use super::idle::WhenIdle;
use super::quiet::{Quiet, until_quiet};
use super::{Stream, is_capturing};
use crate::driver::{Context, Event, LateReports, Relaxed, fork, refuse_forked};
use crate::error::{Error, Result, call, query};

impl Stream {
    /// Has the driver remember this point in `event`.
    ///
    /// Wraps [`cuEventRecord`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html). Ordered on this stream;
    /// the host waits for nothing.
    ///
    /// # Capture
    ///
    /// Becomes part of the graph if the stream captures. The event is the capture's then until it is recorded outside one: other
    /// streams join the capture by [`Stream::join_capture`]. [`Error::Capturing`] for a legacy stream beside the capture of a blocking one.
    pub fn record(&self, event: &Event) -> Result<()> {
        self.context().expect_same(event.context(), "the event")?;
        if self.is_legacy() {
            // Asked and not tried: there the mere mention of it ends the capture.
            self.refuse_capturing("Stream::record")?;
        }
        let entered = self.enter()?;
        // Nobody is made to wait for the event before it is known whether a capture has it.
        let mut is_captured = event.set_captured();
        // SAFETY: a live event and a live stream of the same context.
        let recorded = unsafe { call!(self.driver(), cuEventRecord(event.handle(), entered.raw())) };
        // Asked behind the record: a capture that began before it has the event.
        let asked = if self.may_capture() { is_capturing(self.driver(), entered.raw()) } else { Ok(false) };
        *is_captured = *asked.as_ref().unwrap_or(&true) || (recorded.is_err() && *is_captured);
        recorded.and(asked.map(drop))
    }

    /// Has this stream's later work wait for `event`.
    ///
    /// Wraps [`cuStreamWaitEvent`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html). The wait is for the
    /// point that the event stands for now. The host waits for nothing; the event may be of another device of the driver.
    ///
    /// # Capture
    ///
    /// [`Error::Capturing`] for an event that was recorded in a capture: this stream would be drawn into it
    /// ([`Stream::join_capture`]); and if this stream captures, which cannot wait for any other event.
    pub fn wait(&self, event: &Event) -> Result<()> {
        refuse_forked()?;
        if event.is_lent() {
            self.lend();
        }
        let _reports = LateReports::new();
        let is_captured = event.is_captured();
        if *is_captured || (self.is_lent() && self.is_capturing()?) {
            return Err(Error::Capturing { call: "Stream::wait" });
        }
        self.wait_uncaptured(event)
    }

    /// Has this stream take part in the capture in which `event` was recorded: what it is given from here on is part of the graph, until
    /// the capture ends.
    ///
    /// Wraps [`cuStreamWaitEvent`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html).
    ///
    /// # Capture
    ///
    /// The stream captures afterwards. An event of no capture is waited for, which ends a capture of this stream: [`Stream::wait`] refuses that.
    ///
    /// # Errors
    ///
    /// As [`Stream::wait`], but for [`Error::Capturing`].
    ///
    /// # Safety
    ///
    /// No other thread is in a call that gives this stream work. The caller answers for the memory that the graph uses, as a caller that begins
    /// a capture does.
    pub unsafe fn join_capture(&self, event: &Event) -> Result<()> {
        self.lend();
        self.wait_uncaptured(event)
    }

    /// As [`Stream::wait`], for an event that no capture has.
    pub(crate) fn wait_uncaptured(&self, event: &Event) -> Result<()> {
        self.driver().expect_same(event.context().driver(), "the event")?;
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
    /// would fail. Inside a capture, streams are joined with [`Stream::record`] and [`Stream::join_capture`].
    pub fn wait_stream(&self, other: &Self) -> Result<()> {
        if self == other {
            return Ok(());
        }
        self.driver().expect_same(other.driver(), "the other stream")?;
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
    pub fn synchronize(&self) -> Result<()> {
        let _relaxed = Relaxed::enter(self.driver())?;
        self.wait_until_idle()
    }

    pub(super) fn wait_until_idle(&self) -> Result<()> {
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
    /// Fails while the stream captures, and the capture with it. Errors: as [`Stream::synchronize`].
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
    pub fn is_capturing(&self) -> Result<bool> {
        let entered = self.enter()?;
        let captures = is_capturing(self.driver(), entered.raw())?;
        if self.is_guest() {
            self.driver().service::<WhenIdle>().streams.note_guest(&self.inner, captures);
        }
        Ok(captures)
    }

    /// [`Error::Capturing`] for `call` if the stream captures. A stream that nobody else can have capture is not asked.
    pub(crate) fn refuse_capturing(&self, call: &'static str) -> Result<()> {
        self.refuse_other_threads()?;
        if self.is_lent() && self.is_capturing()? { Err(Error::Capturing { call }) } else { Ok(()) }
    }

    /// To be called right behind a call that gave the stream memory, and [`Stream::refuse_capturing`] right before it:
    /// [`Error::Capturing`] if somebody else has begun a capture in between. The capture is invalidated, so that no graph has the memory.
    pub(crate) fn spoil_capture(&self, call: &'static str) -> Result<()> {
        if !self.may_capture() || !self.is_capturing()? {
            return Ok(());
        }
        // Refused, and the capture with it (CUDA C++ Programming Guide, "Prohibited and Unhandled Operations").
        let _ = self.wait_until_idle();
        Err(Error::Capturing { call })
    }

    /// Waits until nothing runs any more that the stream was given before, for callers whose memory is at stake.
    pub(crate) fn drain(&self) -> Quiet {
        // Without the relaxed mode somebody's capture may fail, but the memory is still safe.
        let _relaxed = Relaxed::enter(self.driver()).ok();
        self.drain_relaxed()
    }

    /// As [`Stream::drain`], for callers in the relaxed capture mode.
    pub(crate) fn drain_relaxed(&self) -> Quiet {
        until_quiet(self, || self.wait_until_idle())
    }
}

impl Context {
    /// Waits until the streams that are known here have done all that they were given by now. A capture that begins meanwhile stays as it
    /// is, in whichever thread and mode, as [`Context::synchronize`] leaves none.
    ///
    /// Not waited for are default streams of threads, [guests](Stream::guest), and streams that others made and never
    /// [lent](crate::Driver::registrations_left).
    ///
    /// Wraps [`cuEventRecord` and `cuEventSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html) for each.
    ///
    /// ```
    /// use cuda_mem_core::{DeviceBuffer, Driver, Stream};
    ///
    /// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
    /// let stream = Stream::new(&context)?;
    /// let buffer = DeviceBuffer::<u8>::zeroed(&stream, 1 << 20)?;
    /// context.wait_for_streams()?;
    /// assert!(stream.is_idle()?);
    /// # Ok::<(), cuda_mem_core::Error>(())
    /// ```
    ///
    /// # Capture
    ///
    /// [`Error::Capturing`] while one of them captures, or a guest did when it was last asked; its capture goes on.
    pub fn wait_for_streams(&self) -> Result<()> {
        self.driver().service::<WhenIdle>().streams.wait_in(self)
    }

    /// Says that the captures of [guests](Stream::guest) of the context have ended that were seen so far: a guest that is gone cannot be
    /// asked. One that goes on ends by the next [`Context::point`], unless its stream is asked before.
    pub fn forget_guests_captures(&self) {
        if !fork::forked() {
            self.driver().service::<WhenIdle>().streams.forget_captures(self);
        }
    }

    /// An event behind all that the context was given so far, on whichever stream, also on streams that no thread can name any more.
    ///
    /// Wraps [`cuCtxRecordEvent`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__CTX.html). With a driver before 12.5, which has no
    /// such function, the calling thread waits for the context.
    ///
    /// # Capture
    ///
    /// [`Error::Capturing`] while a stream captures that was [lent](crate::Driver::registrations_left) or is blocking, or the calling thread's
    /// default stream, or a [guest](Stream::guest) did when it was last asked. Captures on others end, whatever their mode and whichever thread's.
    pub fn point(&self) -> Result<Event> {
        refuse_forked()?;
        if self.driver().service::<WhenIdle>().streams.captures_in(self)? {
            return Err(Error::Capturing { call: "Context::point" });
        }
        if self.driver().table().cuCtxRecordEvent().is_err() {
            self.synchronize()?;
            // One that was never recorded has been reached.
            return Event::new(self);
        }
        let _bound = self.bind()?;
        let event = Event::pooled(self)?;
        // SAFETY: a live event of a live context.
        unsafe { call!(self.driver(), cuCtxRecordEvent(self.as_raw().cast(), event.handle())) }?;
        Ok(event)
    }
}

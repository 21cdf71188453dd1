//! Uses that outlive their owner: as points in streams, and handed to the owner of a larger piece of memory.

use std::sync::Arc;
use std::time::Duration;

use cuda_mem_sys::CUdeviceptr;

use super::{Access, Entries, StreamUse, Use, Uses};
use crate::driver::{LateReports, Relaxed, fork, lock, refuse_forked};
use crate::error::{Result, expect_lost};
use crate::stream::{Mark, Stream, poll, until_quiet};

/// A point in a stream behind the uses of a piece of memory: who has all of them knows when the memory is quiet.
///
/// It can be asked and waited for from any thread, and while the stream captures. [`Uses`] has an example.
#[derive(Debug, Clone)]
pub struct UsePoint {
    stream: Stream,
    mark: Arc<Mark>,
}

impl Uses {
    /// No uses.
    #[inline]
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether no use was ever recorded. Makes no call and takes no lock.
    #[inline]
    #[must_use]
    pub fn is_empty(&mut self) -> bool {
        let entries = self.entries_mut();
        entries.writer.is_none() && entries.readers.is_empty()
    }

    /// The streams that entered.
    #[must_use]
    pub fn streams(&mut self) -> Vec<Stream> {
        self.entries_mut().iter().map(|entry| entry.stream.clone()).collect()
    }

    /// Orders `stream` behind the uses so far and enters it as a user of the memory at `address`, until the result is dropped.
    /// The host waits for nothing. Uses of the same stream alone take no call.
    ///
    /// Wraps [`cuEventRecord`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html) and
    /// [`cuStreamWaitEvent`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html) for each other stream.
    pub fn on<'u>(&'u self, address: CUdeviceptr, stream: &'u Stream) -> Result<StreamUse<'u>> {
        StreamUse::begin(address, self, stream, Access::Write)
    }

    /// Enters `stream` as a user for what it was given so far, without ordering it behind anything. Of one that was disowned
    /// ([`Stream::disown`]) that is what it was given by then.
    ///
    /// Takes a call for a per-thread default stream alone: [`cuEventRecord`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html),
    /// because no other thread can name that stream.
    pub fn record_stream(&self, stream: &Stream) -> Result<()> {
        let open = self.note(stream)?;
        // It may have written: later readers come behind it, too.
        let of_stream = |entry: &&mut Use| entry.stream.ends_with(stream);
        let note = |entry: &mut Use| (entry.wrote, entry.stays) = (true, true);
        lock(&self.entries).readers.iter_mut().filter(of_stream).for_each(note);
        open.end()
    }

    /// Orders `stream` behind all uses. The host waits for nothing, and `stream` does not become a user.
    ///
    /// Wraps [`cuEventRecord`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html) and
    /// [`cuStreamWaitEvent`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html) for each other stream.
    pub fn order(&self, stream: &Stream) -> Result<()> {
        refuse_forked()?;
        let _reports = LateReports::new();
        lock(&self.entries).make_wait(stream, Access::Write)
    }

    /// Waits until no use runs any more. Blocks the calling thread. Without uses no call is made.
    ///
    /// Wraps [`cuStreamQuery`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html) for a stream on which no other code may
    /// begin a capture ([`Uses::are_over`]), and [`cuEventSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html)
    /// for those that are busy then, and for all others.
    pub fn wait(&self) -> Result<()> {
        refuse_forked()?;
        // Waited for outside the lock: others may have to use the memory for the wait to end.
        let entries = lock(&self.entries).iter().cloned().collect::<Vec<_>>();
        entries.iter().try_for_each(Use::refuse_capturing)?;
        // All are waited for, whatever one of them fails with.
        entries.iter().map(Use::synchronize).fold(Ok(()), Result::and)
    }

    /// As [`Uses::wait`], for at most `limit`: asks again and again.
    ///
    /// Wraps what [`Uses::have_passed`] does.
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`](crate::Error::Timeout); as [`Uses::have_passed`].
    pub fn wait_for(&self, limit: Duration) -> Result<()> {
        refuse_forked()?;
        // Of a copy, for others may have to use the memory for the wait to end.
        let mut uses = self.copied();
        poll(Some(limit), || uses.have_passed())
    }

    /// A point behind the uses for each of their streams: an event of now or, for another thread's default stream, of the end of its last use. The host waits for nothing.
    ///
    /// Wraps [`cuEventRecord`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html).
    ///
    /// # Errors
    ///
    /// [`Error::WrongThread`](crate::Error::WrongThread) for a per-thread stream whose use has no point: it was never ended,
    /// or the driver refused. A later call in that thread may have it.
    pub fn points(&mut self) -> Result<Vec<UsePoint>> {
        let Entries { writer, readers } = self.entries_mut();
        writer.iter_mut().chain(readers).map(Use::point).collect()
    }

    /// Adds all of `other`: the uses of a part are uses of the whole. Makes no driver call unless there are many.
    pub(crate) fn absorb(&self, other: Self) {
        if fork::forked() {
            return;
        }
        let other = other.entries.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let _reports = LateReports::new();
        let mut entries = lock(&self.entries);
        let mut forgotten = entries.forget_done_readers();
        // A writer stays one: later readers are ordered behind it.
        let writer = other.writer.map(|writer| Use { wrote: true, ..writer });
        for entry in writer.into_iter().chain(other.readers) {
            // A stream without a point stands for all that it was given, so that once is enough.
            let Entries { writer, readers } = &mut *entries;
            let stands = |known: &&mut Use| known.event.is_none() && known.stream.ends_with(&entry.stream);
            match writer.iter_mut().chain(readers.iter_mut()).find(stands).filter(|_| entry.event.is_none()) {
                Some(known) => {
                    known.wrote |= entry.wrote;
                    forgotten.push(entry);
                }
                None => readers.push(Use { open: 0, stays: false, ..entry }),
            }
        }
        drop(entries);
        // Outside the lock, as in `begin`.
        drop(forgotten);
    }
}

impl Use {
    fn point(&mut self) -> Result<UsePoint> {
        let record = || Mark::of(|| self.stream.point("recording the end of a use")).map(Arc::new);
        let mark = match self.known_point().map(Arc::clone) {
            Some(known) if self.stream.is_per_thread() => match record() {
                // The known one is not behind what the stream was given since: this thread has to be asked once more.
                Err(error) if self.stays && !matches!(error, crate::Error::WrongThread) => {
                    self.event = None;
                    return Err(error);
                }
                recorded => recorded.unwrap_or(known),
            },
            known => known.map_or_else(record, Ok)?,
        };
        Ok(UsePoint { stream: self.stream.clone(), mark })
    }
}

impl UsePoint {
    /// The stream.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Whether it is known to be behind the other one in the same stream: a wait for this one is a wait for that. Of points
    /// that two threads recorded at the same time neither is known to be. Makes no call.
    ///
    /// ```
    /// use cuda_mem_core::{Driver, Stream, Uses};
    ///
    /// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
    /// let context = driver.device(0)?.primary_context()?;
    /// let (stream, other) = (Stream::new(&context)?, Stream::new(&context)?);
    /// let point = |stream: &Stream| {
    ///     let mut uses = Uses::new();
    ///     uses.record_stream(stream)?;
    ///     Ok::<_, cuda_mem_core::Error>(uses.points()?.remove(0))
    /// };
    /// let (first, second) = (point(&stream)?, point(&stream)?);
    /// assert!(second.is_behind(&first) && !first.is_behind(&second));
    /// assert!(!point(&other)?.is_behind(&first));
    /// # Ok::<(), cuda_mem_core::Error>(())
    /// ```
    #[must_use]
    pub fn is_behind(&self, other: &Self) -> bool {
        self.stream == other.stream
            && (Arc::ptr_eq(&self.mark, &other.mark) || self.mark.is_after(&other.mark))
    }

    /// Whether nothing before the point runs any more: it was reached, or its context is lost with all that ran there.
    ///
    /// Wraps [`cuEventQuery`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html).
    ///
    /// After an error nothing is known.
    pub fn is_reached(&self) -> Result<bool> {
        self.mark.event().is_complete().or_else(|error| expect_lost(error).map(|()| true))
    }

    /// Orders `stream` behind the point. The host waits for nothing, and nothing is called for the point's own stream.
    ///
    /// Wraps [`cuStreamWaitEvent`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html).
    pub fn order(&self, stream: &Stream) -> Result<()> {
        if stream.follows(&self.stream)? {
            return Ok(());
        }
        stream.refuse_capturing("ordering a use of memory")?;
        stream.wait_uncaptured(self.mark.event())
    }

    /// Waits until nothing before the point runs any more. Blocks the calling thread.
    ///
    /// Wraps [`cuEventSynchronize`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html).
    /// Behind [`Error::Driver`](crate::Error::Driver) nothing runs any more either: a wait failed at first, or the context was lost.
    pub fn wait(&self) -> Result<()> {
        refuse_forked()?;
        let _relaxed = Relaxed::enter(self.stream.driver()).ok();
        until_quiet(&self.stream, || self.mark.event().synchronize()).result()
    }
}

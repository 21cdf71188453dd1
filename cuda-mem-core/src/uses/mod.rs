//! Which streams have used a piece of memory since when.
//!
//! Not one last event but a set: two readers on two streams are two entries, and a free waits for both. An entry is the
//! stream itself, kept alive; an event is made only when another stream has to wait, and covers all that the stream was
//! given by then.

mod block;
mod points;

pub(crate) use block::{Block, Free};
pub use points::UsePoint;

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cuda_mem_sys::CUdeviceptr;

use crate::driver::{Event, LateReports, Relaxed, fork, lock, refuse_forked};
use crate::error::{Error, Result, expect_lost};
use crate::stream::{Mark, Stream, until_quiet};

/// What a stream that captures refuses.
const WAITING: &str = "waiting for uses of memory";

/// From so many readers on, those that are done are looked for and forgotten.
const PRUNE_FROM: usize = 32;

/// From so many on, those too whose streams may be given more work that counts: more streams than a program has for long.
const PRUNE_RECORDED_FROM: usize = 256;

/// The streams that use one piece of memory: before its owner gives the memory away, it waits for them, or has other streams
/// wait.
///
/// ```
/// use cuda_mem_core::{Driver, Stream, Uses};
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // in a program: Driver::system()?
/// let (first, second) = (Stream::new(&context)?, Stream::new(&context)?);
/// let mut uses = Uses::new();
/// drop(uses.on(0x1000, &first)?); // work of the first stream is enqueued while the result lives
/// drop(uses.on(0x1000, &second)?); // the second waits for the first, and stands for both from here on
/// assert_eq!(uses.points()?.len(), 1);
/// uses.wait()?;
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Uses {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
pub(crate) struct Entries {
    /// The last stream that wrote; it came after everything before but for uses that were open then.
    writer: Option<Use>,
    /// The streams that read since then.
    readers: Vec<Use>,
}

/// One stream's use.
#[derive(Debug, Clone)]
struct Use {
    stream: Stream,
    /// A point after the use: for a per-thread default stream, which no other thread can name, and for one that was asked about
    /// though somebody else may have it capture.
    event: Option<Arc<Mark>>,
    /// How many uses have begun and not ended: their work may be enqueued yet.
    open: usize,
    /// Whether it is what is left of a writer that was open when the next one began, which is not behind all of it.
    wrote: bool,
    /// Whether it was [recorded](Uses::record_stream): what the stream is given later counts too, until the points are taken.
    stays: bool,
}

/// How memory is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A use that has begun. What is put into the stream until it ends is known to all that come after.
#[derive(Debug)]
pub(crate) struct OpenUse<'u> {
    uses: &'u Uses,
    stream: &'u Stream,
}

/// A use of memory on a stream, from [`DeviceBuffer::on`](crate::DeviceBuffer::on) and its like: the address to hand to a kernel.
///
/// The stream is ordered behind the uses that came before, and later uses, the release among them, are ordered behind what
/// the stream is given while this lives. [`Uses`] has an example.
#[derive(Debug)]
#[must_use = "drop it after the work was enqueued"]
pub struct StreamUse<'b> {
    address: CUdeviceptr,
    /// Ends the use when it is dropped.
    _open: OpenUse<'b>,
    /// The end is marked in the thread that enqueued the work.
    _not_send: PhantomData<*mut ()>,
}

impl<'b> StreamUse<'b> {
    pub(crate) fn begin(
        address: CUdeviceptr,
        uses: &'b Uses,
        stream: &'b Stream,
        access: Access,
    ) -> Result<Self> {
        Ok(Self { address, _open: uses.begin(stream, access)?, _not_send: PhantomData })
    }

    /// The address on the device.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl Uses {
    /// The uses of memory that was just allocated on `stream`, for whom the allocation is the first: others wait for it.
    pub(crate) fn starting_on(stream: &Stream) -> Result<Self> {
        let needs_point = stream.is_per_thread();
        let open = usize::from(needs_point);
        let writer = Some(Use { stream: stream.clone(), event: None, open, wrote: false, stays: false });
        let uses = Self { entries: Mutex::new(Entries { writer, readers: Vec::new() }) };
        if needs_point {
            uses.end(stream)?;
        }
        Ok(uses)
    }

    /// Orders `stream` behind the uses that `access` has to wait for, and enters it as a user until the result is ended.
    pub(crate) fn begin<'u>(&'u self, stream: &'u Stream, access: Access) -> Result<OpenUse<'u>> {
        // Refuses a forked child before the lock, and a per-thread stream in a foreign thread.
        stream.refuse_other_threads()?;
        let _reports = LateReports::new();
        // What is left of a stream that is disowned must be behind the uses that it stands for from here on.
        let named = stream.named()?;
        let mut entries = lock(&self.entries);
        entries.make_wait(stream, access)?;
        let forgotten = entries.enter(stream, access, true);
        drop(entries);
        drop(named);
        // Outside the lock: the last handle to a stream may go here, and a failing release runs the program's hook.
        drop(forgotten);
        Ok(OpenUse { uses: self, stream })
    }

    /// Enters `stream` as a user without ordering it behind anything. One that was disowned counts with what it was given before.
    pub(crate) fn note<'u>(&'u self, stream: &'u Stream) -> Result<OpenUse<'u>> {
        stream.refuse_other_threads()?;
        let _reports = LateReports::new();
        let named = stream.named();
        let forgotten = lock(&self.entries).enter(stream, Access::Read, named.is_ok());
        drop((named, forgotten));
        Ok(OpenUse { uses: self, stream })
    }

    fn end(&self, stream: &Stream) -> Result<()> {
        let mark = || {
            // Not while it captures: the event would stand for a point of the graph, which nobody can wait for.
            if !stream.is_per_thread() || stream.is_capturing()? {
                return Ok(None);
            }
            let event = Event::pooled(stream.context())?;
            Ok(Some(Arc::new(Mark::of(|| stream.record(&event).map(|()| event))?)))
        };
        // Once more if need be: no other thread can do it for a thread's default stream. Without a point the next use's is behind this one.
        let (mut event, ended) = match mark().or_else(|_: Error| mark()) {
            Ok(event) => (event, Ok(())),
            Err(error) => (None, Err(error)),
        };
        let mut entries = lock(&self.entries);
        let Entries { writer, readers } = &mut *entries;
        let mut replaced = None;
        let is_it = |entry: &&mut Use| entry.open > 0 && entry.stream.ends_with(stream);
        if let Some(entry) = writer.iter_mut().chain(readers).find(is_it) {
            entry.open = entry.open.saturating_sub(1);
            // While another use is open the stream is given more, which this point is not behind.
            if entry.open == 0 {
                replaced = std::mem::replace(&mut entry.event, event.take());
            }
        }
        drop(entries);
        drop(replaced);
        ended
    }

    /// Whether no use runs any more. The host waits for nothing.
    ///
    /// Wraps [`cuStreamQuery`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html), for which work counts that a
    /// stream was given after its use. A stream on which other code may begin a capture
    /// ([`Stream::borrow_raw`](crate::Stream::borrow_raw), [`Stream::legacy`](crate::Stream::legacy),
    /// [`Stream::as_raw`](crate::Stream::as_raw), [`Stream::wait`](crate::Stream::wait)) is asked by an event, `cuEventQuery`,
    /// which is recorded behind its use by the first call: of an idle one that may say so some microseconds later.
    ///
    /// # Capture
    ///
    /// Leaves captures alone, also one that begins meanwhile. [`Error::Capturing`] if that cannot be known before one of the streams
    /// ends its capture.
    ///
    /// # Errors
    ///
    /// [`Error::WrongThread`] for a per-thread stream whose use has no point: it was never ended, or the driver refused.
    pub fn are_over(&mut self) -> Result<bool> {
        self.all(Use::is_over)
    }

    /// As [`Uses::are_over`], but work that a stream was given after the first question does not count: of a stream that is busy then, the
    /// first question records an event.
    ///
    /// Wraps [`cuStreamQuery`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html), and
    /// [`cuEventRecord`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__EVENT.html) and `cuEventQuery` for streams that are busy.
    pub fn have_passed(&mut self) -> Result<bool> {
        self.all(Use::has_passed)
    }

    /// The same uses once more. One that is open has its end when it is copied again.
    pub(crate) fn copied(&self) -> Self {
        let entries = lock(&self.entries);
        let copy = |entry: &Use| Use { open: 0, ..entry.clone() };
        let (writer, readers) =
            (entries.writer.as_ref().map(copy), entries.readers.iter().map(copy).collect());
        drop(entries);
        Self { entries: Mutex::new(Entries { writer, readers }) }
    }

    /// [`Error::Timeout`] while [`Uses::have_passed`] says no, for which a use that was lost with its context has passed too.
    pub(crate) fn expect_over(&mut self) -> Result<()> {
        let has_passed =
            |entry: &mut Use| entry.has_passed().or_else(|error| expect_lost(error).map(|()| true));
        if self.all(has_passed)? { Ok(()) } else { Err(Error::Timeout(Duration::ZERO)) }
    }

    /// As [`Uses::wait`] for who `waits`, and [`Uses::expect_over`] for others. What ran in a lost context is gone.
    pub(crate) fn settle(&mut self, waits: bool) -> Result<()> {
        if !waits {
            return self.expect_over();
        }
        self.wait().or_else(|error| expect_lost(error).and_then(|()| self.expect_over()))
    }

    fn entries_mut(&mut self) -> &mut Entries {
        self.entries.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&mut self, is_over: impl Fn(&mut Use) -> Result<bool>) -> Result<bool> {
        refuse_forked()?;
        let entries = self.entries_mut();
        for entry in entries.writer.iter_mut().chain(&mut entries.readers) {
            if !is_over(entry)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl OpenUse<'_> {
    /// Ends the use, after its work was enqueued.
    pub(crate) fn end(self) -> Result<()> {
        let ended = self.uses.end(self.stream);
        // Ended here, and not once more by the drop.
        let _ = std::mem::ManuallyDrop::new(self);
        ended
    }
}

impl Drop for OpenUse<'_> {
    fn drop(&mut self) {
        if fork::forked() {
            return;
        }
        if let Err(error) = self.uses.end(self.stream) {
            self.stream.driver().report_release_failure(&error);
        }
    }
}

impl Entries {
    fn iter(&self) -> impl Iterator<Item = &Use> {
        self.writer.iter().chain(&self.readers)
    }

    /// Orders `stream` behind the uses that `access` conflicts with.
    pub(crate) fn make_wait(&self, stream: &Stream, access: Access) -> Result<()> {
        let readers = if access == Access::Write { self.readers.as_slice() } else { &[] };
        let unfinished = if access == Access::Read { self.readers.as_slice() } else { &[] };
        let unfinished = unfinished.iter().filter(|entry| entry.wrote);
        self.writer.iter().chain(readers).chain(unfinished).try_for_each(|entry| entry.make_wait(stream))
    }

    /// Readers that are known to have ended, once there are many.
    fn forget_done_readers(&mut self) -> Vec<Use> {
        if self.readers.len() < PRUNE_FROM {
            return Vec::new();
        }
        let are_many = self.readers.len() >= PRUNE_RECORDED_FROM;
        // A point that is made here is not behind what such a stream is given later, if any other handle to it is left.
        let stays = |it: &Use| it.stays && !it.stream.is_left_to(1);
        let is_over = |it: &mut Use| if stays(it) { it.clone().is_over() } else { it.is_over() };
        let is_done = |it: &mut Use| it.open == 0 && (are_many || !stays(it)) && is_over(it).unwrap_or(false);
        self.readers.extract_if(.., is_done).collect()
    }

    /// Enters `stream`, which is ordered behind the uses that `access` conflicts with. Returns what need not be remembered
    /// any more. `is_named` says that it is not disowned before this has returned.
    fn enter(&mut self, stream: &Stream, access: Access, is_named: bool) -> Vec<Use> {
        let mut forgotten = Vec::new();
        if access == Access::Read {
            // Another value of its stream, which is not disowned, stands for it from now on: all its work is in the stream.
            let passes = |it: &Use| it.open == 0 && it.stream.is_borrowed() && it.stream == *stream;
            let goes_on = |entry: &&mut Use| entry.stream.ends_with(stream) || (is_named && passes(entry));
            if let Some(known) = self.writer.iter_mut().chain(&mut self.readers).find(goes_on) {
                known.open = known.open.saturating_add(1);
                // The old point no longer covers all of the stream's use.
                let event = known.event.take();
                if event.is_some() || !known.stream.ends_with(stream) {
                    let stream = std::mem::replace(&mut known.stream, stream.clone());
                    forgotten.push(Use { stream, event, open: 0, wrote: false, stays: false });
                }
                return forgotten;
            }
            forgotten = self.forget_done_readers();
            let (stream, event) = (stream.clone(), None);
            self.readers.push(Use { stream, event, open: 1, wrote: false, stays: false });
            return forgotten;
        }
        // The usual case, without a detour over the heap: memory that stays on one stream.
        if self.readers.is_empty()
            && let Some(writer) = &mut self.writer
            && writer.stream.ends_with(stream)
            && writer.event.is_none()
        {
            writer.open = writer.open.saturating_add(1);
            return forgotten;
        }
        // Everything that has ended is ordered before `stream` now, which stands for it. What is still open may get work
        // after this: it stays.
        let writer = self.writer.take().map(|writer| Use { wrote: true, ..writer });
        let before = writer.into_iter().chain(self.readers.drain(..)).collect::<Vec<_>>();
        let mut open = 1usize;
        for entry in before {
            if entry.stream.ends_with(stream) {
                open = open.saturating_add(entry.open);
                forgotten.push(entry);
            } else if entry.open > 0 {
                self.readers.push(entry);
            } else {
                forgotten.push(entry);
            }
        }
        self.writer = Some(Use { stream: stream.clone(), event: None, open, wrote: false, stays: false });
        forgotten
    }
}

impl Use {
    fn make_wait(&self, stream: &Stream) -> Result<()> {
        if stream.follows(&self.stream)? {
            return Ok(());
        }
        match self.known_point() {
            Some(event) => {
                // A capturing stream that is told to wait for a point outside its graph fails its capture.
                stream.refuse_capturing("ordering a use of memory")?;
                stream.wait_uncaptured(event.event())
            }
            // For another thread's default stream without a point this is an error: nobody can order anything behind it.
            None => stream.wait_stream(&self.stream),
        }
    }

    /// A point after the use, if there is one without a call.
    fn known_point(&self) -> Option<&Arc<Mark>> {
        self.event.as_ref().or_else(|| self.stream.last())
    }

    fn synchronize(&self) -> Result<()> {
        let own = match self.known_point() {
            // A capture that begins just now would end by a wait for the stream, which anybody may lend meanwhile, or
            // by one that names the legacy stream.
            None if !self.stream.is_per_thread() => {
                if let Ok(Some(true)) = self.stream.is_idle_unlent() {
                    return Ok(());
                }
                match self.stream.point(WAITING) {
                    Err(error @ Error::Capturing { .. }) => return Err(error),
                    own => own.ok(),
                }
            }
            _ => None,
        };
        match self.known_point().map(|mark| mark.event()).or(own.as_ref()) {
            Some(event) => {
                let _relaxed = Relaxed::enter(self.stream.driver()).ok();
                until_quiet(&self.stream, || event.synchronize()).result()
            }
            None => self.stream.drain().result(),
        }
    }

    fn refuse_capturing(&self) -> Result<()> {
        match self.known_point().map_or_else(|| self.stream.refuse_capturing(WAITING), |_| Ok(())) {
            // It is waited for with its context.
            Err(Error::Disowned) if self.stream.is_guest() => Ok(()),
            refused => refused,
        }
    }

    /// For a use that is not open. Asked for its work, a stream that has begun to capture would lose the capture: one that
    /// somebody else may have capture is asked by an event.
    fn is_over(&mut self) -> Result<bool> {
        if self.known_point().is_none()
            && let Some(is_idle) = self.stream.is_idle_unlent()?
        {
            return Ok(is_idle);
        }
        self.is_reached()
    }

    /// As [`Use::is_over`], by an event of a stream that is busy.
    fn has_passed(&mut self) -> Result<bool> {
        if self.known_point().is_none() && self.stream.is_idle_unlent()? == Some(true) {
            return Ok(true);
        }
        self.is_reached()
    }

    /// Whether its event was reached, which is recorded now if there is none.
    fn is_reached(&mut self) -> Result<bool> {
        if self.known_point().is_none() {
            let record = || self.stream.point("looking for the end of uses of memory");
            self.event = Some(Arc::new(Mark::of(record)?));
        }
        let answer = self.known_point().map_or(Ok(true), |mark| mark.event().is_complete());
        if answer.is_err() && !self.stream.is_per_thread() {
            // A capture may have had it that ended before it was noticed. It says nothing then; the next look records another.
            self.event = None;
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Driver;
    use cuda_mem_sim::Sim;

    /// The uses of a part are the whole's: a later reader waits for who wrote the part.
    #[test]
    fn a_writer_stays_a_writer_among_the_uses_of_a_larger_piece() {
        let sim = Sim::builder().record(true).build();
        let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
        let stream = || Stream::new(&context).unwrap();
        let (writer, also_reads, reader) = (stream(), stream(), stream());
        let part = |stream: &Stream| {
            let part = Uses::new();
            part.begin(stream, Access::Write).unwrap().end().unwrap();
            part
        };
        let whole = Uses::new();
        whole.absorb(part(&writer));
        whole.begin(&also_reads, Access::Read).unwrap().end().unwrap();
        let waits = || sim.log().count("cuStreamWaitEvent");
        assert_eq!(waits(), 1);
        // One that is known as a reader becomes a writer.
        whole.absorb(part(&also_reads));
        whole.begin(&reader, Access::Read).unwrap().end().unwrap();
        assert_eq!(waits(), 3);
    }

    /// One without another handle is given nothing more.
    #[test]
    fn of_many_recorded_streams_those_stay_that_may_be_given_more() {
        let sim = Sim::builder().build();
        let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
        let (uses, kept) = (Uses::new(), Stream::new(&context).unwrap());
        uses.record_stream(&kept).unwrap();
        (0..PRUNE_FROM).for_each(|_| uses.record_stream(&Stream::new(&context).unwrap()).unwrap());
        let entries = lock(&uses.entries);
        assert!(entries.readers.len() < PRUNE_FROM, "{}", entries.readers.len());
        assert!(entries.readers.iter().any(|entry| entry.stream == kept));
    }
}

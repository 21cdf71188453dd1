//! Points behind work with memory, and waits for them: what may still be used is never given back.

use std::io::Write;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_sys::CUresult;

use super::Stream;
use crate::driver::{Event, Relaxed, refusal_in_host_function};
use crate::error::{Error, Result};

/// How a wait for the sake of memory has ended.
#[derive(Debug)]
#[must_use = "memory that may be in use is neither given back nor freed"]
pub(crate) enum Quiet {
    /// Nothing of the work runs any more. An error is the first failure of a wait, or says how the work was lost.
    Yes(Result<()>),
    /// The driver refused to wait for as long as [`Driver::patience`](crate::Driver) says: the work may run on.
    Unknown(Error),
}

impl Quiet {
    /// For owners that keep their memory after any error.
    pub(crate) fn result(self) -> Result<()> {
        match self {
            Self::Yes(result) => result,
            Self::Unknown(error) => Err(error),
        }
    }

    /// Replaces a success, and the error of a wait, by an error that came before it.
    pub(crate) fn behind(self, error: Error) -> Self {
        match self {
            Self::Yes(_) => Self::Yes(Err(error)),
            unknown => unknown,
        }
    }

    /// For memory that is borrowed, which goes back to its owner whatever `call` does: ends the process if work may use it still.
    pub(crate) fn or_abort(self, call: &'static str) -> Result<()> {
        match self {
            Self::Yes(result) => result,
            Self::Unknown(error) => {
                if error.code() == Some(CUresult::CUDA_ERROR_DEINITIALIZED) {
                    // The process ends. Whoever has ended it does not wait for this thread.
                    thread::sleep(Duration::from_secs(60));
                }
                let _ = writeln!(std::io::stderr(), "{call}: borrowed memory may still be in use: {error}");
                process::abort()
            }
        }
    }
}

/// Waits in one way, and if that fails for all that the stream was given, until nothing of it can run any more.
///
/// While a capture that somebody began meanwhile keeps the stream from being waited for, this waits for the capture's end.
pub(crate) fn until_quiet(stream: &Stream, wait: impl Fn() -> Result<()>) -> Quiet {
    // In a host function no wait ends: the stream waits for that function (seen on hardware).
    if let Some(error) = refusal_in_host_function(stream.driver()) {
        return Quiet::Unknown(Error::StillInUse { waited: Duration::ZERO, refusal: Box::new(error) });
    }
    let mut first = None;
    let mut refused_since = None;
    let mut pause = Duration::from_micros(10);
    // By an event where a wait for the stream could end a capture.
    let wait_for_all = || match stream.is_lent() {
        true => stream.point("waiting for a stream")?.synchronize(),
        false => stream.wait_until_idle(),
    };
    loop {
        let waited = wait().or_else(|error| match wait_for_all() {
            // Another thread's default stream cannot be waited for as a whole: what counts is why the wait failed.
            Err(Error::WrongThread) => Err(error),
            // Its owner may have destroyed it, and what it was given runs on.
            Err(Error::Disowned) => stream.context().synchronize(),
            waited => waited,
        });
        let error = match waited {
            Ok(()) => return Quiet::Yes(first.map_or(Ok(()), Err)),
            // Nothing of the parent's runs in a forked child's memory.
            Err(Error::Forked) => return Quiet::Yes(Err(Error::Forked)),
            Err(Error::Driver(error)) if error.context_is_lost() => {
                return Quiet::Yes(Err(first.unwrap_or(error.into())));
            }
            Err(error) => error,
        };
        let (is_capture, is_end) = match &error {
            Error::Driver(error) => (error.is_capture(), error.is_end()),
            error => (matches!(error, Error::Capturing { .. }), false),
        };
        if is_end {
            return Quiet::Unknown(Error::StillInUse { waited: Duration::ZERO, refusal: Box::new(error) });
        }
        if is_capture {
            refused_since = None;
        } else {
            let waited = refused_since.get_or_insert_with(Instant::now).elapsed();
            if waited >= stream.driver().patience() {
                return Quiet::Unknown(Error::StillInUse { waited, refusal: Box::new(error) });
            }
        }
        first.get_or_insert(error);
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(1));
    }
}

/// Asks again and again whether something is over, for at most `limit` if there is one.
pub(crate) fn poll(limit: Option<Duration>, mut is_over: impl FnMut() -> Result<bool>) -> Result<()> {
    let (start, mut pause) = (Instant::now(), Duration::from_micros(1));
    while !is_over()? {
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

/// A point in a stream. Unlike the stream it can be waited for from any thread, and while the stream captures.
#[derive(Debug)]
pub(crate) struct Marker {
    stream: Stream,
    event: Event,
}

impl Marker {
    /// Made before the copy, so that nothing but the record can fail after it.
    pub(crate) fn new(stream: &Stream) -> Result<Self> {
        Ok(Self { stream: stream.clone(), event: Event::pooled(stream.context())? })
    }

    pub(crate) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Puts the point behind what the stream was given by now. If the driver does not take it, waits for the stream at once.
    pub(crate) fn set(&self) -> Quiet {
        match self.stream.record(&self.event) {
            Ok(()) => Quiet::Yes(Ok(())),
            Err(error) => self.stream.drain().behind(error),
        }
    }

    /// Whether the point was reached.
    pub(crate) fn is_reached(&self) -> Result<bool> {
        self.event.is_complete()
    }

    /// Waits until nothing before the point runs any more.
    pub(crate) fn wait(&self) -> Quiet {
        let _relaxed = Relaxed::enter(self.stream.driver()).ok();
        until_quiet(&self.stream, || self.event.synchronize())
    }
}

/// How many records have ended.
static ENDED: AtomicU64 = AtomicU64::new(0);

/// An event that was recorded once, and when: threads may record at the same time, and which of these came first nobody knows.
#[derive(Debug)]
pub(crate) struct Mark {
    event: Event,
    /// How many records had ended before this one began.
    begun_behind: u64,
    /// Its own place among those that have ended.
    ended_as: u64,
}

impl Mark {
    /// What `record` has recorded.
    pub(crate) fn of(record: impl FnOnce() -> Result<Event>) -> Result<Self> {
        let begun_behind = ENDED.load(Ordering::Acquire);
        let event = record()?;
        let ended_as = ENDED.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
        Ok(Self { event, begun_behind, ended_as })
    }

    pub(crate) fn event(&self) -> &Event {
        &self.event
    }

    /// Whether the other one's record had ended when this one's began.
    pub(crate) fn is_after(&self, other: &Self) -> bool {
        self.begun_behind >= other.ended_as
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Driver;

    #[test]
    fn of_two_records_at_the_same_time_neither_is_behind_the_other() {
        let driver = Driver::over(cuda_mem_sim::table()).unwrap();
        let stream = Stream::new(&driver.device(0).unwrap().primary_context().unwrap()).unwrap();
        let record = || stream.point("a test");
        let mut inner = None;
        let outer = Mark::of(|| {
            inner = Some(Mark::of(record)?);
            record()
        });
        let (outer, inner) = (outer.unwrap(), inner.unwrap());
        let later = Mark::of(record).unwrap();
        assert!(!outer.is_after(&inner) && !inner.is_after(&outer));
        assert!(later.is_after(&outer) && later.is_after(&inner));
        assert!(!inner.is_after(&later) && !outer.is_after(&later) && !later.is_after(&later));
    }
}

//! Which streams have used a piece of memory since when.
//!
//! Not one last event but a set: two readers on two streams are two entries, and whoever frees waits for both. An entry is
//! the stream itself, kept alive; an event is made only when somebody on another stream has to wait, and covers all that
//! the stream was given by then.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use crate::event::Event;
use crate::stream::Stream;

/// The uses of one piece of memory.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
pub(crate) struct Entries {
    /// The last stream that wrote; it came after everything before.
    writer: Option<Use>,
    /// The streams that read since then.
    readers: Vec<Use>,
}

/// One stream's use.
#[derive(Debug)]
struct Use {
    stream: Stream,
    /// For a per-thread default stream, which no other thread can name: a point after the use.
    event: Option<Event>,
}

/// How memory is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

impl Uses {
    /// The uses of memory that was allocated on `stream`: the allocation is its first write.
    pub(crate) fn starting_on(stream: &Stream) -> Self {
        let writer = Some(Use { stream: stream.clone(), event: None });
        Self { entries: Mutex::new(Entries { writer, readers: Vec::new() }) }
    }

    /// Orders `stream` behind the uses that `access` has to wait for, and enters it.
    pub(crate) fn begin(&self, stream: &Stream, access: Access) -> Result<()> {
        let mut entries = self.lock();
        if let Some(writer) = &entries.writer {
            writer.hold_up(stream)?;
        }
        match access {
            Access::Read => {
                let known =
                    entries.writer.iter().chain(&entries.readers).any(|entry| entry.stream == *stream);
                if !known {
                    entries.readers.push(Use { stream: stream.clone(), event: None });
                }
            }
            Access::Write => {
                for reader in &entries.readers {
                    reader.hold_up(stream)?;
                }
                // Everything before is ordered behind `stream` now, which stands for all of it.
                entries.readers.clear();
                match &mut entries.writer {
                    Some(writer) if writer.stream == *stream => writer.event = None,
                    writer => *writer = Some(Use { stream: stream.clone(), event: None }),
                }
            }
        }
        Ok(())
    }

    /// Marks the end of what was enqueued since [`Uses::begin`]. Only a per-thread default stream needs it.
    pub(crate) fn end(&self, stream: &Stream) -> Result<()> {
        if !stream.is_per_thread() {
            return Ok(());
        }
        let event = Event::pooled(stream.context())?;
        stream.record(&event)?;
        let mut entries = self.lock();
        let Entries { writer, readers } = &mut *entries;
        if let Some(entry) = writer.iter_mut().chain(readers).find(|entry| entry.stream == *stream) {
            entry.event = Some(event);
        }
        Ok(())
    }

    /// Has the calling thread wait until no use runs any more. Without uses no call is made.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.lock().synchronize()
    }

    /// See [`Entries::any_capturing`].
    pub(crate) fn any_capturing(&self) -> Result<bool> {
        self.lock().any_capturing()
    }

    /// The uses, for an owner that is going away.
    pub(crate) fn take(&mut self) -> Entries {
        std::mem::take(self.entries.get_mut().unwrap_or_else(PoisonError::into_inner))
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn iter(&self) -> impl Iterator<Item = &Use> {
        self.writer.iter().chain(&self.readers)
    }

    /// Orders `stream` behind all uses.
    pub(crate) fn hold_up(&self, stream: &Stream) -> Result<()> {
        self.iter().try_for_each(|entry| entry.hold_up(stream))
    }

    /// Has the calling thread wait for all uses. All are waited for, whatever one of them fails with; the first failure is
    /// returned, and like that of [`Stream::drain`] it says how the work failed, not that it may still run.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let mut result = Ok(());
        for entry in self.iter() {
            let waited = entry.synchronize();
            result = result.and(waited);
        }
        result
    }

    /// Whether a use is on a stream that captures now: it can neither be waited for nor be ordered.
    pub(crate) fn any_capturing(&self) -> Result<bool> {
        for entry in self.iter() {
            if entry.event.is_none() && entry.reachable() && entry.stream.is_capturing()? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Use {
    fn hold_up(&self, stream: &Stream) -> Result<()> {
        if self.stream == *stream {
            return Ok(());
        }
        match &self.event {
            Some(event) => stream.wait(event),
            None if self.reachable() => stream.wait_stream(&self.stream),
            // Another thread's default stream, left without the event that would stand for it: its owner was forgotten
            // between the two. The whole context covers it.
            None => self.stream.context().synchronize(),
        }
    }

    fn synchronize(&self) -> Result<()> {
        match &self.event {
            Some(event) => event.synchronize(),
            None if self.reachable() => self.stream.drain(),
            None => self.stream.context().synchronize(),
        }
    }

    /// Whether the stream's handle means that stream in the calling thread.
    fn reachable(&self) -> bool {
        !self.stream.is_per_thread() || self.stream.enter().is_ok()
    }
}

impl From<Entries> for Uses {
    fn from(entries: Entries) -> Self {
        Self { entries: Mutex::new(entries) }
    }
}

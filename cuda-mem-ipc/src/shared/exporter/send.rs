//! What an exporter says.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::ipc::InterprocessEvent;
use cuda_mem_pool::cuda_mem_core::{self as core, Stream};

use super::ExportLink;
use crate::error::{Error, Result};
use crate::shared::keepsake::Keepsake;
use crate::shared::ring::{Corrupt, Pushed};
use crate::shared::segment::SegmentRef;
use crate::shared::wire::{self, Fence, HandOver};
use crate::shared::{lock, ring, say};
use crate::transport::{Deadline, Poller};

/// No segment's number.
pub(super) const NONE: u64 = u64::MAX;

/// How many sleepers are called behind their entries, as soon as one was called too early.
const LATE: u32 = 64;

/// Why a hand-over failed, and whether the receiver has it all the same.
pub(super) struct Unsent {
    pub(super) error: Error,
    pub(super) is_there: bool,
}

impl From<Error> for Unsent {
    fn from(error: Error) -> Self {
        Self { error, is_there: false }
    }
}

impl ExportLink {
    /// Tells the importer of a segment, once. Whoever waits for room does so without the lock, which the thread takes too.
    pub(super) fn announce(self: &Arc<Self>, segment: &SegmentRef, deadline: Deadline) -> Result<()> {
        if self.latest.load(Ordering::Acquire) == segment.id() {
            return Ok(());
        }
        self.as_soon_as_there_is_room(deadline, || self.try_announce(segment))
    }

    fn as_soon_as_there_is_room(&self, deadline: Deadline, say: impl Fn() -> Result<()>) -> Result<()> {
        loop {
            match say() {
                Err(error) if error.is_timeout() && !deadline.has_passed() => self.wait_for_room(deadline)?,
                result => return result,
            }
        }
    }

    /// Has the importer keep what it was not given yet.
    pub(super) fn give_keepsakes(&self, keepsakes: &[Keepsake], deadline: Deadline) -> Result<()> {
        keepsakes.iter().try_for_each(|keepsake| {
            self.as_soon_as_there_is_room(deadline, || {
                let say = || self.say(&wire::Message::Keep, &[keepsake.as_fd()], Duration::ZERO);
                lock(&self.given).give(keepsake, say)
            })
        })
    }

    /// Tells the importer what it need not keep any more, because this process does not: all that it had been handed along with it has come
    /// back. By the branch, for nobody there may receive again. What finds no room is told later.
    pub(super) fn say_forgotten(&self) {
        lock(&self.given).tell_of_unwanted(|keepsake| {
            let (kind, payload) = wire::Message::Forget { keepsake }.encode();
            let said = self.branch.send(kind, &payload, &[]);
            // One that hears nothing there any more is at its end.
            !said.is_err_and(|error| error.is_for_now())
        });
    }

    fn try_announce(self: &Arc<Self>, segment: &SegmentRef) -> Result<()> {
        let mut announced = lock(&self.announced);
        if announced.is_known(segment.id()) {
            return Ok(());
        }
        segment.with_means(|means| {
            self.tell(segment.face(), means, |message, descriptors| {
                self.say(message, descriptors, Duration::ZERO)
            })
        })?;
        announced.tell(segment.id());
        Ok(())
    }

    fn wait_for_room(&self, deadline: Deadline) -> Result<()> {
        let mut poller = Poller::new();
        poller.writable((), &self.connection);
        poller.readable((), &**self.connection.peer());
        poller.wait(deadline).map(drop)
    }

    pub(super) fn say(
        &self,
        message: &wire::Message,
        descriptors: &[BorrowedFd<'_>],
        deadline: impl Into<Deadline>,
    ) -> Result<()> {
        let number = say(&self.connection, message, descriptors, deadline)?;
        // Its place among the others': threads that send at the same time may come here in any order.
        let frames = number.saturating_add(1);
        self.sent.fetch_max(frames, Ordering::Release);
        // After the frame: who looks for it finds it.
        ring::say_sent(&self.way, frames);
        Ok(())
    }

    /// Calls whoever looks at the ring, and tells the call's number. Nobody need hear it before an entry: it is not counted as the
    /// other frames are. None if it was not sent: a peer whose queue is full has something to wake up for, and of one that is gone
    /// the thread will hear.
    fn call(&self) -> Option<u64> {
        say(&self.connection, &wire::Message::Ring, &[], Duration::ZERO).ok()
    }

    /// Calls a reader that sleeps before there is anything for it, for it takes longer to wake up than everything else. It looks for
    /// the entry for a while and sleeps again if none comes.
    pub(super) fn call_early(&self) -> Option<u64> {
        let is_late = || {
            self.late.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
        };
        let called = if ring::sleeps(&self.way) && !is_late() { self.call() } else { None };
        lock(&self.ring).prepare();
        called
    }

    /// Has the stream record the fence of a hand-over, and says it: by the ring if it has room, otherwise as a message.
    ///
    /// The entry comes right before the fence, so that the receiver has its stream wait while the driver here is busy with the fence. Its
    /// stream waits for that call alone, which waits for no device. In one process it might: streams of one process share hardware
    /// queues, and a stream there that waits may hold up the very one which is to record the fence, so there the entry comes behind it.
    pub(super) fn record_and_send(
        &self,
        stream: &Stream,
        said: impl Fn(Fence) -> HandOver,
        called: Option<u64>,
        deadline: Deadline,
    ) -> std::result::Result<(), Unsent> {
        let mut pushed = Ok(Pushed::Full);
        let recorded = self.words.record_announced(stream, |point| {
            if self.is_to_another {
                pushed = self.push(said(point.into()), called);
            }
            matches!(pushed, Ok(Pushed::Quietly | Pushed::ToASleeper))
        });
        match (recorded, pushed) {
            (Ok(point), Ok(Pushed::Full)) => Ok(self.send(said(point.into()), called, deadline)?),
            (recorded, Ok(Pushed::Full) | Err(Corrupt)) => {
                recorded?;
                Err(self.corrupt().into())
            }
            (recorded, Ok(pushed)) => {
                self.wake(pushed, called);
                recorded.map(drop).map_err(|error| Unsent { error, is_there: true })
            }
        }
    }

    /// By the ring, if it has room; otherwise as a message.
    pub(super) fn send(&self, said: HandOver, called: Option<u64>, deadline: Deadline) -> Result<()> {
        match self.push(said, called) {
            Ok(Pushed::Full) => self.say(&wire::Message::HandOver(said), &[], deadline),
            Ok(pushed) => {
                self.wake(pushed, called);
                Ok(())
            }
            Err(Corrupt) => Err(self.corrupt()),
        }
    }

    fn push(&self, said: HandOver, called: Option<u64>) -> std::result::Result<Pushed, Corrupt> {
        // What has to be heard before, the segment above all, was sent before.
        match said.to_entry(self.sent.load(Ordering::Acquire)) {
            Some(entry) => lock(&self.ring).push(entry, called),
            None => Ok(Pushed::Full),
        }
    }

    fn wake(&self, pushed: Pushed, called: Option<u64>) {
        if pushed == Pushed::ToASleeper {
            if called.is_some() {
                // It has looked in vain and sleeps again: this thread was held up, perhaps by it, where processors are few.
                self.late.store(LATE, Ordering::Relaxed);
            }
            self.call();
        }
    }

    fn corrupt(&self) -> Error {
        let (pid, what) = (self.connection.peer().pid(), "it has taken more from the ring than there was");
        self.connection.breaks(Error::Protocol { pid, what })
    }

    /// An event behind what `stream` was given so far, and its handle. One of a capture would be complete for the receiver at once: a
    /// graph's work comes later.
    pub(super) fn event(&self, stream: &Stream) -> Result<(InterprocessEvent, [u8; 64])> {
        refuse_capturing(stream)?;
        let event = InterprocessEvent::new(&self.context)?;
        stream.record(event.event())?;
        // Another thread may have begun one before the record.
        refuse_capturing(stream)?;
        let handle = *event.handle()?.as_bytes();
        Ok((event, handle))
    }
}

fn refuse_capturing(stream: &Stream) -> Result<()> {
    if stream.is_capturing()? {
        Err(core::Error::Capturing { call: "Exporter::hand_over" }.into())
    } else {
        Ok(())
    }
}

//! What an exporter says.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::Stream;
use cuda_mem_pool::cuda_mem_core::ipc::InterprocessEvent;

use super::ExportLink;
use crate::error::{Error, Result};
use crate::shared::keepsake::{Keepsake, forget_unwanted};
use crate::shared::options::FenceKind;
use crate::shared::ring::{Corrupt, Pushed};
use crate::shared::segment::SegmentRef;
use crate::shared::wire::{self, Fence, HandOver};
use crate::shared::words::Point;
use crate::shared::{lock, reaper, say};
use crate::transport::{Deadline, Poller};

impl ExportLink {
    /// Tells the importer of a segment, once. Whoever waits for room does so without the lock, which the thread takes too.
    pub(super) fn announce(self: &Arc<Self>, segment: &SegmentRef, deadline: Deadline) -> Result<()> {
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
                let mut given = lock(&self.given);
                if given.iter().any(|known| known.is(keepsake)) {
                    return Ok(());
                }
                forget_unwanted(&mut given);
                self.say(&wire::Message::Keep, &[keepsake.as_fd()], Duration::ZERO)?;
                given.push(keepsake.clone());
                Ok(())
            })
        })
    }

    fn try_announce(self: &Arc<Self>, segment: &SegmentRef) -> Result<()> {
        let mut announced = lock(&self.announced);
        if announced.contains(&segment.id()) {
            return Ok(());
        }
        let message = wire::Message::Segment(segment.said());
        if let Some(slab) = segment.slab() {
            // Before it can answer.
            lock(&self.slabs).insert(segment.id(), Arc::clone(slab));
        }
        let said = segment.with_descriptors(|descriptors| self.say(&message, descriptors, Duration::ZERO));
        if let Err(error) = said {
            lock(&self.slabs).remove(&segment.id());
            return Err(error);
        }
        announced.insert(segment.id());
        segment.is_known_by(Arc::downgrade(self));
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
        self.sent.fetch_max(number.saturating_add(1), Ordering::Release);
        Ok(())
    }

    /// By the ring, if it has room; otherwise as a message.
    pub(super) fn send(&self, said: HandOver, deadline: Deadline) -> Result<()> {
        // What has to be heard before, the segment above all, was sent before.
        let pushed = match said.to_entry(self.sent.load(Ordering::Acquire)) {
            Some(entry) => lock(&self.ring).push(entry),
            None => Ok(Pushed::Full),
        };
        match pushed {
            Ok(Pushed::Quietly) => Ok(()),
            Ok(Pushed::ToASleeper) => {
                // A peer whose queue is full has something to wake up for, and of one that is gone the thread will hear.
                let _ = self.say(&wire::Message::Ring, &[], Duration::ZERO);
                Ok(())
            }
            Ok(Pushed::Full) => self.say(&wire::Message::HandOver(said), &[], deadline),
            Err(Corrupt) => {
                let (pid, what) =
                    (self.connection.peer().pid(), "it has taken more from the ring than there was");
                Err(self.connection.breaks(Error::Protocol { pid, what }))
            }
        }
    }

    /// A segment of this process is gone.
    pub(in crate::shared) fn retire(&self, segment: u64) {
        if lock(&self.announced).remove(&segment) {
            lock(&self.retiring).push(segment);
            reaper::wake();
        }
    }

    pub(super) fn fence(
        &self,
        kind: FenceKind,
        stream: &Stream,
    ) -> Result<(Fence, Option<InterprocessEvent>)> {
        Ok(match kind {
            FenceKind::Word => {
                let Point { line, generation } = self.words.record(stream)?;
                (Fence::Word { line, generation }, None)
            }
            FenceKind::Event => {
                let event = InterprocessEvent::new(&self.context)?;
                stream.record(event.event())?;
                (Fence::Event(*event.handle()?.as_bytes()), Some(event))
            }
        })
    }
}

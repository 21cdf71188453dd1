//! What an importer was told of segments, and how it is told ahead of their first buffer.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::ExportLink;
use crate::error::{Error, Result};
use crate::shared::face::{Face, Means};
use crate::shared::options::AheadLimit;
use crate::shared::segment::Segment;
use crate::shared::{lock, reaper, wire};

/// The segments that an importer knows of.
#[derive(Debug, Default)]
pub(super) struct Announced(HashMap<u64, Told>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    /// Of so many bytes, by the branch, and of no buffer of it.
    Ahead(u64),
    /// With its first buffer, or before.
    Used,
}

/// A segment whose end an importer has to hear.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retiring {
    pub(super) segment: u64,
    /// Whether it hears that where it heard of the segment: nobody there may ever ask for a buffer.
    pub(super) is_ahead: bool,
}

impl Announced {
    /// Whether the importer knows a segment.
    pub(super) fn is_known(&self, segment: u64) -> bool {
        self.0.contains_key(&segment)
    }

    /// It was told of a segment, to have a buffer of it.
    pub(super) fn tell(&mut self, segment: u64) {
        self.0.insert(segment, Told::Used);
    }

    /// It has a buffer of a segment. False if that has gone back and the segment with it.
    fn is_used(&mut self, segment: u64) -> bool {
        self.0.get_mut(&segment).map(|told| *told = Told::Used).is_some()
    }

    pub(super) fn forget(&mut self, segment: u64) -> Option<Retiring> {
        let is_ahead = matches!(self.0.remove(&segment)?, Told::Ahead(_));
        Some(Retiring { segment, is_ahead })
    }

    fn has_room(&self, bytes: u64, limit: AheadLimit) -> bool {
        let ahead = |told: &Told| if let Told::Ahead(bytes) = told { Some(*bytes) } else { None };
        let (segments, all) = self
            .0
            .values()
            .filter_map(ahead)
            .fold((0, bytes), |(segments, all), bytes| (segments + 1, bytes.saturating_add(all)));
        segments < limit.segments && all <= limit.bytes
    }
}

impl ExportLink {
    /// Whether the importer has not closed its end, as far as was heard.
    pub(super) fn expect_open(&self, doing: &'static str) -> Result<()> {
        if self.is_closing.load(Ordering::Acquire) { Err(Error::Closed { doing }) } else { Ok(()) }
    }

    /// The importer has a buffer of a segment, whose end it hears behind its buffers from now on. Not before: a hand-over that fails
    /// leaves it as it was.
    pub(super) fn note_use(&self, segment: u64) {
        if self.latest.load(Ordering::Acquire) != segment {
            let mut announced = lock(&self.announced);
            if announced.is_used(segment) {
                self.latest.store(segment, Ordering::Release);
            }
        }
    }

    /// Tells the importer of a segment of which it has no buffer yet, and whether it knows of it. Nobody is waited for.
    pub(in crate::shared) fn announce_segment_ahead(self: &Arc<Self>, segment: &Segment) -> Result<bool> {
        self.announce_ahead(segment.face(), |told| segment.with_means(told))
    }

    /// As that, by what `with_means` gives.
    pub(in crate::shared) fn announce_ahead(
        self: &Arc<Self>,
        segment: &Face,
        with_means: impl FnOnce(&dyn Fn(Means<'_>) -> Result<()>) -> Result<()>,
    ) -> Result<bool> {
        let mut announced = lock(&self.announced);
        // Its exporter may be gone, or the importer. Behind the lock, which the thread takes before it lets go of the link: it either sees
        // what is told here, or this sees that the exporter is gone.
        if !self.out.is_open.load(Ordering::SeqCst) || self.is_closing.load(Ordering::Acquire) {
            return Ok(false);
        }
        if announced.0.contains_key(&segment.id()) {
            return Ok(true);
        }
        if !announced.has_room(segment.bytes() as u64, self.ahead_limit) {
            return Ok(false);
        }
        let told = with_means(&|means| {
            self.tell(segment, means, |message, descriptors| {
                let (kind, payload) = message.encode();
                self.branch.send(kind, &payload, descriptors)
            })
        });
        match told {
            Err(error) if error.is_timeout() => return Ok(false),
            told => told?,
        }
        announced.0.insert(segment.id(), Told::Ahead(segment.bytes() as u64));
        Ok(true)
    }

    /// Tells of a segment in some way, and will tell of its end. The caller has the lock on what was announced.
    pub(super) fn tell(
        self: &Arc<Self>,
        segment: &Face,
        means: Means<'_>,
        say: impl FnOnce(&wire::Message, &[BorrowedFd<'_>]) -> Result<()>,
    ) -> Result<()> {
        if let Some(slab) = means.slab {
            // Before it can answer.
            lock(&self.slabs).insert(segment.id(), Arc::clone(slab));
        }
        if let Err(error) = say(&wire::Message::Segment(segment.said()), means.descriptors) {
            lock(&self.slabs).remove(&segment.id());
            return Err(error);
        }
        segment.is_known_by(Arc::downgrade(self));
        Ok(())
    }

    /// A segment of this process is gone.
    pub(in crate::shared) fn retire(&self, segment: u64) {
        if let Some(retiring) = self.forget(&mut lock(&self.announced), segment) {
            lock(&self.retiring).push(retiring);
            reaper::wake();
        }
    }

    /// What the importer has to be told, if it knew of it.
    pub(super) fn forget(&self, announced: &mut Announced, segment: u64) -> Option<Retiring> {
        if self.latest.load(Ordering::Relaxed) == segment {
            self.latest.store(super::send::NONE, Ordering::Release);
        }
        announced.forget(segment)
    }

    /// Tells of ends as far as there is room.
    pub(super) fn say_retired(&self) {
        let mut retiring = lock(&self.retiring);
        while let Some(&Retiring { segment, is_ahead }) = retiring.last() {
            let message = wire::Message::Retire { segment };
            let said = if is_ahead {
                let (kind, payload) = message.encode();
                self.branch.send(kind, &payload, &[])
            } else {
                self.say(&message, &[], Duration::ZERO)
            };
            match said {
                Ok(()) => {}
                // It hears nothing there any more: it is at its end.
                Err(error) if is_ahead && !error.is_for_now() => {}
                Err(_) => break,
            }
            retiring.pop();
        }
    }
}

#[cfg(test)]
mod tests;

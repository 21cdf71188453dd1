//! What an importer gives back, and its share of the thread that looks after peers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::{Stream, Uses, forked};

use super::ImportLink;
use super::segments::{Known, WAITING};
use crate::background;
use crate::error::{Error, Result};
use crate::primitive::lock;
use crate::shared::budget::Kind;
use crate::shared::reaper::{self, Urgent, Watched};
use crate::shared::ring;
use crate::shared::say;
use crate::shared::segment::Segment;
use crate::shared::wire::{self, Point, Release};
use crate::transport::Connection;

/// How many releases, and ends of segments, are kept for an exporter that does not take them. One that follows the protocol has a lease or a
/// segment for each, which takes as much of its memory, and while it is stopped there are no more.
pub(super) const MOST_UNHEARD: usize = 1 << 18;

/// A received buffer whose last handle is gone.
pub(in crate::shared) struct Returned {
    sequence: u64,
    /// None once all uses are the segment's.
    segment: Option<Arc<Segment>>,
    uses: Uses,
    /// Whether no stream of its own was tried yet.
    is_new: bool,
    release: Option<Release>,
}

impl Returned {
    /// Without a segment it could not be received, and nobody has used it.
    pub(in crate::shared) fn new(sequence: u64, segment: Option<Arc<Segment>>, uses: Uses) -> Self {
        Self { sequence, segment, uses, is_new: true, release: None }
    }

    /// Tries to give it back, and tells whether nothing is left to do.
    fn is_sent(&mut self, link: &ImportLink) -> bool {
        let sent = link.is_over()
            || match self.send(link) {
                Ok(is_sent) => is_sent,
                // The exporter takes it all, soon.
                Err(error) => error.is_gone() || matches!(error, Error::Broken | Error::Protocol { .. }),
            };
        if sent {
            self.absorb();
        }
        sent
    }

    /// Lets go of the segment, whose end waits for all uses from here on.
    fn absorb(&mut self) {
        if let Some(segment) = self.segment.take() {
            segment.absorb(std::mem::take(&mut self.uses));
        }
    }

    fn send(&mut self, link: &ImportLink) -> Result<bool> {
        let release = self.release.map_or_else(|| self.record(link), Ok)?;
        self.release = Some(release);
        link.send(release)
    }

    fn record(&mut self, link: &ImportLink) -> Result<Release> {
        let sequence = self.sequence;
        if self.uses.is_empty() {
            return Ok(Release { sequence, fence: Point { line: 0, generation: 0 } });
        }
        // The only one that used it; once: if that failed, the stream may begin to capture while the background tries again.
        let own = match &self.uses.streams()[..] {
            [stream] if std::mem::take(&mut self.is_new) => self.record_on(link, stream).ok(),
            _ => None,
        };
        // None if it captures, or is another thread's.
        let own = own.map_or_else(|| self.record_on(link, link.stream()?), Ok);
        Ok(Release { sequence, fence: own? })
    }

    fn record_on(&mut self, link: &ImportLink, stream: &Stream) -> Result<Point> {
        self.uses.order(stream)?;
        link.words.record(stream)
    }
}

impl Drop for Returned {
    fn drop(&mut self) {
        // However it ends: nothing may be unmapped that a stream still uses.
        if !forked() {
            self.absorb();
        }
    }
}

impl ImportLink {
    /// Writes a release into the ring, and wakes its reader. False if there is no room now.
    fn send(&self, release: Release) -> Result<bool> {
        {
            let mut releases = lock(&self.releases);
            let reserved = releases.reserve();
            if !reserved.map_err(|_| self.breaks("it has taken more from the ring than there was"))? {
                return Ok(false);
            }
            releases.push(release.to_entry());
        }
        if ring::claim(&self.wake_flag) {
            self.wake_exporter();
            if self.is_to_wake.load(Ordering::SeqCst) {
                reaper::wake();
            }
        }
        Ok(true)
    }

    /// Tells the exporter to look at the ring, now or as soon as it can be. What is in the ring is there.
    fn wake_exporter(&self) {
        // An exporter whose queue is full has something to wake up for.
        let said = say(&self.connection, &wire::Message::Ring, &[], Duration::ZERO);
        if said.is_err_and(|error| error.is_the_system_s()) {
            // The system is short of something. No other call wakes the exporter: it does not say again that it sleeps.
            self.is_to_wake.store(true, Ordering::SeqCst);
        }
    }

    /// Gives a buffer back, now or as soon as it can be. Once the exporter is gone, its uses go to the segment, whose release waits for them.
    pub(in crate::shared) fn give_back(self: &Arc<Self>, mut returned: Returned) {
        if returned.is_sent(self) {
            return self.gone_back();
        }
        if self.unsent.fetch_add(1, Ordering::SeqCst) >= MOST_UNHEARD {
            // Of one that is broken everything counts as given back.
            let _ = self.breaks("it does not take what is given back");
        }
        let link = Arc::clone(self);
        background::until(move || {
            let is_sent = returned.is_sent(&link);
            if is_sent {
                link.unsent.fetch_sub(1, Ordering::SeqCst);
                link.gone_back();
            }
            is_sent
        });
    }

    fn gone_back(&self) {
        self.live.fetch_sub(1, Ordering::SeqCst);
        if !self.is_open.load(Ordering::SeqCst) {
            reaper::wake();
        }
    }

    pub(super) fn is_let_go(&self) -> bool {
        !self.is_open.load(Ordering::SeqCst) && self.live.load(Ordering::SeqCst) == 0
    }
}

impl Watched for ImportLink {
    fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Whether one more message is read, which may bring as many descriptors as a segment has. A peer and all together have limits, and behind
    /// the message that goes beyond one the others stay in the socket. A peer of which nothing waits may always send one.
    fn may_read(&self) -> bool {
        let kind = Kind::Descriptors;
        let is_within = |waiting: &AtomicUsize, most: u64| waiting.load(Ordering::SeqCst) as u64 <= most;
        is_within(&self.waiting, 0)
            || (is_within(&self.waiting, kind.most_of_a_peer()) && is_within(&WAITING, kind.most()))
    }

    fn service(self: Arc<Self>, urgent: &mut Vec<Urgent>) -> Result<()> {
        if self.is_to_wake.swap(false, Ordering::SeqCst) {
            self.wake_exporter();
        }
        if self.slabs.load(Ordering::SeqCst) > 0 {
            self.let_go_of_slabs();
        }
        let read = self.read_messages(Self::may_read).map(|(_, early)| urgent.extend(early.map(Known::job)));
        if let Err(error) = &read
            && !error.is_the_system_s()
        {
            let _ = self.ended.set(error.clone());
            // Behind the reason: whoever hears the bell, or is about to sleep, sees it.
            ring::wake_all(&self.ring);
        }
        read
    }

    fn is_restless(&self) -> bool {
        // Some may be used no more that the exporter has not heard the end of.
        let slabs = self.slabs.load(Ordering::SeqCst);
        let is_more = || slabs > lock(&self.segments).values().filter(|known| known.is_in_a_pool()).count();
        // Nobody says when there is room again that others have taken.
        let is_crowded = !self.may_read();
        let has_work = self.is_to_wake.load(Ordering::SeqCst) || self.is_let_go();
        has_work || is_crowded || (slabs > 0 && is_more())
    }

    fn ends_well(&self) -> bool {
        // Its end is what tells the exporter that the words will not be written any more.
        let has_slabs = self.slabs.load(Ordering::SeqCst) > 0;
        // What it was told of behind what it has read is not here either.
        let all = wire::Message::LetGo { segment: wire::ALL };
        let said = || say(&self.connection, &all, &[], Duration::ZERO);
        let is_said = || !said().is_err_and(|error| error.has_no_room() || error.is_the_system_s());
        self.is_let_go() && !has_slabs && self.words.own_are_reached() && is_said()
    }

    fn end(self: Arc<Self>) {
        let _ = self.ended.set(Error::PeerExited { pid: self.connection.peer().pid() });
        self.is_over.store(true, Ordering::SeqCst);
        self.words.end();
        // Otherwise whoever receives the last buffer does so.
        self.forget_if_last();
        ring::wake_all(&self.ring);
    }
}

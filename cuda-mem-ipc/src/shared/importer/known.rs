//! The segments that an exporter has announced, and what it has to hear of their end.

use std::collections::btree_map::Entry;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core as core;

use super::ahead::{Ahead, Counted};
use super::give_back::MOST_UNHEARD;
use super::{ImportLink, Turn};
use crate::error::{Error, Result};
use crate::import::{Ending, ImportError, ImportKey, Imported, Imports};
use crate::shared::releases::{self, bury};
use crate::shared::segment::Segment;
use crate::shared::{lock, reaper, say, wire};
use crate::transport::Peer;

/// How many segments a peer may have this process map at a time.
pub(super) const MOST_SEGMENTS: usize = 4096;

/// How many messages are taken of the branch for a segment that must be among them. More than an exporter can have to say.
const MOST_AHEAD: usize = 2 * MOST_SEGMENTS;

/// How long another connection's import or release of the same segment may take, whatever the deadline is: a segment that is
/// refused stays refused.
const IMPORT: Duration = Duration::from_secs(10);

/// What this process has mapped for all importers.
static IMPORTS: OnceLock<Imports<Segment>> = OnceLock::new();

/// A segment that the exporter has announced.
pub(super) enum Known {
    /// No buffer of it came yet.
    Ahead(Ahead),
    Mapped(Imported<Segment>),
    /// It could not be imported, for this reason. Its buffers go back at once.
    Refused {
        error: Error,
        is_slab: bool,
    },
}

impl Known {
    fn is_slab(&self) -> bool {
        match self {
            Self::Ahead(ahead) => ahead.is_slab(),
            Self::Mapped(segment) => segment.slab().is_some(),
            Self::Refused { is_slab, .. } => *is_slab,
        }
    }

    /// Lets go of it. What is returned tells when its memory is gone, if there is any. It may be being mapped, which is waited for.
    pub(super) fn part(self) -> Option<Ending<Segment>> {
        match self {
            Self::Mapped(segment) => Some(segment.ending()),
            Self::Ahead(ahead) => ahead.part(),
            Self::Refused { .. } => None,
        }
    }
}

impl ImportLink {
    /// Maps a segment whose first buffer comes next, unless this process has it.
    pub(super) fn learn(self: &Arc<Self>, said: &wire::Segment, descriptors: Vec<OwnedFd>) -> Result<()> {
        self.expect_new(said)?;
        let known = self.import(said, descriptors);
        self.enter(said.segment, known)
    }

    pub(super) fn expect_new(&self, said: &wire::Segment) -> Result<()> {
        let (is_known, count) = {
            let segments = lock(&self.segments);
            (segments.contains_key(&said.segment), segments.len())
        };
        if is_known {
            return Err(self.breaks("it announces a segment twice"));
        }
        if count >= MOST_SEGMENTS {
            return Err(self.breaks("it announces more segments than are accepted"));
        }
        Ok(())
    }

    /// The number may have come by the other socket meanwhile.
    pub(super) fn enter(&self, segment: u64, known: Known) -> Result<()> {
        if known.is_slab() {
            self.slabs.fetch_add(1, Ordering::SeqCst);
        }
        let mut segments = lock(&self.segments);
        if let Entry::Vacant(place) = segments.entry(segment) {
            place.insert(known);
            return Ok(());
        }
        drop(segments);
        bury(known);
        Err(self.breaks("it announces a segment twice"))
    }

    /// Maps a segment, unless this process has it. By calls of the driver, which nothing interrupts.
    pub(super) fn import(self: &Arc<Self>, said: &wire::Segment, descriptors: Vec<OwnedFd>) -> Known {
        let key = ImportKey::new(self.context.device(), &identity(self.connection.peer(), said));
        let import =
            |departure| Segment::import(&self.context, said, descriptors, departure, || self.pins_one_more());
        let error = match IMPORTS.get_or_init(Imports::new).import(&key, IMPORT, import) {
            Ok(segment) if segment.face().is_as(said) => {
                if let Some(slab) = segment.slab() {
                    slab.tell(Arc::downgrade(self), said.segment);
                }
                return Known::Mapped(segment);
            }
            // Somebody else's import of what the peer now says is something else.
            Ok(_) => self.breaks("it announces a segment otherwise than before"),
            Err(ImportError::Failed(error)) => error,
            Err(ImportError::Timeout(_)) => Error::ImportBusy,
            Err(ImportError::Forked) => core::Error::Forked.into(),
        };
        Known::Refused { error, is_slab: said.place.is_in_a_pool() }
    }

    /// One more segment of host memory, for as long as it is pinned: at most as many as may be known. Those that were retired stay pinned
    /// while a stream is busy.
    fn pins_one_more(&self) -> Result<Counted> {
        let pinned = Counted::new(&self.pinned, 1);
        if self.pinned.load(Ordering::SeqCst) > MOST_SEGMENTS {
            return Err(Error::TooManyPinned { most: MOST_SEGMENTS });
        }
        Ok(pinned)
    }

    /// The memory of a segment of which there is a buffer, or why there is none. It is imported now if it was not ahead of that.
    pub(super) fn memory(self: &Arc<Self>, number: u64) -> Result<Imported<Segment>> {
        let memory = self.known(number);
        let memory = if memory.is_none() {
            // The branch has it, which nobody else has looked at since.
            self.hear_ahead(MOST_AHEAD)?;
            self.known(number)
        } else {
            memory
        };
        memory
            .unwrap_or_else(|| Err(self.breaks("it hands over a part of a segment that it did not announce")))
    }

    fn known(self: &Arc<Self>, number: u64) -> Option<Result<Imported<Segment>>> {
        let import = match lock(&self.segments).get(&number)? {
            Known::Ahead(ahead) => ahead.again(),
            Known::Mapped(segment) => return Some(Ok(segment.clone())),
            Known::Refused { error, .. } => return Some(Err(error.clone())),
        };
        // Without the lock, which others need for other segments.
        let known = import(self)?;
        let memory = match &known {
            Known::Mapped(segment) => Some(Ok(segment.clone())),
            Known::Refused { error, .. } => Some(Err(error.clone())),
            Known::Ahead(_) => None,
        };
        let before = lock(&self.segments).insert(number, known);
        drop(before);
        memory
    }

    /// The exporter may free a segment.
    pub(in crate::shared) fn slab_is_gone(&self, segment: u64) {
        let count = {
            let mut let_go = lock(&self.let_go);
            let_go.push(segment);
            let_go.len()
        };
        if count > MOST_UNHEARD {
            let _ = self.breaks("it does not take what is let go of");
        }
        reaper::wake();
    }

    /// Its exporter says that a segment is gone. It may have said that it is there by the branch.
    pub(super) fn retire(self: &Arc<Self>, turn: &mut Turn, segment: u64) -> Result<()> {
        if !lock(&self.segments).contains_key(&segment) {
            self.hear_ahead(MOST_AHEAD).inspect_err(|error| {
                // The system gives it later. The message comes but once.
                turn.retired = error.is_the_system_s().then_some(segment);
            })?;
        }
        self.forget(segment)
    }

    pub(super) fn forget(&self, segment: u64) -> Result<()> {
        let parting = self.parting();
        // Outside the lock.
        let known = lock(&self.segments).remove(&segment);
        match known {
            // It was not imported, so that nobody has it.
            Some(Known::Refused { is_slab: true, .. }) => self.slab_is_gone(segment),
            Some(known) => {
                let is_slab = known.is_slab();
                parting.bury_one(known);
                if is_slab {
                    // From here on the thread looks whether its free was reached.
                    reaper::wake();
                }
            }
            // They were let go of before their exporter heard of it.
            None if self.has_let_go.load(Ordering::SeqCst) => {}
            None => return Err(self.breaks("it retires a segment that it did not announce")),
        }
        Ok(())
    }

    /// Nothing more will come of any segment. Their release waits for streams.
    pub(super) fn forget_all(&self) {
        let parting = self.parting();
        let segments = std::mem::take(&mut *lock(&self.segments));
        parting.bury(segments);
        self.is_exhausted.store(true, Ordering::SeqCst);
        self.let_go_of_kept();
    }

    /// Whether some are used no more that the exporter has not heard the end of.
    pub(super) fn has_slabs_to_let_go(&self) -> bool {
        let slabs = self.slabs.load(Ordering::SeqCst);
        slabs > 0 && slabs > lock(&self.segments).values().filter(|known| known.is_slab()).count()
    }

    /// Tells the exporter which segments are gone here, and has those go that can.
    pub(super) fn let_go_of_slabs(&self) {
        if self.is_let_go() {
            // The exporter need not say that they are used no more.
            let parting = self.parting();
            let segments = {
                let mut segments = lock(&self.segments);
                self.has_let_go.store(true, Ordering::SeqCst);
                std::mem::take(&mut *segments)
            };
            let refused = |(segment, known): (&u64, &Known)| {
                matches!(known, Known::Refused { is_slab: true, .. }).then_some(*segment)
            };
            lock(&self.let_go).extend(segments.iter().filter_map(refused));
            parting.bury(segments);
        }
        // What has been freed in stream order ends here. It may wait for streams, so that it is not done by the thread that asks.
        if !self.is_reclaiming.swap(true, Ordering::SeqCst) {
            let (driver, is_reclaiming) = (self.context.driver(), Arc::clone(&self.is_reclaiming));
            releases::queue([move || {
                driver.reclaim();
                is_reclaiming.store(false, Ordering::SeqCst);
            }]);
        }
        let mut let_go = lock(&self.let_go);
        while let Some(&segment) = let_go.last() {
            if say(&self.connection, &wire::Message::LetGo { segment }, &[], Duration::ZERO).is_err() {
                break;
            }
            let_go.pop();
            self.slabs.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// What names a segment in this process: who announces it, and as what. Nobody can name another's.
fn identity(peer: &Peer, said: &wire::Segment) -> Vec<u8> {
    let numbers = [peer.pid().into(), peer.start_time(), said.generation, said.segment];
    numbers.iter().flat_map(|number: &u64| number.to_le_bytes()).collect()
}

#[cfg(test)]
mod tests;

//! Segments that are announced ahead of their first buffer, and mapped in the background.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use cuda_mem_pool::cuda_mem_core::forked;

use super::ImportLink;
use super::known::Known;
use crate::error::{Error, Result};
use crate::import::Ending;
use crate::shared::{lock, releases, segment as imported, wire};
use crate::transport::Message;

/// A segment of which no buffer came yet. Dropped, it waits for an import that is under way.
pub(super) struct Ahead(Arc<Segment>);

struct Segment {
    link: Weak<ImportLink>,
    said: wire::Segment,
    /// Its place among those that are mapped before their first buffer comes; none if there were too many.
    early: Option<Counted>,
    /// Held while it is imported, by a thread or by the receiver of its first buffer: whoever comes second waits.
    state: Mutex<State>,
}

/// So many descriptors may be kept of segments beyond the limit, whose first buffers have not come yet.
const MOST_KEPT_BACK: usize = 1024;

/// Some of so many. A segment that was retired counts for as long as its mapping is under way or about to be, and as pinned until it is
/// pinned no more.
pub(super) struct Counted {
    all: Arc<AtomicUsize>,
    these: usize,
}

impl Counted {
    pub(super) fn new(all: &Arc<AtomicUsize>, these: usize) -> Self {
        all.fetch_add(these, Ordering::SeqCst);
        Self { all: Arc::clone(all), these }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.all.fetch_sub(self.these, Ordering::SeqCst);
    }
}

enum State {
    Announced {
        descriptors: Vec<OwnedFd>,
        /// Unless they are about to be used.
        _kept_back: Option<Counted>,
    },
    Known(Known),
    /// It is its taker's, or nobody's any more.
    Gone,
}

impl Segment {
    /// Imports it, unless somebody has.
    fn imported(&self, link: &Arc<ImportLink>) -> MutexGuard<'_, State> {
        let mut state = lock(&self.state);
        if let State::Announced { descriptors, .. } = &mut *state {
            let descriptors = std::mem::take(descriptors);
            *state = State::Known(link.import(&self.said, descriptors));
        }
        state
    }
}

impl Ahead {
    pub(super) fn is_slab(&self) -> bool {
        self.0.said.place.is_in_a_pool()
    }

    /// Another handle for who is about to wait for it.
    pub(super) fn again(&self) -> impl FnOnce(&Arc<ImportLink>) -> Option<Known> + use<> {
        let segment = Arc::clone(&self.0);
        move |link| {
            let state = std::mem::replace(&mut *segment.imported(link), State::Gone);
            if let State::Known(known) = state { Some(known) } else { None }
        }
    }

    /// As [`Known::part`]: whoever imports it either has done so, and is counted, or does not any more.
    pub(super) fn part(self) -> Option<Ending<imported::Segment>> {
        if let State::Known(known) = self.take() { known.part() } else { None }
    }

    /// Takes it from whoever would import it.
    fn take(&self) -> State {
        let segment = &self.0;
        let state = std::mem::replace(&mut *lock(&segment.state), State::Gone);
        let was_not_imported = matches!(state, State::Announced { .. } | State::Known(Known::Refused { .. }));
        // What was imported says so itself.
        if was_not_imported
            && self.is_slab()
            && let Some(link) = segment.link.upgrade()
        {
            link.slab_is_gone(segment.said.segment);
        }
        state
    }

    fn is_mapped(&self) -> bool {
        // One that is being imported is locked.
        self.0.state.try_lock().is_ok_and(|state| matches!(*state, State::Known(Known::Mapped(_))))
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // Before the lock: what is imported is the parent's.
        if !forked() {
            drop(self.take());
        }
    }
}

impl ImportLink {
    /// Takes what was announced, at most so many messages. No more comes by the branch when the peer has closed it.
    pub(super) fn hear_ahead(self: &Arc<Self>, most: usize) -> Result<()> {
        // One after the other: whoever looks for a segment finds what another thread has just received.
        let _hearing = lock(&self.hearing);
        for _ in 0..most {
            if self.is_deaf.load(Ordering::Acquire) {
                break;
            }
            let learnt = match self.branch.recv() {
                Err(error) if error.is_timeout() => break,
                Err(error) if error.is_gone() => {
                    self.is_deaf.store(true, Ordering::Release);
                    break;
                }
                // It is there still.
                Err(error) if error.is_the_system_s() => return Err(error),
                Err(error) => Err(self.connection.breaks(error)),
                Ok(message) => self.learn_ahead(message),
            };
            if let Err(error) = learnt {
                self.is_deaf.store(true, Ordering::Release);
                return Err(self.branch.breaks(error));
            }
        }
        Ok(())
    }

    fn learn_ahead(self: &Arc<Self>, message: Message) -> Result<()> {
        let Message { kind, payload, descriptors, .. } = message;
        let pid = self.connection.peer().pid();
        let parsed = wire::Message::parse(kind, &payload);
        match parsed.map_err(|source| self.connection.breaks(Error::Wire { pid, source }))? {
            wire::Message::Segment(said) if descriptors.len() == said.descriptors() => {
                self.learn_late(&said, descriptors)
            }
            wire::Message::Retire { segment } if descriptors.is_empty() => self.forget(segment),
            wire::Message::Forget { keepsake } if descriptors.is_empty() => self.keep_no_more(keepsake),
            _ => Err(self.breaks("an exporter does not say that ahead")),
        }
    }

    /// Notes a segment to be imported with its first buffer.
    pub(super) fn learn_late(
        self: &Arc<Self>,
        said: &wire::Segment,
        descriptors: Vec<OwnedFd>,
    ) -> Result<()> {
        self.expect_new(said)?;
        self.enter(said.segment, self.ahead(*said, descriptors))
    }

    /// Whether there is room for the descriptors of one more segment that is not imported yet.
    pub(super) fn may_learn_late(&self) -> bool {
        self.kept_back.load(Ordering::SeqCst).saturating_add(wire::MOST_HANDLES) <= MOST_KEPT_BACK
    }

    fn ahead(self: &Arc<Self>, said: wire::Segment, descriptors: Vec<OwnedFd>) -> Known {
        // An importer that is at its end, or its exporter, needs none.
        let is_wanted = self.is_open.load(Ordering::SeqCst) && !self.is_over();
        let early = (is_wanted && self.has_room_for(said.bytes)).then(|| Counted::new(&self.early, 1));
        let is_early = early.is_some();
        let (kept_back, more) = (self.kept_back.load(Ordering::SeqCst), descriptors.len());
        if !is_early && kept_back.saturating_add(more) > MOST_KEPT_BACK {
            let error = Error::TooManyAnnounced { descriptors: kept_back, most: MOST_KEPT_BACK };
            return Known::Refused { error, is_slab: said.place.is_in_a_pool() };
        }
        let kept_back = (!is_early).then(|| Counted::new(&self.kept_back, more));
        let state = Mutex::new(State::Announced { descriptors, _kept_back: kept_back });
        let link = Arc::downgrade(self);
        let segment = Arc::new(Segment { link, said, early, state });
        if is_early {
            let segment = Arc::clone(&segment);
            releases::queue([move || {
                if let Some(link) = segment.link.upgrade() {
                    drop(segment.imported(&link));
                }
            }]);
        }
        Known::Ahead(Ahead(segment))
    }

    fn has_room_for(&self, bytes: u64) -> bool {
        let segments = lock(&self.segments);
        let early = segments.values().filter_map(|known| match known {
            Known::Ahead(Ahead(segment)) if segment.early.is_some() => Some(segment.said.bytes),
            _ => None,
        });
        let all = early.fold(bytes, u64::saturating_add);
        self.early.load(Ordering::SeqCst) < self.ahead_limit.segments && all <= self.ahead_limit.bytes
    }

    /// How many segments are mapped of which no buffer came.
    pub(super) fn mapped_ahead(&self) -> usize {
        let segments = lock(&self.segments);
        segments.values().filter(|known| matches!(known, Known::Ahead(ahead) if ahead.is_mapped())).count()
    }
}

#[cfg(test)]
mod tests;

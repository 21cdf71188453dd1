//! What an importer gives back, and its share of the thread that looks after peers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{ENDED, ImportLink};
use crate::error::{Error, Result};
use crate::shared::reaper::{self, Watched};
use crate::shared::releases;
use crate::shared::returned::Returned;
use crate::shared::ring::{self, Pushed};
use crate::shared::wire::{self, Release};
use crate::shared::{MOST_AT_A_TIME, lock, say};
use crate::transport::{Branch, Connection};

/// How many releases, and ends of segments, are kept for an exporter that does not take them. One that follows the protocol has a lease or a
/// segment for each, which takes as much of its memory, and while it is stopped there are no more.
pub(super) const MOST_UNHEARD: usize = 1 << 18;

impl ImportLink {
    /// By the ring, if it has room; otherwise as a message.
    pub(in crate::shared) fn send(&self, release: Release) -> Result<()> {
        let pushed = lock(&self.releases).push(release.to_entry(), None);
        let message = match pushed {
            Ok(Pushed::Quietly) => return Ok(()),
            Ok(Pushed::ToASleeper) if ring::is_to_wake(&self.bed) => wire::Message::Ring,
            // Another one does.
            Ok(Pushed::ToASleeper) => return Ok(()),
            Ok(Pushed::Full) => wire::Message::Release(release),
            Err(_) => return Err(self.breaks("it has taken more from the ring than there was")),
        };
        if message == wire::Message::Ring {
            self.wake_exporter();
            if self.is_to_wake.load(Ordering::SeqCst) {
                reaper::wake();
            }
            return Ok(());
        }
        say(&self.connection, &message, &[], Duration::ZERO).map(drop)
    }

    /// Tells the exporter to look at the ring, now or as soon as it can be. What is in the ring is there.
    fn wake_exporter(&self) {
        match say(&self.connection, &wire::Message::Ring, &[], Duration::ZERO) {
            // One whose queue is full has something to wake up for.
            Err(error) if !error.is_timeout() && !error.is_gone() && !matches!(error, Error::Broken) => {
                // The system is short of something. Nobody else wakes it: the exporter does not say again that it sleeps.
                self.is_to_wake.store(true, Ordering::SeqCst);
            }
            _ => {}
        }
    }

    /// Gives a buffer back, now or as soon as it can be.
    pub(in crate::shared) fn give_back(&self, mut returned: Returned) {
        if returned.is_sent(self) {
            self.gone_back();
            return;
        }
        self.keep_unsent(returned);
        if self.is_over() {
            // The thread may have looked for the last time.
            self.settle_unsent();
        } else {
            reaper::wake();
        }
    }

    fn keep_unsent(&self, returned: Returned) {
        let count = {
            let mut unsent = lock(&self.unsent);
            unsent.push(returned);
            unsent.len()
        };
        if count > MOST_UNHEARD {
            // Of one that is broken everything counts as given back.
            let _ = self.breaks("it does not take what is given back");
        }
    }

    /// Gives back what could not be before. Once the exporter is gone, that is all of it: its uses go to the segments, whose
    /// release waits for them.
    fn settle_unsent(&self) {
        let unsent = std::mem::take(&mut *lock(&self.unsent));
        for mut returned in unsent {
            if returned.is_sent(self) {
                self.gone_back();
            } else {
                lock(&self.unsent).push(returned);
            }
        }
    }

    /// As [`settle_unsent`](Self::settle_unsent), by a thread that may be held up: it gives streams work.
    fn settle_in_turn(&self) {
        self.settle_unsent();
        if self.is_over() {
            // What was on its way when the exporter's end was looked after.
            self.settle_unsent();
        }
        self.is_settling.store(false, Ordering::SeqCst);
    }

    fn gone_back(&self) {
        self.live.fetch_sub(1, Ordering::SeqCst);
        self.let_go_of_kept();
        if !self.is_open.load(Ordering::SeqCst) {
            reaper::wake();
        }
    }

    /// Whether no buffer is out any more.
    pub(super) fn is_let_go(&self) -> bool {
        !self.is_open.load(Ordering::SeqCst) && self.live.load(Ordering::SeqCst) == 0
    }
}

impl Watched for ImportLink {
    fn connection(&self) -> &Connection {
        &self.connection
    }

    fn reads(&self) -> bool {
        false
    }

    fn service(self: Arc<Self>) -> Result<()> {
        if self.is_to_wake.swap(false, Ordering::SeqCst) {
            self.wake_exporter();
        }
        if !lock(&self.unsent).is_empty() && !self.is_settling.swap(true, Ordering::SeqCst) {
            let link = Arc::clone(&self);
            releases::queue([move || link.settle_in_turn()]);
        }
        if self.slabs.load(Ordering::SeqCst) > 0 {
            self.let_go_of_slabs();
        }
        Ok(())
    }

    fn branch(&self) -> Option<&Branch> {
        (!self.is_deaf.load(Ordering::Acquire)).then_some(&self.branch)
    }

    fn hear(self: Arc<Self>) -> Result<()> {
        self.hear_ahead(MOST_AT_A_TIME)
    }

    fn is_restless(&self) -> bool {
        let is_to_wake = self.is_to_wake.load(Ordering::SeqCst);
        let is_settling = self.is_settling.load(Ordering::SeqCst);
        is_to_wake
            || is_settling
            || !lock(&self.unsent).is_empty()
            || self.is_let_go()
            || self.has_slabs_to_let_go()
    }

    fn is_done(&self) -> bool {
        // Its end is what tells the exporter that the words will not be written any more.
        let has_slabs = self.slabs.load(Ordering::SeqCst) > 0;
        self.is_let_go() && lock(&self.unsent).is_empty() && !has_slabs && self.words.own_are_reached()
    }

    fn end(self: Arc<Self>) {
        self.remember_recorded();
        self.is_over.store(true, Ordering::SeqCst);
        self.words.end();
        // Before the segments are forgotten.
        self.settle_unsent();
        self.look_for_the_last();
        // Exporters here that look after what a peer has left may have handed on what came of this one.
        ENDED.fetch_add(1, Ordering::SeqCst);
        reaper::wake();
    }
}

#[cfg(test)]
mod tests;

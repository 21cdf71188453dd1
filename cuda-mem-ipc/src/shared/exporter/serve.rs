//! What an exporter hears, on the thread that looks after peers.

use std::io::PipeReader;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::ExportLink;
use super::leases::{Lease, let_go};
use crate::error::{Error, Result};
use crate::shared::reaper::Watched;
use crate::shared::releases::{bury, bury_in_turn};
use crate::shared::wire::{self, Release};
use crate::shared::words::{Point, ReleaseFence};
use crate::shared::{Heard, MOST_AT_A_TIME, heard, lock, ring};
use crate::transport::Connection;

impl ExportLink {
    /// The lease that has ended. Its buffer, and all that the buffer has, may end with it and wait for streams: not here.
    fn take_release(&self, release: Release) -> Result<Lease> {
        let Release { sequence, line, generation } = release;
        let Some(lease) = self.end_lease(sequence) else {
            let (pid, what) = (self.connection.peer().pid(), "it releases what it does not have");
            return Err(Error::Protocol { pid, what });
        };
        if generation > 0 {
            let (words, point) = (Arc::clone(&self.words), Point { line, generation });
            words.expect(point);
            lease.holder.released(ReleaseFence { words, point });
        }
        Ok(lease)
    }

    /// Nobody there has it any more.
    fn take_slab(&self, segment: u64) -> Result<()> {
        let Some(slab) = lock(&self.slabs).remove(&segment) else {
            let (pid, what) = (self.connection.peer().pid(), "it lets go of what it does not have");
            return Err(Error::Protocol { pid, what });
        };
        // If it does so of its own accord, it has to be told anew.
        self.forget(&mut lock(&self.announced), segment);
        bury_in_turn(slab);
        Ok(())
    }

    /// Without leases nobody needs the segments there.
    fn retire_all(&self) {
        let mut announced = lock(&self.announced);
        let slabs = lock(&self.slabs);
        let retiring = slabs.keys().filter_map(|&segment| self.forget(&mut announced, segment));
        lock(&self.retiring).extend(retiring);
    }

    /// What has come by the ring.
    fn take_releases(&self) -> Result<()> {
        let pid = self.connection.peer().pid();
        let mut releases = lock(&self.releases);
        let mut take = || {
            let what = "it has put more into the ring than there is room for";
            let Some(entry) = releases.peek().map_err(|_| Error::Protocol { pid, what })? else {
                return Ok(None);
            };
            releases.advance();
            let release = Release::of_entry(entry).map_err(|source| Error::Wire { pid, source });
            release.and_then(|release| self.take_release(release)).map(Some)
        };
        let mut ended = Vec::new();
        let mut taken = Ok(());
        for _ in 0..MOST_AT_A_TIME {
            match take() {
                Ok(Some(lease)) => ended.push(lease),
                Ok(None) => break,
                Err(error) => {
                    taken = Err(self.connection.breaks(error));
                    break;
                }
            }
        }
        let_go(ended);
        taken
    }

    fn take_messages(&self) -> Result<()> {
        for _ in 0..MOST_AT_A_TIME {
            let Heard { message, descriptors, .. } = match heard(&self.connection, Duration::ZERO) {
                Err(error) if error.is_timeout() => return Ok(()),
                // An importer names no descriptors. That nobody listens to it any more it has to hear.
                Err(error @ Error::DescriptorNotTaken { .. }) => return Err(self.connection.breaks(error)),
                result => result?,
            };
            let taken = match message {
                wire::Message::Release(release) if descriptors.is_empty() => {
                    self.take_release(release).map(|lease| let_go(vec![lease]))
                }
                wire::Message::Ring if descriptors.is_empty() => Ok(()),
                wire::Message::LetGo { segment } if descriptors.is_empty() => self.take_slab(segment),
                _ => Err(Error::Protocol {
                    pid: self.connection.peer().pid(),
                    what: "an importer does not say that",
                }),
            };
            taken.map_err(|error| self.connection.breaks(error))?;
        }
        Ok(())
    }
}

impl Watched for ExportLink {
    fn connection(&self) -> &Connection {
        &self.connection
    }

    fn reads(&self) -> bool {
        true
    }

    fn service(self: Arc<Self>) -> Result<()> {
        // Both, whatever the other says: what a peer has given back before it ended counts. What is in the ring was there before the
        // end was heard.
        let (heard, released) = (self.take_messages(), self.take_releases());
        let taken = released.and(heard);
        if taken.as_ref().is_err_and(|error| !error.is_the_system_s()) {
            self.is_closing.store(true, Ordering::Release);
            return taken;
        }
        if self.is_let_go() {
            self.retire_all();
        }
        self.say_retired();
        self.say_forgotten();
        taken
    }

    fn may_sleep(&self) -> bool {
        let position = lock(&self.releases).position();
        ring::may_doze(&self.bed, position)
    }

    fn awake(&self) {
        ring::rise(&self.bed);
    }

    fn is_restless(&self) -> bool {
        !lock(&self.retiring).is_empty() || lock(&self.given).has_unwanted() || self.is_let_go()
    }

    fn is_done(&self) -> bool {
        // As long as the peer has to reach something, it is watched. Whoever tells it of a segment just now ends first.
        self.is_let_go() && self.words.expected_are_reached() && {
            let _announced = lock(&self.announced);
            lock(&self.slabs).is_empty()
        }
    }

    fn leave(&self) {
        // All that it has said it would reach was reached just now, and it can take that back.
        self.words.end();
    }

    fn has_heirs(&self) -> bool {
        self.words.were_handed_on()
    }

    fn keepers(&self) -> Option<&PipeReader> {
        Some(&self.keepers)
    }

    fn outlive(&self) {
        self.is_closing.store(true, Ordering::Release);
        lock(&self.leases).are_over = true;
    }

    fn look_after_the_rest(&self) {
        self.let_orphans_go();
    }

    fn end(self: Arc<Self>) {
        // First, so that whoever gets the memory next does not wait for the dead.
        self.words.end();
        let held = {
            let mut leases = lock(&self.leases);
            leases.are_over = true;
            std::mem::take(&mut leases.open)
        };
        let_go(held.into_values().collect());
        bury(std::mem::take(&mut *lock(&self.slabs)));
    }
}

#[cfg(test)]
mod tests;

//! What an importer keeps for the owners of what its exporter handed on, and when it lets go of it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_mem_pool::cuda_mem_core::{Driver, forked};

use super::ImportLink;
use super::ahead::Counted;
use super::known::Known;
use crate::error::Result;
use crate::import::Ending;
use crate::shared::keepsake::{Keepsake, forget_unwanted};
use crate::shared::releases::{Resting, bury, bury_in_turn, rest};
use crate::shared::returned::Returned;
use crate::shared::segment::Segment;
use crate::shared::words::Recorded;
use crate::shared::{lock, reaper};

/// How many a peer may have this process keep at a time.
const MOST_KEPT: usize = 4096;

#[derive(Default)]
pub(super) struct Kept {
    keepsakes: Vec<Held>,
    /// How many messages have come that said to keep something, and which of those to come are too late. The exporter says what need not
    /// be kept by another way.
    heard: u64,
    unwanted: BTreeSet<u64>,
    /// Buffers that came back when the exporter was gone, whose uses it cannot be told of.
    returned: Vec<Returned>,
    /// What it was told of before.
    recorded: Option<Recorded>,
}

struct Held {
    /// How many messages of its kind came before the last one that it came with.
    number: u64,
    keepsake: Keepsake,
}

impl ImportLink {
    /// What whoever gets a buffer of this link next has to keep. The exporter is told that there may be somebody.
    pub(in crate::shared) fn keepsakes(&self) -> Vec<Keepsake> {
        self.words.say_handed_on();
        let kept = lock(&self.kept);
        kept.keepsakes.iter().map(|held| &held.keepsake).chain([&self.keepsake]).cloned().collect()
    }

    /// Keeps what the exporter was sent in its turn, or has made.
    pub(super) fn keep(&self, descriptor: OwnedFd) -> Result<()> {
        let Some(keepsake) = Keepsake::sent(descriptor) else {
            return Err(self.breaks("it has this process keep what is no pipe"));
        };
        let mut kept = lock(&self.kept);
        let number = kept.heard;
        kept.heard = number.saturating_add(1);
        if kept.unwanted.remove(&number) {
            return Ok(());
        }
        if let Some(known) = kept.keepsakes.iter_mut().find(|known| known.keepsake.is(&keepsake)) {
            // It is forgotten with the last that came.
            known.number = number;
            return Ok(());
        }
        forget_unwanted(&mut kept.keepsakes, |held| &held.keepsake);
        if kept.keepsakes.len() >= MOST_KEPT {
            drop(kept);
            return Err(self.breaks("it has this process keep more than is accepted"));
        }
        kept.keepsakes.push(Held { number, keepsake });
        Ok(())
    }

    /// The exporter does not keep it any more, because all that came of it has gone back, from here too. May come before it is to be kept.
    pub(super) fn keep_no_more(&self, number: u64) -> Result<()> {
        let mut kept = lock(&self.kept);
        if self.is_over() {
            // All is let go of as soon as it can be.
            return Ok(());
        }
        if number >= kept.heard {
            kept.unwanted.insert(number);
            let are_many = kept.unwanted.len() > MOST_KEPT;
            drop(kept);
            return if are_many { Err(self.breaks("it takes back more than may be kept")) } else { Ok(()) };
        }
        if let Some(index) = kept.keepsakes.iter().position(|held| held.number == number) {
            let unwanted = kept.keepsakes.swap_remove(index);
            drop(kept);
            drop(unwanted);
            // Others were sent it.
            reaper::wake();
        }
        Ok(())
    }

    /// Whether a buffer was taken, of an exporter that is gone, whose uses somebody else waits for.
    pub(in crate::shared) fn outlives(&self, returned: &mut Returned) -> bool {
        let mut kept = lock(&self.kept);
        let is_kept = self.is_over() && !kept.keepsakes.is_empty();
        if is_kept {
            kept.returned.push(returned.take());
        }
        is_kept
    }

    /// The exporter is gone. What streams were given to tell it is what others wait for.
    pub(super) fn remember_recorded(&self) {
        let mut kept = lock(&self.kept);
        if !kept.keepsakes.is_empty() {
            kept.recorded = Recorded::of(&self.words);
        }
    }

    /// For segments that are about to be taken out of the books: what is kept stays until the driver has let go of them, because an owner
    /// must not free a block of a pool before that.
    pub(super) fn parting(&self) -> Parting {
        Parting { segments: Vec::new(), counted: Some(Counted::new(&self.parting, 1)) }
    }

    /// Lets go of it all once nothing more comes of an exporter that is gone and all that came has gone back.
    pub(super) fn let_go_of_kept(&self) {
        let is_last = self.is_exhausted.load(Ordering::SeqCst) && self.live.load(Ordering::SeqCst) == 0;
        if is_last && self.is_over() {
            self.bury_kept();
        }
    }

    fn bury_kept(&self) {
        let kept = std::mem::take(&mut *lock(&self.kept));
        if !kept.keepsakes.is_empty() || kept.recorded.is_some() {
            rest(Last { kept, parting: Arc::clone(&self.parting), driver: self.context.driver() });
        }
    }
}

impl Drop for ImportLink {
    fn drop(&mut self) {
        if !forked() {
            // Nobody has a buffer of it any more.
            let parting = self.parting();
            parting.bury(std::mem::take(&mut *lock(&self.segments)));
            self.bury_kept();
        }
    }
}

/// Segments that are let go of, by a thread that may wait for those that are being mapped.
pub(super) struct Parting {
    segments: Vec<Known>,
    /// There until the drop.
    counted: Option<Counted>,
}

impl Parting {
    /// Lets go of them all. Often there are none, and it is asked again and again.
    pub(super) fn bury(mut self, segments: BTreeMap<u64, Known>) {
        if !segments.is_empty() {
            self.segments = segments.into_values().collect();
            bury(self);
        }
    }

    pub(super) fn bury_one(mut self, known: Known) {
        let may_wait = matches!(known, Known::Ahead(_));
        self.segments = vec![known];
        if may_wait {
            // It may be being mapped.
            bury_in_turn(self);
        }
    }
}

impl Drop for Parting {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        let endings: Vec<_> =
            std::mem::take(&mut self.segments).into_iter().filter_map(Known::part).collect();
        if !endings.is_empty() {
            rest(Parted { endings, _counted: self.counted.take() });
        }
    }
}

/// Segments that were let go of, until their memory is gone: work that uses it may run yet, and a driver frees a block of a pool some time
/// after it was told to.
struct Parted {
    endings: Vec<Ending<Segment>>,
    _counted: Option<Counted>,
}

impl Resting for Parted {
    fn has_passed(&mut self) -> bool {
        self.endings.iter().all(Ending::is_over)
    }
}

/// The last of what this process has of somebody: closed when its streams are done with it.
struct Last {
    kept: Kept,
    /// How much of what was let go of is not gone.
    parting: Arc<AtomicUsize>,
    driver: Driver,
}

impl Resting for Last {
    fn has_passed(&mut self) -> bool {
        let Kept { returned, recorded, .. } = &mut self.kept;
        // All are asked at once: work that a stream is given later is nobody's who waits.
        returned.retain_mut(|one| !one.has_passed());
        recorded.as_mut().is_none_or(Recorded::is_reached) && returned.is_empty()
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        // What has come back ends before it can be gone.
        self.kept.returned.clear();
        // Their end waits for streams, later work too.
        bury(self.kept.recorded.take());
        // From here on the memory may be used by others.
        let keepsakes = std::mem::take(&mut self.kept.keepsakes);
        rest(Behind { parting: Arc::clone(&self.parting), driver: self.driver, keepsakes });
    }
}

/// What is closed when all that was let go of is gone.
struct Behind {
    parting: Arc<AtomicUsize>,
    driver: Driver,
    keepsakes: Vec<Held>,
}

impl Resting for Behind {
    fn has_passed(&mut self) -> bool {
        // Nobody else may be left to ask the driver.
        self.driver.reclaim();
        self.parting.load(Ordering::SeqCst) == 0
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.keepsakes.clear();
        if !forked() {
            // Those who were sent them need not keep them either.
            reaper::wake();
        }
    }
}

#[cfg(test)]
mod tests;

//! What an importer keeps for the owners of what its exporter handed on, and when it lets go of it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::forked;

use super::ImportLink;
use super::known::{Known, bury_all};
use crate::error::Result;
use crate::shared::keepsake::{Keepsake, forget_unwanted};
use crate::shared::lock;
use crate::shared::releases::{Resting, bury, rest};
use crate::shared::returned::Returned;
use crate::shared::slab::Leaving;
use crate::shared::words::Recorded;

/// How many a peer may have this process keep at a time.
const MOST_KEPT: usize = 4096;

#[derive(Default)]
pub(super) struct Kept {
    keepsakes: Vec<Keepsake>,
    /// Buffers that came back when the exporter was gone, whose uses it cannot be told of.
    returned: Vec<Returned>,
    /// What it was told of before.
    recorded: Option<Recorded>,
    /// What it had announced, which is unmapped first.
    segments: Vec<Known>,
}

impl ImportLink {
    /// What whoever gets a buffer of this link next has to keep. The exporter is told that there may be somebody.
    pub(in crate::shared) fn keepsakes(&self) -> Vec<Keepsake> {
        self.words.say_handed_on();
        let mut keepsakes = lock(&self.kept).keepsakes.clone();
        keepsakes.push(self.keepsake.clone());
        keepsakes
    }

    /// Keeps what the exporter was sent in its turn, or has made.
    pub(super) fn keep(&self, descriptor: OwnedFd) -> Result<()> {
        let Some(keepsake) = Keepsake::sent(descriptor) else {
            return Err(self.breaks("it has this process keep what is no pipe"));
        };
        let mut kept = lock(&self.kept);
        forget_unwanted(&mut kept.keepsakes);
        if kept.keepsakes.len() >= MOST_KEPT {
            drop(kept);
            return Err(self.breaks("it has this process keep more than is accepted"));
        }
        kept.keepsakes.push(keepsake);
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

    /// Nothing more comes of the exporter's segments. Their release waits for streams.
    pub(super) fn part_with(&self, segments: BTreeMap<u64, Known>) {
        let mut kept = lock(&self.kept);
        if kept.keepsakes.is_empty() {
            drop(kept);
            bury_all(segments);
        } else {
            kept.segments.extend(segments.into_values());
        }
    }

    /// Lets go of it all once nothing more comes of an exporter that is gone and all that came has gone back.
    pub(super) fn let_go_of_kept(&self) {
        let is_last = self.is_exhausted.load(Ordering::SeqCst) && self.live.load(Ordering::SeqCst) == 0;
        if is_last && self.is_over() {
            bury_kept(&mut lock(&self.kept));
        }
    }
}

impl Drop for ImportLink {
    fn drop(&mut self) {
        if !forked() {
            // Nobody has a buffer of it any more.
            bury_kept(self.kept.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner));
        }
    }
}

fn bury_kept(kept: &mut Kept) {
    let kept = std::mem::take(kept);
    if !kept.keepsakes.is_empty() {
        bury(Last(kept));
    }
}

/// The last of what this process has of somebody: closed when its streams are done with it.
struct Last(Kept);

impl Last {
    fn is_over(&mut self) -> bool {
        let Kept { returned, recorded, .. } = &mut self.0;
        returned.iter_mut().all(Returned::is_over) && recorded.as_ref().is_none_or(Recorded::is_reached)
    }
}

impl Drop for Last {
    fn drop(&mut self) {
        while !forked() && !self.is_over() {
            thread::sleep(Duration::from_millis(1));
        }
        self.0.returned.clear();
        let leaving: Vec<_> = self.0.segments.drain(..).filter_map(Known::end).collect();
        let behind = Behind { leaving, _keepsakes: std::mem::take(&mut self.0.keepsakes) };
        // Last: from here on the memory may be used by others.
        rest(behind);
    }
}

/// What is closed when the driver has freed the blocks of pools.
struct Behind {
    leaving: Vec<Leaving>,
    _keepsakes: Vec<Keepsake>,
}

impl Resting for Behind {
    fn has_passed(&mut self) -> bool {
        self.leaving.iter().all(Leaving::is_over)
    }
}

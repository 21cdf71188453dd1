//! The last uses of memory that is free.

use cuda_mem_pool::cuda_mem_core::{Stream, UsePoint};

use super::books::Pending;
use super::words::ReleaseFence;
use crate::error::Result;

/// From so many on, those that are over are looked for.
const MANY: usize = 8;

/// What used a piece of memory last: streams of this process, and receivers.
#[derive(Debug, Clone, Default)]
pub(super) struct Last {
    points: Vec<UsePoint>,
    releases: Vec<ReleaseFence>,
}

impl Last {
    pub(super) fn add_points(&mut self, points: Vec<UsePoint>) {
        self.points.extend(points);
        self.forget_what_is_over();
    }

    /// Forgets nothing: the thread that looks after peers calls this, and the last handle to a stream or to words is not dropped there.
    pub(super) fn add_release(&mut self, release: ReleaseFence) {
        self.releases.push(release);
    }

    /// Whether there was none.
    pub(super) fn is_empty(&self) -> bool {
        self.points.is_empty() && self.releases.is_empty()
    }

    /// Orders `stream` behind all of it. The host waits for nothing.
    pub(super) fn order(&mut self, stream: &Stream) -> Result<()> {
        self.releases.retain(|release| !release.is_over());
        self.points.iter().try_for_each(|point| point.order(stream))?;
        self.releases.iter().try_for_each(|release| release.order(stream))
    }

    /// Whether nobody need wait for any of it.
    pub(super) fn is_over(&self) -> bool {
        let is_over = |point: &UsePoint| point.is_reached().unwrap_or(false);
        self.releases.iter().all(ReleaseFence::is_over) && self.points.iter().all(is_over)
    }

    /// Whether `stream` need not wait for any of it.
    pub(super) fn is_over_for(&self, stream: &Stream) -> bool {
        let is_over = |point: &UsePoint| point.stream() == stream || point.is_reached().unwrap_or(false);
        self.releases.iter().all(ReleaseFence::is_over) && self.points.iter().all(is_over)
    }

    fn forget_what_is_over(&mut self) {
        if self.points.len() >= MANY {
            self.points.retain(|point| !point.is_reached().unwrap_or(false));
        }
        if self.releases.len() >= MANY {
            self.releases.retain(|release| !release.is_over());
        }
    }
}

impl Pending for Last {
    fn join(&mut self, other: Self) {
        self.releases.extend(other.releases);
        self.add_points(other.points);
        self.forget_what_is_over();
    }
}

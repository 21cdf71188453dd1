//! What used bytes last that are free now.

use std::sync::Mutex;

use cuda_mem_pool::cuda_mem_core::{self as core, Stream, UsePoint, UsedElsewhere};

use super::words::ReleaseFence;
use crate::error::Result;
use crate::free_list::PendingUses;
use crate::primitive::lock;

/// From so many on, those that are over are looked for.
const MANY: usize = 8;

/// What used a piece of memory last: streams of this process, and receivers. Of a stream it has the last point and of a receiver's line the last
/// fence, for what comes before is reached before: who waits for all of it takes a wait for each stream and line, however many uses there were.
#[derive(Debug, Clone, Default)]
pub(super) struct Last {
    points: Vec<UsePoint>,
    releases: Vec<ReleaseFence>,
    /// How many there have to be before those that are over are looked for again.
    enough: usize,
}

impl Last {
    pub(super) fn add_points(&mut self, points: Vec<UsePoint>) {
        for point in points {
            if !self.points.iter().any(|known| known.is_behind(&point)) {
                self.points.retain(|known| !point.is_behind(known));
                self.points.push(point);
            }
        }
        let count = |last: &Self| last.points.len().saturating_add(last.releases.len());
        if count(self) >= self.enough.max(MANY) {
            self.points.retain(|point| !point.is_reached().unwrap_or(false));
            self.releases.retain(|release| !release.is_over());
            self.enough = count(self).saturating_mul(2);
        }
    }

    /// Forgets nothing: the thread that looks after peers calls this, and the last handle to a stream or to words is not dropped there.
    pub(super) fn add_release(&mut self, release: ReleaseFence) {
        match self.releases.iter_mut().find(|known| known.is_of_the_line_of(&release)) {
            Some(known) => known.point.generation = known.point.generation.max(release.point.generation),
            None => self.releases.push(release),
        }
    }

    /// Orders `stream` behind all of it. The host waits for nothing but room in the stream, which may take as long as the work before it.
    pub(super) fn order(&self, stream: &Stream) -> Result<()> {
        self.points.iter().try_for_each(|point| point.order(stream))?;
        self.releases.iter().try_for_each(|release| release.order(stream))
    }

    /// Whether a stream, or any user of the memory, need not wait for any of it.
    pub(super) fn is_over(&self, stream: Option<&Stream>) -> bool {
        let is_over =
            |point: &UsePoint| stream == Some(point.stream()) || point.is_reached().unwrap_or(false);
        self.releases.iter().all(ReleaseFence::is_over) && self.points.iter().all(is_over)
    }

    /// Whether `stream` may be made to wait for all of it: a receiver that never reaches its fences gets few streams.
    pub(super) fn may_order(&self, stream: &Stream) -> bool {
        self.releases.iter().all(|release| release.may_order(stream))
    }
}

/// The same of a buffer that somebody has, while receivers give it back. The thread that looks after peers says so: the lock is held for a
/// moment, and never while the driver is called.
#[derive(Debug, Default)]
pub(super) struct Past(pub(super) Mutex<Last>);

impl Past {
    pub(super) fn add_release(&self, release: ReleaseFence) {
        lock(&self.0).add_release(release);
    }

    /// A copy of what is not known to be over.
    pub(super) fn left(&self) -> Last {
        let mut last = lock(&self.0);
        last.releases.retain(|release| !release.is_over());
        last.clone()
    }

    pub(super) fn take(&self) -> Last {
        std::mem::take(&mut *lock(&self.0))
    }
}

impl UsedElsewhere for Past {
    fn order(&self, stream: &Stream) -> core::Result<()> {
        Ok(self.left().order(stream)?)
    }
}

impl PendingUses for Last {
    fn join(&mut self, other: Self) {
        other.releases.into_iter().for_each(|release| self.add_release(release));
        self.add_points(other.points);
    }
}

//! Which bytes of a segment are free, and what used them last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use cuda_mem_pool::cuda_mem_core::{Stream, UsePoint};

use super::words::ReleaseFence;
use crate::error::Result;
use crate::primitive::lock;

/// What has to be waited for before free bytes are used again. Parts of a region inherit it, neighbours join theirs.
pub(super) trait PendingUses: Clone {
    fn join(&mut self, other: Self);
}

/// How many of the regions that are large enough are looked at for one that need not be waited for.
const LOOKED_AT: usize = 16;

/// Keeps the free regions of a segment: best fit, neighbours joined at once.
#[derive(Debug)]
pub(super) struct FreeList<P> {
    /// By offset.
    free: BTreeMap<usize, Region<P>>,
    /// Length and offset of the same regions.
    sizes: BTreeSet<(usize, usize)>,
    bytes: usize,
}

#[derive(Debug)]
struct Region<P> {
    len: usize,
    pending: P,
}

impl<P: PendingUses> FreeList<P> {
    pub(super) fn new(bytes: usize, pending: P) -> Self {
        let mut list = Self { free: BTreeMap::new(), sizes: BTreeSet::new(), bytes };
        list.insert(0, bytes, pending);
        list
    }

    /// Takes `len` bytes from the smallest region that has them and that is `wanted`.
    pub(super) fn take(&mut self, len: usize, wanted: impl Fn(&P) -> bool) -> Option<(usize, P)> {
        let fitting = self.sizes.range((len, 0)..).take(LOOKED_AT);
        let is_wanted = |offset: &usize| self.free.get(offset).is_some_and(|region| wanted(&region.pending));
        let offset = fitting.map(|&(_, offset)| offset).find(is_wanted)?;
        let region = self.remove(offset)?;
        let rest = region.len.saturating_sub(len);
        if rest > 0 {
            self.insert(offset.saturating_add(len), rest, region.pending.clone());
        }
        Some((offset, region.pending))
    }

    pub(super) fn give(&mut self, mut offset: usize, mut len: usize, mut pending: P) {
        if let Some(after) = self.remove(offset.saturating_add(len)) {
            len = len.saturating_add(after.len);
            pending.join(after.pending);
        }
        let before = self.free.range(..offset).next_back().map(|(&at, region)| (at, region.len));
        if let Some((at, before_len)) = before
            && at.saturating_add(before_len) == offset
            && let Some(before) = self.remove(at)
        {
            (offset, len) = (at, len.saturating_add(before.len));
            pending.join(before.pending);
        }
        self.insert(offset, len, pending);
    }

    pub(super) fn is_unused(&self) -> bool {
        self.free.get(&0).is_some_and(|region| region.len == self.bytes)
    }

    fn insert(&mut self, offset: usize, len: usize, pending: P) {
        self.sizes.insert((len, offset));
        self.free.insert(offset, Region { len, pending });
    }

    fn remove(&mut self, offset: usize) -> Option<Region<P>> {
        let region = self.free.remove(&offset)?;
        self.sizes.remove(&(region.len, offset));
        Some(region)
    }
}

/// From so many on, those that are over are looked for.
const MANY: usize = 8;

/// What used a piece of memory last: streams of this process, and receivers. Of a stream it has the last point and of a receiver's line the
/// last fence, for what comes before is reached before: who waits for all of it takes a wait for each stream and line, however many
/// uses there were.
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
        self.forget_what_is_over();
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

    /// Whether a stream, or whoever it is, need not wait for any of it.
    pub(super) fn is_over(&self, stream: Option<&Stream>) -> bool {
        let is_over =
            |point: &UsePoint| stream == Some(point.stream()) || point.is_reached().unwrap_or(false);
        self.releases.iter().all(ReleaseFence::is_over) && self.points.iter().all(is_over)
    }

    /// Whether `stream` may be made to wait for all of it: a receiver that never reaches its fences gets few streams.
    pub(super) fn may_order(&self, stream: &Stream) -> bool {
        self.releases.iter().all(|release| release.may_order(stream))
    }

    fn forget_what_is_over(&mut self) {
        let count = |last: &Self| last.points.len().saturating_add(last.releases.len());
        if count(self) < self.enough.max(MANY) {
            return;
        }
        self.points.retain(|point| !point.is_reached().unwrap_or(false));
        self.releases.retain(|release| !release.is_over());
        self.enough = count(self).saturating_mul(2);
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

impl PendingUses for Last {
    fn join(&mut self, other: Self) {
        other.releases.into_iter().for_each(|release| self.add_release(release));
        self.add_points(other.points);
    }
}

#[cfg(test)]
mod tests;

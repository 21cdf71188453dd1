//! Keeps blocks that were freed while streams still use them, until they do not.

use cuda_mem_core::{Error, StreamId, UsePoint, Uses};

use super::block::FreeBlock;
use crate::primitive::{AtomicUsize, Mutex, Ordering, lock, try_lock};

/// The freed blocks of all streams, in the order of their frees.
#[derive(Debug, Default)]
pub(super) struct Pending(Waiters<Waiting>);

/// A block and the points that it waits for, behind all of its uses. None before they could be recorded, because a stream captures.
#[derive(Debug)]
struct Waiting {
    block: FreeBlock,
    points: Option<Vec<UsePoint>>,
}

impl Pending {
    /// Has `block` wait until no use runs any more. It comes back if it has none.
    pub(super) fn push(&self, mut block: FreeBlock) -> Option<FreeBlock> {
        let points = block.uses.points().ok();
        if points.as_ref().is_some_and(Vec::is_empty) {
            return Some(block);
        }
        self.0.push(Waiting { block, points });
        None
    }

    /// The blocks that nothing uses any more. Asks the driver, of each stream until it has not come far enough: one that is slow
    /// holds up its own blocks alone.
    pub(super) fn poll(&self) -> impl Iterator<Item = FreeBlock> {
        let mut behind = Vec::new();
        self.0.take(|waiting| waiting.is_over(&mut behind)).into_iter().map(Waiting::into_block)
    }

    /// Waits for every block that has its points. All blocks, those without points with their uses.
    pub(super) fn drain(&self) -> Vec<FreeBlock> {
        let mut drained = Vec::new();
        for waiting in self.0.take_all() {
            let Some(points) = &waiting.points else {
                drained.push(waiting.block);
                continue;
            };
            // Whatever else a wait says: nothing of it runs any more.
            let running = points.iter().find_map(|point| match point.wait() {
                Err(error @ Error::StillInUse { .. }) => Some((point, error)),
                _ => None,
            });
            if let Some((point, error)) = running {
                point.stream().context().driver().report_release_failure(&error);
                // Leaked, and its segment with it.
                let _ = std::mem::ManuallyDrop::new(waiting);
            } else {
                drained.push(waiting.into_block());
            }
        }
        drained
    }
}

impl Waiting {
    /// Whether no use runs any more. `behind` are the streams that have not come far enough for an earlier block.
    fn is_over(&mut self, behind: &mut Vec<StreamId>) -> bool {
        if self.points.is_none() {
            // A capture may have ended.
            self.points = self.block.uses.points().ok();
        }
        let Some(points) = &self.points else { return false };
        if points.iter().any(|point| behind.contains(&point.stream().id())) {
            return false;
        }
        let mut is_known = true;
        let is_over = points.iter().all(|point| {
            let reached = point.is_reached();
            is_known &= reached.is_ok();
            if matches!(reached, Ok(false)) {
                behind.push(point.stream().id());
            }
            reached.unwrap_or(false)
        });
        if !is_known {
            // A capture may have had a point that ended before it was noticed: it says nothing then, however often it is asked. The
            // next poll records later ones, unless the streams capture.
            let later = Uses::new();
            if points.iter().all(|point| later.record_stream(point.stream()).is_ok()) {
                self.block.uses = later;
            }
            self.points = None;
        }
        is_over
    }

    /// The block, whose uses are over.
    fn into_block(mut self) -> FreeBlock {
        self.block.uses = Uses::new();
        self.block
    }
}

/// Values that are looked at without the lock, so that others can still add; one looks at a time.
#[derive(Debug)]
pub(super) struct Waiters<T> {
    /// How many there are, so that the usual case costs one load.
    count: AtomicUsize,
    values: Mutex<Vec<T>>,
    looking: Mutex<()>,
}

impl<T> Default for Waiters<T> {
    fn default() -> Self {
        Self { count: AtomicUsize::new(0), values: Mutex::new(Vec::new()), looking: Mutex::new(()) }
    }
}

impl<T> Waiters<T> {
    pub(super) fn push(&self, value: T) {
        self.count.fetch_add(1, Ordering::Release);
        lock(&self.values).push(value);
    }

    /// The values that are done, the older ones first. None while another thread looks.
    pub(super) fn take(&self, mut is_done: impl FnMut(&mut T) -> bool) -> Vec<T> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let Some(_looking) = try_lock(&self.looking) else { return Vec::new() };
        let mut left = std::mem::take(&mut *lock(&self.values));
        let done: Vec<T> = left.extract_if(.., |value| is_done(value)).collect();
        let mut values = lock(&self.values);
        // Behind these is what was added meanwhile.
        left.append(&mut values);
        *values = left;
        drop(values);
        self.count.fetch_sub(done.len(), Ordering::Release);
        done
    }

    pub(super) fn take_all(&self) -> Vec<T> {
        let _looking = lock(&self.looking);
        let all = std::mem::take(&mut *lock(&self.values));
        self.count.fetch_sub(all.len(), Ordering::Release);
        all
    }
}

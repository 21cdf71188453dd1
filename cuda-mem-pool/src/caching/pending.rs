//! Blocks that other streams use beside their own.

use std::collections::{HashMap, HashSet};

use cuda_mem_core::{Stream, StreamId, UsePoint, Uses};

use super::observer::{DriverCall, Observer};
use crate::engine::paged::BlockNumber;
use crate::error::Result;
use crate::primitive::{AtomicUsize, Mutex, Ordering, lock};

/// Uses by streams other than a block's own: those of blocks in use, and of freed ones that wait until they are over.
#[derive(Debug, Default)]
pub(super) struct Pending {
    /// How many blocks there are of both kinds, so that the usual free costs one load.
    blocks: AtomicUsize,
    used: Mutex<HashMap<u64, Uses>>,
    freed: Mutex<Vec<Waiting>>,
}

/// A block that was freed while streams still used it.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) address: u64,
    pub(super) heap: u32,
    pub(super) number: BlockNumber,
    /// None before points could be recorded, because a stream captures.
    points: Option<Vec<UsePoint>>,
    uses: Uses,
}

impl Pending {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.load(Ordering::Relaxed) == 0
    }

    /// Enters a stream as a user of a block.
    pub(super) fn record_stream(&self, address: u64, stream: &Stream) -> Result<()> {
        let mut used = lock(&self.used);
        let uses = used.entry(address).or_insert_with(|| {
            self.blocks.fetch_add(1, Ordering::Release);
            Uses::new()
        });
        Ok(uses.record_stream(stream)?)
    }

    /// The uses of a block that is freed now.
    pub(super) fn take_uses(&self, address: u64) -> Option<Uses> {
        let uses = lock(&self.used).remove(&address)?;
        self.blocks.fetch_sub(1, Ordering::Release);
        Some(uses)
    }

    /// Enters the uses again of a block that could not be freed.
    pub(super) fn keep_uses(&self, address: u64, uses: Uses) {
        lock(&self.used).insert(address, uses);
        self.blocks.fetch_add(1, Ordering::Release);
    }

    /// Has a freed block wait until no use runs any more.
    pub(super) fn push(
        &self,
        address: u64,
        heap: u32,
        number: BlockNumber,
        mut uses: Uses,
        observer: &Observer,
    ) {
        let points = recorded(&mut uses, observer);
        self.put_back(Waiting { address, heap, number, points, uses });
    }

    /// The blocks whose uses are over. Asks the driver, of each stream until it has not come far enough: what was recorded there
    /// later is not over either.
    pub(super) fn poll(&self, observer: &Observer) -> Vec<Waiting> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut freed = lock(&self.freed);
        let (mut done, mut behind) = (Vec::new(), Vec::new());
        let mut at = 0;
        while let Some(waiting) = freed.get_mut(at) {
            if waiting.is_over(observer, &mut behind) {
                done.push(freed.remove(at));
            } else {
                at += 1;
            }
        }
        self.blocks.fetch_sub(done.len(), Ordering::Release);
        done
    }

    /// The points that freed blocks wait for.
    pub(super) fn points(&self) -> Vec<UsePoint> {
        lock(&self.freed).iter().filter_map(|waiting| waiting.points.clone()).flatten().collect()
    }

    /// All freed blocks that have their points, to be waited for.
    pub(super) fn take_marked(&self) -> Vec<Waiting> {
        let mut freed = lock(&self.freed);
        let mut marked = Vec::new();
        let mut at = 0;
        while let Some(waiting) = freed.get_mut(at) {
            if waiting.points.is_some() {
                marked.push(freed.remove(at));
            } else {
                at += 1;
            }
        }
        self.blocks.fetch_sub(marked.len(), Ordering::Release);
        marked
    }

    /// Waits for all uses; what each wait said.
    pub(super) fn wait(&self) -> Vec<cuda_mem_core::Result<()>> {
        let used = lock(&self.used).values().map(Uses::wait).collect::<Vec<_>>();
        let freed = lock(&self.freed).iter().map(|waiting| waiting.uses.wait()).collect::<Vec<_>>();
        used.into_iter().chain(freed).collect()
    }

    /// The addresses of all freed blocks.
    pub(super) fn freed(&self) -> HashSet<u64> {
        lock(&self.freed).iter().map(|waiting| waiting.address).collect()
    }

    /// Enters a freed block.
    pub(super) fn put_back(&self, waiting: Waiting) {
        self.blocks.fetch_add(1, Ordering::Release);
        lock(&self.freed).push(waiting);
    }
}

impl Waiting {
    fn is_over(&mut self, observer: &Observer, behind: &mut Vec<StreamId>) -> bool {
        if self.points.is_none() {
            // A capture may have ended.
            self.points = recorded(&mut self.uses, observer);
        }
        let Some(points) = &self.points else { return false };
        points.iter().all(|point| {
            let stream = point.stream().id();
            if behind.contains(&stream) {
                return false;
            }
            // After an error nothing is known: the next poll asks again.
            let reached = observer.watch(|| point.is_reached(), |_| DriverCall::Query).unwrap_or(false);
            if !reached {
                behind.push(stream);
            }
            reached
        })
    }

    /// Has the host wait for the uses.
    pub(super) fn wait(&self) -> Result<()> {
        self.points.iter().flatten().try_for_each(|point| Ok(point.wait()?))
    }

    /// Lets a stream wait for the uses.
    pub(super) fn hold_up(&self, stream: &Stream, observer: &Observer) -> Result<()> {
        let told = |point: &UsePoint| {
            let of = point.stream().id();
            DriverCall::StreamWait { stream: stream.id(), of, event: None }
        };
        observer
            .watch_all(|| Ok(self.uses.order(stream)?), |()| self.points.iter().flatten().map(told).collect())
    }
}

/// The points of uses, which are recorded now; None if that cannot be because a stream captures.
fn recorded(uses: &mut Uses, observer: &Observer) -> Option<Vec<UsePoint>> {
    let told = |point: &UsePoint| DriverCall::Record { stream: point.stream().id(), event: None };
    observer.watch_all(|| uses.points(), |points| points.iter().map(told).collect()).ok()
}

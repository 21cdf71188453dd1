//! The segments of one pool on one NUMA node.

use std::sync::Arc;

use cuda_mem_core::Result;

use super::body::FreeBlock;
use super::segment::Segment;
use super::shared::Shared;
use crate::engine::stats::Gauge;
use crate::engine::{Heap, classes};
use crate::mempool_id::MempoolId;
use crate::primitive::{AtomicBool, Mutex, Ordering, lock};

/// Memory that is never used for another pool or on another node.
#[derive(Debug)]
pub(super) struct Arena {
    shared: Arc<Shared>,
    numa_id: Option<u32>,
    /// None for the default pool.
    pool: Option<MempoolId>,
    /// Whether its blocks may stay with the threads that free them: that of the default pool on the allocator's own node.
    is_home: bool,
    /// Small and large blocks lie in segments of their own, so that a small block keeps no large segment from going back.
    small: Mutex<Heap<Arc<Segment>>>,
    large: Mutex<Heap<Arc<Segment>>>,
    /// Nobody will ask for blocks any more: what is wholly free goes back at once.
    closed: AtomicBool,
    /// Blocks that a graph may use whenever it runs: they stay until the pool is released.
    parked: Mutex<Vec<FreeBlock>>,
    /// The blocks that somebody has, of a private pool.
    active: Gauge,
}

impl Arena {
    pub(super) fn new(shared: &Arc<Shared>, pool: Option<MempoolId>, numa_id: Option<u32>) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            numa_id,
            pool,
            is_home: pool.is_none() && numa_id == shared.options().numa_id,
            small: Mutex::new(Heap::new()),
            large: Mutex::new(Heap::new()),
            closed: AtomicBool::new(false),
            parked: Mutex::default(),
            active: Gauge::default(),
        })
    }

    #[inline]
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn numa_id(&self) -> Option<u32> {
        self.numa_id
    }

    #[inline]
    pub(super) fn is_private(&self) -> bool {
        self.pool.is_some()
    }

    #[inline]
    pub(super) fn is_home(&self) -> bool {
        self.is_home
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The blocks in use, of a private pool.
    pub(super) fn active(&self) -> &Gauge {
        &self.active
    }

    /// A block of `size` bytes, which are rounded already, if one is free.
    pub(super) fn take(&self, size: usize) -> Option<FreeBlock> {
        lock(self.heap(size)).allocate(size).map(|grant| FreeBlock::new(&grant, size))
    }

    /// Adds a segment and takes a block out of it before anybody else can.
    pub(super) fn add_and_take(&self, segment: Segment, size: usize) -> Option<FreeBlock> {
        let mut heap = lock(self.heap(size));
        if let Err(refused) = heap.add_segment(segment.bytes(), Arc::new(segment)) {
            // It calls the driver as it goes.
            drop(heap);
            drop(refused);
            return None;
        }
        heap.allocate(size).map(|grant| FreeBlock::new(&grant, size))
    }

    /// Adds a segment for small blocks.
    pub(super) fn add_small(&self, segment: Segment) {
        let refused = lock(&self.small).add_segment(segment.bytes(), Arc::new(segment));
        drop(refused);
        if self.is_closed() {
            // Closed while the segment was pinned: nobody comes for it, nor trims any more.
            self.trim(|_| false);
        }
    }

    /// The bytes that are free for small blocks.
    pub(super) fn small_free(&self) -> usize {
        lock(&self.small).free_bytes()
    }

    /// Takes back a block that nothing uses any more. Whether its segment is wholly free then, and still here.
    pub(super) fn put(&self, block: FreeBlock) -> bool {
        let freed = lock(self.heap(block.capacity)).free(block.id);
        // The segment may go with the block; not under the lock.
        drop(block);
        let whole = freed.is_ok_and(|freed| freed.whole_segment);
        if whole && self.is_closed() {
            self.trim(|_| false);
            return false;
        }
        whole
    }

    /// Keeps a block of a private pool away from everybody until the pool is released.
    pub(super) fn park(&self, block: FreeBlock) {
        lock(&self.parked).push(block);
        if self.is_closed() {
            self.unpark();
        }
    }

    /// Gives wholly free segments back, large ones first, until `enough`, which is told the bytes given back. Calls the driver.
    pub(super) fn trim(&self, mut enough: impl FnMut(usize) -> bool) -> usize {
        let mut bytes = 0usize;
        for heap in [&self.large, &self.small] {
            let taken = lock(heap).take_free(|taken| enough(bytes.saturating_add(taken)));
            bytes = taken.iter().fold(bytes, |sum, (size, _)| sum.saturating_add(*size));
            // Dropped here, without the lock.
            drop(taken);
        }
        bytes
    }

    /// Whether far more is held for large blocks than was ever in use at once.
    pub(super) fn has_surplus(&self) -> bool {
        lock(&self.large).surplus() > 0
    }

    /// Unpins wholly free segments of that. Calls the driver, which waits for all work of the context. What comes back is done with, and
    /// is to be dropped by who has no lock.
    pub(super) fn unpin_surplus(&self) -> Vec<(usize, Arc<Segment>)> {
        let mut taken = lock(&self.large).take_surplus();
        // Nobody else has one that is wholly free; another one's drop unpins it.
        taken.iter_mut().filter_map(|(_, segment)| Arc::get_mut(segment)).for_each(Segment::unpin);
        taken
    }

    /// Nobody asks for blocks any more: gives back what is free, and later each segment as it becomes free.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.unpark();
        self.trim(|_| false);
    }

    fn unpark(&self) {
        let parked = std::mem::take(&mut *lock(&self.parked));
        parked.into_iter().for_each(|block| self.shared.await_uses(block));
    }

    /// The heap for blocks of this size.
    fn heap(&self, size: usize) -> &Mutex<Heap<Arc<Segment>>> {
        if size >= classes::LARGE { &self.large } else { &self.small }
    }

    /// Pins the segment that a block of `size` bytes needs. Calls the driver.
    pub(super) fn pin(self: &Arc<Self>, bytes: usize) -> Result<Segment> {
        Segment::new(self, bytes)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::pinned_cache::PinnedCacheOptions;
    use cuda_mem_core::Driver;

    /// The thread that pins ahead may be at it while the last handle goes, in a hook that it runs.
    #[test]
    fn what_is_pinned_ahead_for_a_closed_arena_goes_back() {
        let driver = Driver::over(cuda_mem_sim::table()).unwrap();
        let context = driver.device(0).unwrap().primary_context().unwrap();
        let shared = Shared::new(&context, PinnedCacheOptions::default());
        let arena = shared.arena(None);
        let segment = arena.pin(2 << 20).unwrap();
        shared.close();
        arena.add_small(segment);
        assert_eq!(shared.counters().held.current().count, 0);
    }
}

//! The segments of one pool on one NUMA node.

use std::sync::Arc;

use super::block::{Body, FreeBlock};
use super::heap::Heap;
use super::segment::Segment;
use super::shared::Shared;
use super::thread_cache;
use crate::engine::classes;
use crate::mempool_id::MempoolId;
use crate::primitive::{AtomicBool, Mutex, Ordering, lock};

/// Memory that is never used for another pool or on another node.
#[derive(Debug)]
pub(super) struct Arena {
    pub(super) shared: Arc<Shared>,
    pub(super) numa_id: Option<u32>,
    /// None for the default pool.
    pool: Option<MempoolId>,
    /// Whether its blocks may stay with the threads that free them: that of the default pool on the allocator's own node.
    pub(super) is_home: bool,
    /// Small and large blocks lie in segments of their own, so that a small block keeps no large segment from going back.
    small: Mutex<Heap<Arc<Segment>>>,
    large: Mutex<Heap<Arc<Segment>>>,
    /// Nobody will ask for blocks any more: what is wholly free goes back at once.
    closed: AtomicBool,
    /// Blocks that a graph may use whenever it runs: they stay until the pool is released.
    parked: Mutex<Vec<FreeBlock>>,
    /// How many blocks of a private pool somebody has, and their bytes.
    in_use: Mutex<(u64, u64)>,
}

impl Arena {
    pub(super) fn new(shared: &Arc<Shared>, pool: Option<MempoolId>, numa_id: Option<u32>) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            numa_id,
            pool,
            is_home: pool.is_none() && numa_id == shared.options.numa_id,
            small: Mutex::new(Heap::new()),
            large: Mutex::new(Heap::new()),
            closed: AtomicBool::new(false),
            parked: Mutex::default(),
            in_use: Mutex::default(),
        })
    }

    #[inline]
    pub(super) fn is_private(&self) -> bool {
        self.pool.is_some()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// How many blocks of a private pool somebody has, and their bytes.
    pub(super) fn in_use(&self) -> (u64, u64) {
        *lock(&self.in_use)
    }

    /// Counts a block that is handed out past the thread caches.
    pub(super) fn count_out(&self, bytes: usize) {
        self.shared.figures.handed_out(bytes);
        if self.is_private() {
            let (blocks, sum) = &mut *lock(&self.in_use);
            (*blocks, *sum) = (*blocks + 1, *sum + bytes as u64);
        }
    }

    /// Counts a block that is taken back past the thread caches.
    fn count_back(&self, bytes: usize) {
        self.shared.figures.taken_back(bytes);
        if self.is_private() {
            let (blocks, sum) = &mut *lock(&self.in_use);
            (*blocks, *sum) = (*blocks - 1, *sum - bytes as u64);
        }
    }

    /// Takes back a block that no stream has used since it was handed out.
    #[inline]
    pub(super) fn free_unused(block: FreeBlock) {
        let refused = match block.kept_by {
            Some(allocator) => thread_cache::push(allocator, block),
            None => Some(block),
        };
        if let Some(block) = refused {
            Self::free_past_cache(block);
        }
    }

    #[cold]
    fn free_past_cache(block: FreeBlock) {
        let arena = Arc::clone(block.arena());
        let mut refused = Some(block);
        if let Some(block) = refused.take_if(|block| block.kept_by.is_some()) {
            let spilled = thread_cache::make_room(&arena.shared, block.capacity);
            refused = match spilled.is_some() {
                true => thread_cache::push(arena.shared.id, block),
                false => Some(block),
            };
            arena.shared.put_all(spilled.into_iter().flatten());
        }
        if let Some(block) = refused {
            arena.count_back(block.capacity);
            arena.shared.put_all([block]);
        }
    }

    /// Takes back a block that streams may still use, or a graph.
    pub(super) fn free_used(mut block: FreeBlock) {
        let captured = std::mem::take(block.captured.get_mut());
        let arena = Arc::clone(block.arena());
        arena.count_back(block.capacity);
        if captured { arena.park(block) } else { arena.shared.await_uses(block) }
    }

    /// A block of `size` bytes, which are rounded already, if one is free.
    pub(super) fn take(&self, size: usize) -> Option<FreeBlock> {
        lock(self.heap(size)).allocate(size).map(|grant| Body::new(&grant, size))
    }

    /// Adds a segment and takes a block out of it before anybody else can.
    pub(super) fn add_and_take(&self, segment: Segment, size: usize) -> Option<FreeBlock> {
        let mut heap = lock(self.heap(size));
        if let Err(refused) = heap.add_segment(segment.bytes, Arc::new(segment)) {
            // It calls the driver as it goes.
            drop(heap);
            drop(refused);
            return None;
        }
        heap.allocate(size).map(|grant| Body::new(&grant, size))
    }

    /// Adds a segment for small blocks.
    pub(super) fn add_small(&self, segment: Segment) {
        let refused = lock(&self.small).add_segment(segment.bytes, Arc::new(segment));
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
}

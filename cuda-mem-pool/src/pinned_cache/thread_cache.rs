//! Keeps some of the blocks that a thread frees for its next requests.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use cuda_mem_core::forked;

use super::block::FreeBlock;
use super::shared::Shared;
use super::statistics::ALL;
use crate::engine::classes;
use crate::primitive::lock;
use crate::statistics::{CountedCell, Counting};

/// How many blocks of one class a thread keeps.
const DEPTH: usize = 16;

/// The bytes of the largest block that a thread keeps.
pub(super) const LARGEST: usize = 64 << 20;

/// One thread's blocks of one allocator. Its owner takes it without waiting; others to trim, and when the thread or allocator ends.
pub(super) type ThreadCache = CountedCell<Blocks>;

#[derive(Debug)]
pub(super) struct Blocks {
    /// By class, the last one in the first one out: its lines may still be in the processor's cache.
    classes: Vec<Vec<FreeBlock>>,
    /// The bytes of all, and the most that they may be: 0 once the thread or the allocator has ended.
    bytes: usize,
    limit: usize,
}

/// The caches of the calling thread, one for each allocator that it has used.
struct Local(RefCell<Vec<Known>>);

struct Known {
    allocator: u64,
    shared: Weak<Shared>,
    cache: Arc<ThreadCache>,
}

thread_local! {
    static LOCAL: Local = const { Local(RefCell::new(Vec::new())) };
}

/// A block of at least `size` bytes, which are rounded already, out of the calling thread's cache.
#[inline]
pub(super) fn pop(allocator: u64, size: usize) -> Option<FreeBlock> {
    // Before the lock is taken: the processor begins nothing that comes later until it has that.
    let class = classes::floor(size);
    with(allocator, |cache| cache.try_with(|blocks, counting| blocks.pop(class, size, counting)))??
}

/// Puts a block back that its user has dropped, into the calling thread's cache. It comes back if it cannot stay there.
#[inline]
pub(super) fn push(allocator: u64, block: FreeBlock) -> Option<FreeBlock> {
    let (class, capacity) = (block.class, block.capacity);
    let mut block = Some(block);
    with(allocator, |cache| {
        cache.try_with(|blocks, counting| {
            block = block.take().and_then(|block| blocks.push(class, capacity, block, counting));
        });
    });
    block
}

/// Makes room for a block that [`push`] refused: a first cache, or that of blocks which have to go for it. None if there can be none.
#[cold]
pub(super) fn make_room(shared: &Arc<Shared>, capacity: usize) -> Option<Vec<FreeBlock>> {
    match with(shared.id, |cache| cache.try_with(|blocks, _| blocks.make_room(capacity))) {
        Some(made) => made?,
        // The first time in this thread, or at its end.
        None => register(shared).then(Vec::new),
    }
}

/// Runs `body` on the calling thread's cache. None if it has none, or is so far at its end that it cannot have one.
#[inline]
fn with<R>(allocator: u64, body: impl FnOnce(&ThreadCache) -> R) -> Option<R> {
    let found = LOCAL.try_with(|local| {
        let caches = local.0.try_borrow().ok()?;
        caches.iter().find(|known| known.allocator == allocator).map(|known| body(&known.cache))
    });
    found.ok()?
}

/// Makes the calling thread a cache. False if it has one or can have none.
fn register(shared: &Arc<Shared>) -> bool {
    let limit = shared.thread_cache_bytes();
    if limit == 0 || shared.is_closed() {
        return false;
    }
    let added = LOCAL.try_with(|local| {
        let mut caches = local.0.try_borrow_mut().ok()?;
        if caches.iter().any(|known| known.allocator == shared.id) {
            return None;
        }
        caches.retain(|known| known.shared.strong_count() > 0);
        let cache = Arc::new(CountedCell::new(shared.figures.blocks.shard(), Blocks::new(limit)));
        let (allocator, weak) = (shared.id, Arc::downgrade(shared));
        caches.push(Known { allocator, shared: weak, cache: Arc::clone(&cache) });
        Some(cache)
    });
    let Ok(Some(cache)) = added else { return false };
    lock(&shared.caches).push(Arc::clone(&cache));
    if shared.is_closed() {
        // The last handle went just now, and may have missed it.
        shared.put(close(&cache));
    }
    true
}

/// All blocks of a cache. Waits for its owner, which has it for some instructions.
pub(super) fn take_all(cache: &ThreadCache) -> Vec<FreeBlock> {
    cache.with(|blocks, _| blocks.take_all())
}

/// All blocks of a cache, and it takes no more.
pub(super) fn close(cache: &ThreadCache) -> Vec<FreeBlock> {
    cache.with(|blocks, _| {
        blocks.limit = 0;
        blocks.take_all()
    })
}

impl Blocks {
    fn new(limit: usize) -> Self {
        let classes = (0..=classes::floor(LARGEST)).map(|_| Vec::new()).collect();
        Self { classes, bytes: 0, limit }
    }

    #[inline]
    fn pop(&mut self, class: usize, size: usize, counting: &Counting) -> Option<FreeBlock> {
        let class = self.classes.get_mut(class)?;
        // Blocks of one class of large ones differ by up to 3 %.
        let capacity = class.last().map(|last| last.capacity).filter(|capacity| *capacity >= size)?;
        counting.allocate(ALL, capacity, 0);
        self.bytes -= capacity;
        class.pop()
    }

    /// Takes a block of that class and size. It comes back if it cannot stay.
    #[inline]
    fn push(
        &mut self,
        class: usize,
        capacity: usize,
        block: FreeBlock,
        counting: &Counting,
    ) -> Option<FreeBlock> {
        let Some(class) = self.classes.get_mut(class) else { return Some(block) };
        // Not beyond the room that was made once: no push goes to the heap.
        if class.len() == class.capacity() || self.limit - self.bytes < capacity {
            return Some(block);
        }
        counting.free(ALL, capacity, 0);
        self.bytes += capacity;
        class.push(block);
        None
    }

    /// Makes room for a block of this size. The blocks that have to go for it; None if there can be no room.
    fn make_room(&mut self, capacity: usize) -> Option<Vec<FreeBlock>> {
        if capacity > self.limit {
            return None;
        }
        let class = self.classes.get_mut(classes::floor(capacity))?;
        if class.len() >= DEPTH {
            return None;
        }
        class.reserve_exact(DEPTH - class.len());
        // The blocks here may be of sizes that nobody asks for any more.
        let is_full = self.limit - self.bytes < capacity;
        Some(if is_full { self.take_all() } else { Vec::new() })
    }

    fn take_all(&mut self) -> Vec<FreeBlock> {
        self.bytes = 0;
        self.classes.iter_mut().flat_map(|class| class.drain(..)).collect()
    }
}

impl Drop for Local {
    /// The thread ends.
    fn drop(&mut self) {
        let caches = std::mem::take(&mut *self.0.borrow_mut());
        if forked() {
            // What they hold is the parent's.
            let _ = std::mem::ManuallyDrop::new(caches);
            return;
        }
        for known in caches {
            // Without the allocator there are no blocks: they keep it.
            if let Some(shared) = known.shared.upgrade() {
                // Under the lock: a thread that takes blocks back meanwhile waits until these are where it finds them.
                let mut listed = lock(&shared.caches);
                shared.put(close(&known.cache));
                listed.retain(|cache| !Arc::ptr_eq(cache, &known.cache));
            }
        }
    }
}

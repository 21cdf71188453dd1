//! What each thread keeps of the blocks it frees, for its next requests.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use cuda_mem_core::forked;

use super::body::FreeBlock;
use super::counters::Total;
use super::shared::Shared;
use super::try_cell::TryCell;
use crate::engine::classes;

/// How many blocks of one class a thread keeps.
const DEPTH: usize = 16;

/// The largest block that a thread keeps.
pub(super) const LARGEST: usize = 64 << 20;

/// One thread's blocks of one allocator. Its owner takes it without waiting; others take it to trim, and when the thread or the
/// allocator ends.
#[derive(Debug)]
pub(super) struct ThreadCache {
    allocator: u64,
    shared: Weak<Shared>,
    blocks: TryCell<Blocks>,
    /// The blocks that its owner was given out of it.
    handed_out: Total,
}

#[derive(Debug)]
struct Blocks {
    /// By class, the last one in the first one out: its lines may still be in the processor's cache.
    classes: Vec<Vec<FreeBlock>>,
    bytes: usize,
    /// The most that `bytes` may be.
    limit: usize,
    /// The thread or the allocator has ended.
    closed: bool,
}

/// What came of putting a block into the cache.
pub(super) enum Kept {
    /// It is in.
    Yes,
    /// It is not.
    No(FreeBlock),
    /// There are too many bytes: neither it nor the others are in any more.
    Spilled(Vec<FreeBlock>),
}

/// The caches of the calling thread, one for each allocator that it has used.
struct Local(RefCell<Vec<Arc<ThreadCache>>>);

thread_local! {
    static LOCAL: Local = const { Local(RefCell::new(Vec::new())) };
}

/// A block of at least `size` bytes, which are rounded already, out of the calling thread's cache.
#[inline]
pub(super) fn pop(allocator: u64, size: usize) -> Option<FreeBlock> {
    with(allocator, |cache| {
        cache.blocks.try_with(|blocks| {
            let block = blocks.pop(size)?;
            cache.handed_out.add_alone(block.capacity);
            Some(block)
        })
    })
    .flatten()
    .flatten()
}

/// Puts a block into the calling thread's cache.
#[inline]
pub(super) fn push(block: FreeBlock) -> Kept {
    match try_push(block) {
        Ok(kept) => kept,
        // The first time in this thread, or at its end, or somebody trims.
        Err(block) => {
            if register(block.arena().shared()) {
                try_push(block).unwrap_or_else(Kept::No)
            } else {
                Kept::No(block)
            }
        }
    }
}

#[inline]
fn try_push(block: FreeBlock) -> Result<Kept, FreeBlock> {
    let allocator = block.arena().shared().id();
    let mut block = Some(block);
    let kept =
        with(allocator, |cache| cache.blocks.try_with(|blocks| block.take().map(|block| blocks.push(block))));
    match (kept.flatten().flatten(), block) {
        (None, Some(block)) => Err(block),
        (kept, _) => Ok(kept.unwrap_or(Kept::Yes)),
    }
}

/// Runs `body` on the calling thread's cache. None if it has none, or is so far at its end that it cannot have one.
#[inline]
fn with<R>(allocator: u64, body: impl FnOnce(&ThreadCache) -> R) -> Option<R> {
    LOCAL
        .try_with(|local| {
            let caches = local.0.try_borrow().ok()?;
            caches.iter().find(|cache| cache.allocator == allocator).map(|cache| body(cache))
        })
        .ok()
        .flatten()
}

/// Makes the calling thread a cache. False if it has one or can have none.
#[cold]
fn register(shared: &Arc<Shared>) -> bool {
    let limit = shared.thread_cache_bytes();
    if limit == 0 || shared.is_closed() {
        return false;
    }
    let added = LOCAL.try_with(|local| {
        let mut caches = local.0.try_borrow_mut().ok()?;
        if caches.iter().any(|cache| cache.allocator == shared.id()) {
            return None;
        }
        caches.retain(|cache| cache.shared.strong_count() > 0);
        let cache = Arc::new(ThreadCache::new(shared, limit));
        caches.push(Arc::clone(&cache));
        Some(cache)
    });
    match added {
        Ok(Some(cache)) => {
            shared.add_cache(cache);
            true
        }
        _ => false,
    }
}

impl ThreadCache {
    fn new(shared: &Arc<Shared>, limit: usize) -> Self {
        let classes = (0..=classes::floor(LARGEST)).map(|_| Vec::new()).collect();
        let blocks = TryCell::new(Blocks { classes, bytes: 0, limit, closed: false });
        Self { allocator: shared.id(), shared: Arc::downgrade(shared), blocks, handed_out: Total::default() }
    }

    pub(super) fn handed_out(&self) -> &Total {
        &self.handed_out
    }

    /// All its blocks; nothing if its owner is just at it.
    pub(super) fn take_all(&self) -> Vec<FreeBlock> {
        self.blocks.try_with(Blocks::take_all).unwrap_or_default()
    }

    /// All its blocks, and it takes no more. Its owner is at it for a few instructions at a time.
    pub(super) fn close(&self) -> Vec<FreeBlock> {
        loop {
            let taken = self.blocks.try_with(|blocks| {
                blocks.closed = true;
                blocks.take_all()
            });
            match taken {
                Some(blocks) => return blocks,
                None => crate::primitive::yield_now(),
            }
        }
    }
}

impl Blocks {
    #[inline]
    fn pop(&mut self, size: usize) -> Option<FreeBlock> {
        let class = self.classes.get_mut(classes::floor(size))?;
        // Blocks of one class of large ones differ by up to 3 %.
        if class.last()?.capacity < size {
            return None;
        }
        let block = class.pop()?;
        self.bytes = self.bytes.wrapping_sub(block.capacity);
        Some(block)
    }

    #[inline]
    fn push(&mut self, block: FreeBlock) -> Kept {
        let Some(class) = self.classes.get_mut(classes::floor(block.capacity)) else {
            return Kept::No(block);
        };
        if class.len() == class.capacity() {
            // Full, or never used before: its room is made once, so that no other push goes to the heap.
            if class.capacity() >= DEPTH {
                return Kept::No(block);
            }
            class.reserve_exact(DEPTH);
        }
        if self.closed || block.capacity > self.limit {
            return Kept::No(block);
        }
        if self.limit - self.bytes < block.capacity {
            // What lies here may be of sizes that nobody asks for any more.
            let mut spilled = self.take_all();
            spilled.push(block);
            return Kept::Spilled(spilled);
        }
        self.bytes += block.capacity;
        class.push(block);
        Kept::Yes
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
        for cache in caches {
            let blocks = cache.close();
            if let Some(shared) = cache.shared.upgrade() {
                shared.forget_cache(&cache);
            }
            for block in blocks {
                let arena = Arc::clone(block.arena());
                arena.put(block);
            }
        }
    }
}

//! What each thread keeps of the blocks it frees, for its next requests.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use cuda_mem_core::forked;

use super::body::FreeBlock;
use super::ledger::{Account, Ledger, Purse};
use super::shared::Shared;
use super::try_cell::TryCell;
use crate::engine::classes;
use crate::engine::stats::Amount;

/// How many blocks of one class a thread keeps.
const DEPTH: usize = 16;

/// The largest block that a thread keeps.
pub(super) const LARGEST: usize = 64 << 20;

/// One thread's blocks of one allocator. Its owner takes it without waiting; others take it to trim, to read the statistics,
/// and when the thread or the allocator ends.
pub(super) type ThreadCache = TryCell<Blocks>;

#[derive(Debug)]
pub(super) struct Blocks {
    /// By class, the last one in the first one out: its lines may still be in the processor's cache.
    classes: Vec<Vec<FreeBlock>>,
    /// The most bytes that they may have.
    limit: usize,
    /// The thread or the allocator has ended.
    closed: bool,
    /// How much they are.
    purse: Purse,
    /// The blocks that its owner was given out of it.
    handed_out: Amount,
}

/// A block was not handed out, because a peak would move.
struct AtPeak {
    capacity: usize,
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
pub(super) fn pop(shared: &Shared, size: usize) -> Option<FreeBlock> {
    // Before the flag is taken: the processor begins nothing that comes later until it has it.
    let class = classes::floor(size);
    let popped = with(shared.id(), |cache| cache.try_with(|blocks| blocks.pop(class, size, shared.ledger())));
    match popped?? {
        Ok(block) => block,
        Err(AtPeak { capacity }) => pop_at_peak(shared, capacity),
    }
}

/// As [`pop`], after a claim that was made without holding the cache.
#[cold]
fn pop_at_peak(shared: &Shared, capacity: usize) -> Option<FreeBlock> {
    shared.ledger().claim(capacity);
    let popped =
        with(shared.id(), |cache| cache.wait().with(|blocks| blocks.pop_claimed(capacity, shared.ledger())));
    let block = popped.flatten();
    if block.is_none() {
        // Somebody trimmed.
        shared.ledger().release(capacity);
    }
    block
}

/// Puts a block back that its user has dropped, into the calling thread's cache. It comes back if it cannot stay there.
#[inline]
pub(super) fn push(allocator: u64, block: FreeBlock) -> Option<FreeBlock> {
    let (class, capacity) = (block.class, block.capacity);
    let mut block = Some(block);
    with(allocator, |cache| {
        cache.try_with(|blocks| block = block.take().and_then(|block| blocks.push(class, capacity, block)));
    });
    block
}

/// Makes room for a block that [`push`] refused: a first cache, or that of blocks which are not asked for any more; those come
/// back. None if it cannot stay in any case.
#[cold]
pub(super) fn make_room(shared: &Arc<Shared>, capacity: usize) -> Option<Vec<FreeBlock>> {
    let made =
        with(shared.id(), |cache| cache.try_with(|blocks| blocks.make_room(capacity, shared.ledger())));
    match made {
        Some(made) => made?,
        // The first time in this thread, or at its end.
        None => register(shared).then(Vec::new),
    }
}

/// Runs `body` on the calling thread's cache. None if it has none, or is so far at its end that it cannot have one.
#[inline]
fn with<R>(allocator: u64, body: impl FnOnce(&ThreadCache) -> R) -> Option<R> {
    LOCAL
        .try_with(|local| {
            let caches = local.0.try_borrow().ok()?;
            caches.iter().find(|known| known.allocator == allocator).map(|known| body(&known.cache))
        })
        .ok()
        .flatten()
}

/// Makes the calling thread a cache. False if it has one or can have none.
fn register(shared: &Arc<Shared>) -> bool {
    let limit = shared.thread_cache_bytes();
    if limit == 0 || shared.is_closed() {
        return false;
    }
    let added = LOCAL.try_with(|local| {
        let mut caches = local.0.try_borrow_mut().ok()?;
        if caches.iter().any(|known| known.allocator == shared.id()) {
            return None;
        }
        caches.retain(|known| known.shared.strong_count() > 0);
        let cache = Arc::new(TryCell::new(Blocks::new(limit)));
        let (allocator, weak) = (shared.id(), Arc::downgrade(shared));
        caches.push(Known { allocator, shared: weak, cache: Arc::clone(&cache) });
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

/// All blocks of a cache; nothing if its owner is just at it.
pub(super) fn take_all(cache: &ThreadCache, ledger: &Ledger<Blocks>) -> Vec<FreeBlock> {
    cache.try_with(|blocks| blocks.take_all(ledger)).unwrap_or_default()
}

/// All blocks of a cache, and it takes no more.
pub(super) fn close(cache: &ThreadCache, ledger: &Ledger<Blocks>) -> Vec<FreeBlock> {
    cache.wait().with(|blocks| {
        blocks.closed = true;
        blocks.take_all(ledger)
    })
}

impl Blocks {
    fn new(limit: usize) -> Self {
        let classes = (0..=classes::floor(LARGEST)).map(|_| Vec::new()).collect();
        Self { classes, limit, closed: false, purse: Purse::default(), handed_out: Amount::default() }
    }

    pub(super) fn handed_out(&self) -> Amount {
        self.handed_out
    }

    #[inline]
    fn pop(&mut self, class: usize, size: usize, ledger: &Ledger<Self>) -> Result<Option<FreeBlock>, AtPeak> {
        let Some(class) = self.classes.get_mut(class) else { return Ok(None) };
        // Blocks of one class of large ones differ by up to 3 %.
        let Some(capacity) = class.last().map(|last| last.capacity).filter(|capacity| *capacity >= size)
        else {
            return Ok(None);
        };
        if !ledger.take(&mut self.purse, capacity) {
            return Err(AtPeak { capacity });
        }
        self.handed_out.add(capacity);
        Ok(class.pop())
    }

    /// The block that [`AtPeak`] told of, if it still is here.
    fn pop_claimed(&mut self, capacity: usize, ledger: &Ledger<Self>) -> Option<FreeBlock> {
        let class = self.classes.get_mut(classes::floor(capacity))?;
        let block = class.pop_if(|last| last.capacity == capacity)?;
        ledger.take_claimed(&mut self.purse, capacity);
        self.handed_out.add(capacity);
        Some(block)
    }

    /// Takes a block of that class and size. It comes back if it cannot stay.
    #[inline]
    fn push(&mut self, class: usize, capacity: usize, block: FreeBlock) -> Option<FreeBlock> {
        let Some(class) = self.classes.get_mut(class) else { return Some(block) };
        // Not beyond the room that was made once: no push goes to the heap.
        if class.len() == class.capacity() || self.closed || self.limit - self.purse.bytes() < capacity {
            return Some(block);
        }
        self.purse.put(capacity);
        class.push(block);
        None
    }

    /// Makes room for a block of this size. What lies here instead, if it has to go; None if there can be no room.
    fn make_room(&mut self, capacity: usize, ledger: &Ledger<Self>) -> Option<Vec<FreeBlock>> {
        if self.closed || capacity > self.limit {
            return None;
        }
        let class = self.classes.get_mut(classes::floor(capacity))?;
        if class.len() >= DEPTH {
            return None;
        }
        // Its room is made once.
        class.reserve_exact(DEPTH - class.len());
        // What lies here may be of sizes that nobody asks for any more.
        let full = self.limit - self.purse.bytes() < capacity;
        Some(if full { self.take_all(ledger) } else { Vec::new() })
    }

    fn take_all(&mut self, ledger: &Ledger<Self>) -> Vec<FreeBlock> {
        ledger.release_all(&mut self.purse);
        self.classes.iter_mut().flat_map(|class| class.drain(..)).collect()
    }
}

impl Account for Blocks {
    fn purse(&mut self) -> &mut Purse {
        &mut self.purse
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
                shared.end_cache(&known.cache);
            }
        }
    }
}

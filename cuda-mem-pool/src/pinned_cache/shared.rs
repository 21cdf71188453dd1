//! What all handles, blocks and threads of one allocator have in common.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use cuda_mem_core::Context;

use super::arena::Arena;
use super::body::FreeBlock;
use super::counters::Counters;
use super::grower::Grower;
use super::ledger::Ledger;
use super::options::PinnedCacheOptions;
use super::pending::Pending;
use super::pools::Pools;
use super::thread_cache::{self, Blocks, ThreadCache};
use crate::engine::stats::Amount;
use crate::primitive::{AtomicBool, Ordering};

#[derive(Debug)]
pub(super) struct Shared {
    /// Names the allocator for the life of the process.
    id: u64,
    context: Context,
    options: PinnedCacheOptions,
    counters: Counters,
    /// The default pool, by node.
    nodes: RwLock<HashMap<Option<u32>, Arc<Arena>>>,
    pools: Pools,
    /// The blocks that somebody has, and the caches of all threads.
    ledger: Ledger<Blocks>,
    pending: Pending,
    grower: Grower,
    /// The last handle is gone: nobody asks for blocks any more.
    closed: AtomicBool,
}

impl Shared {
    pub(super) fn new(context: &Context, options: PinnedCacheOptions) -> Arc<Self> {
        // Not the model checker's: it outlives every model.
        static LAST: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        Arc::new(Self {
            id: LAST.fetch_add(1, Ordering::Relaxed),
            context: context.clone(),
            options,
            counters: Counters::default(),
            nodes: RwLock::default(),
            pools: Pools::default(),
            ledger: Ledger::new(),
            pending: Pending::default(),
            grower: Grower::default(),
            closed: AtomicBool::new(false),
        })
    }

    #[inline]
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn options(&self) -> &PinnedCacheOptions {
        &self.options
    }

    #[inline]
    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    #[inline]
    pub(super) fn ledger(&self) -> &Ledger<Blocks> {
        &self.ledger
    }

    #[inline]
    pub(super) fn pools(&self) -> &Pools {
        &self.pools
    }

    pub(super) fn grower(&self) -> &Grower {
        &self.grower
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The most bytes that one more thread keeps. Under a bound it is half of what the one before may keep, so that all together
    /// keep less than the bound.
    pub(super) fn thread_cache_bytes(&self) -> usize {
        let Some(most) = self.options.max_cached else { return self.options.thread_cache_bytes };
        let threads = u32::try_from(self.ledger.accounts().len()).unwrap_or(u32::MAX);
        let share = most.checked_shr(threads.saturating_add(1)).unwrap_or(0);
        self.options.thread_cache_bytes.min(share)
    }

    /// The default pool's arena on a node.
    pub(super) fn arena(self: &Arc<Self>, numa_id: Option<u32>) -> Arc<Arena> {
        if let Some(arena) = self.nodes.read().unwrap_or_else(PoisonError::into_inner).get(&numa_id) {
            return Arc::clone(arena);
        }
        let mut nodes = self.nodes.write().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(nodes.entry(numa_id).or_insert_with(|| Arena::new(self, None, numa_id)))
    }

    pub(super) fn add_cache(&self, cache: Arc<ThreadCache>) {
        self.ledger.add_account(Arc::clone(&cache));
        if self.is_closed() {
            // The last handle went just now, and may have missed it.
            put(thread_cache::close(&cache, &self.ledger));
        }
    }

    /// The thread of a cache ends.
    pub(super) fn end_cache(&self, cache: &Arc<ThreadCache>) {
        put(thread_cache::close(cache, &self.ledger));
        let handed_out = cache.wait().with(|blocks| blocks.handed_out());
        self.ledger.remove_account(cache, || self.counters.handed_out.add_all(handed_out));
    }

    /// Puts a block back into its arena once nothing uses it any more.
    pub(super) fn await_uses(&self, block: FreeBlock) {
        if self.is_closed() {
            return self.put_behind(block);
        }
        let ready = self.pending.push(block);
        self.put_all(ready);
        if self.is_closed() {
            // The last handle went just now, and may have missed it.
            self.drain_pending();
        }
    }

    /// Puts blocks back that nothing uses any more.
    pub(super) fn put_all(&self, blocks: impl IntoIterator<Item = FreeBlock>) {
        if put(blocks) {
            self.trim_to_limit();
        }
    }

    /// Puts blocks back whose streams are done with them.
    pub(super) fn poll(&self) {
        self.put_all(self.pending.poll());
    }

    /// Takes the blocks that threads keep for themselves back.
    pub(super) fn flush_caches(&self) {
        let caches = self.ledger.accounts();
        put(caches.iter().flat_map(|cache| thread_cache::take_all(cache, &self.ledger)));
    }

    /// Gives whole segments that are free back until no more than `bytes` bytes are cached. Calls the driver.
    pub(super) fn trim_to(&self, bytes: usize) {
        self.poll();
        self.flush_caches();
        self.trim_arenas(bytes);
    }

    /// As [`Shared::trim_to`] with the limit that the options set, in the order of what it costs.
    fn trim_to_limit(&self) {
        let Some(most) = self.options.max_cached else { return };
        if self.cached() > most {
            self.trim_arenas(most);
        }
        if self.cached() > most {
            self.flush_caches();
            self.trim_arenas(most);
        }
    }

    fn trim_arenas(&self, most: usize) {
        for arena in self.arenas() {
            let cached = self.cached();
            arena.trim(|given_back| cached.saturating_sub(given_back) <= most);
        }
    }

    /// Gives back what every arena holds too much of, if no stream is busy, or without `patience` if none waits for a fence. Whether
    /// something is left to be given back.
    ///
    /// The driver waits for all streams before it unpins, and meanwhile holds up whoever launches: a stream that waits for another
    /// process would so hold up the thread that could let that process go on.
    pub(super) fn is_surplus_left(&self, patience: bool) -> bool {
        let arenas = self.arenas();
        if !arenas.iter().any(|arena| arena.has_surplus()) {
            return false;
        }
        let driver = self.context.driver();
        let unpin = || arenas.iter().map(|arena| arena.unpin_surplus()).collect::<Vec<_>>();
        let unpinned =
            if patience { driver.while_idle(unpin) } else { driver.while_nothing_is_awaited(unpin) };
        // Dropped here, where nothing is held that a hook of the program's might wait for.
        unpinned.is_none()
    }

    fn arenas(&self) -> Vec<Arc<Arena>> {
        let mut arenas = self.pools.all();
        arenas.extend(self.nodes.read().unwrap_or_else(PoisonError::into_inner).values().cloned());
        arenas
    }

    /// The last handle is gone. What is free goes back now, what is in use when it is freed.
    pub(super) fn close(&self) {
        self.grower.stop();
        self.closed.store(true, Ordering::Release);
        let caches = self.ledger.take_accounts();
        put(caches.iter().flat_map(|cache| thread_cache::close(cache, &self.ledger)));
        self.drain_pending();
        // The arenas refer to all of this: from now on only blocks keep it.
        let mut arenas = self.pools.take_all();
        arenas.extend(
            self.nodes.write().unwrap_or_else(PoisonError::into_inner).drain().map(|(_, arena)| arena),
        );
        arenas.iter().for_each(|arena| arena.close());
    }

    fn drain_pending(&self) {
        for block in self.pending.drain() {
            self.put_behind(block);
        }
    }

    /// Puts a block back that streams may still use: nobody will be given it, and its segment's release waits for them.
    fn put_behind(&self, mut block: FreeBlock) {
        let uses = std::mem::take(&mut block.uses);
        block.segment.absorb(uses);
        put([block]);
    }

    /// The blocks that somebody has.
    pub(super) fn active(&self) -> Amount {
        self.ledger.current(|_| {})
    }

    /// The bytes that are held and in nobody's hands.
    pub(super) fn cached(&self) -> usize {
        let (held, active) = (self.counters.held.current().bytes, self.active().bytes);
        usize::try_from(held.saturating_sub(active)).unwrap_or(usize::MAX)
    }

    /// The blocks that somebody has, and those handed out so far.
    pub(super) fn active_and_handed_out(&self) -> (Amount, Amount) {
        let mut handed_out = Amount::default();
        let active = self.ledger.current(|blocks| handed_out = handed_out.plus(blocks.handed_out()));
        (active, handed_out.plus(self.counters.handed_out.amount()))
    }
}

/// Puts blocks back into their arenas. Whether a segment has become wholly free.
fn put(blocks: impl IntoIterator<Item = FreeBlock>) -> bool {
    let mut whole = false;
    for block in blocks {
        let arena = Arc::clone(block.arena());
        whole |= arena.put(block);
    }
    whole
}

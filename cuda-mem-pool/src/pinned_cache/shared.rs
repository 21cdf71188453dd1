//! What all handles, blocks and threads of one allocator have in common.

use std::io::ErrorKind;
use std::sync::Arc;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, Error as CoreError, LateReports, Stream, StreamId, catch_panic};

use super::arena::{Arena, Pools, Segment};
use super::block::{FreeBlock, PinnedBlock};
use super::pending::Pending;
use super::statistics::Figures;
use super::thread_cache::{self, ThreadCache};
use super::worker::Worker;
use super::{PinnedCacheOptions, heap};
use crate::engine::classes;
use crate::error::{Error, Result, refuse_forked};
use crate::mempool_id::MempoolId;
use crate::primitive::{
    ASKING, AtomicBool, AtomicUsize, Inside, Mutex, Ordering, is_set, lock, try_lock, unique,
};

#[derive(Debug)]
pub(super) struct Shared {
    /// Names the allocator for the life of the process.
    pub(super) id: u64,
    pub(super) context: Context,
    pub(super) options: PinnedCacheOptions,
    pub(super) figures: Figures,
    /// How many routes there are, so that the usual case costs one load.
    pub(super) routes: AtomicUsize,
    pub(super) pools: Mutex<Pools>,
    pub(super) caches: Mutex<Vec<Arc<ThreadCache>>>,
    pending: Pending,
    /// Held by who looks for the ends of uses, until what was found is where others find it.
    looking: Mutex<()>,
    /// Held by who unpins, until what it took counts as held no more.
    pub(super) unpinning: Mutex<()>,
    /// Whether a segment may be wholly free that is kept.
    has_whole: AtomicBool,
    worker: Worker,
    /// The blocks that are out by address, and those of collections.
    pub(super) lent: super::resource::Blocks,
    /// Whether the driver has refused to register memory, whatever it is.
    pub(super) is_registration_refused: AtomicBool,
    /// The last handle is gone: nobody asks for blocks any more.
    closed: AtomicBool,
}

impl Shared {
    pub(super) fn new(context: &Context, options: PinnedCacheOptions) -> Arc<Self> {
        Arc::new(Self {
            id: unique(),
            context: context.clone(),
            options,
            figures: Figures::new(),
            routes: AtomicUsize::new(0),
            pools: Mutex::default(),
            caches: Mutex::default(),
            pending: Pending::default(),
            looking: Mutex::new(()),
            unpinning: Mutex::new(()),
            has_whole: AtomicBool::new(false),
            worker: Worker::default(),
            lent: Default::default(),
            is_registration_refused: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The most bytes that one more thread keeps: under a bound half of what the one before may, so that all keep less than the bound.
    pub(super) fn thread_cache_bytes(&self) -> usize {
        let Some(most) = self.options.max_cached_bytes else { return self.options.thread_cache_bytes };
        let threads = u32::try_from(lock(&self.caches).len()).unwrap_or(u32::MAX);
        let share = most.checked_shr(threads.saturating_add(1)).unwrap_or(0);
        self.options.thread_cache_bytes.min(share)
    }

    pub(super) fn route(&self, stream: Option<StreamId>) -> Option<MempoolId> {
        if self.routes.load(Ordering::Acquire) == 0 || is_set(&ASKING) {
            return None;
        }
        // The filters are somebody else's code: they are asked without the lock. The innermost is the last one.
        let _asking = Inside::new(&ASKING);
        let routes = lock(&self.pools).routes.clone();
        routes.into_iter().rev().find(|(_, filter)| filter(stream)).map(|(id, _)| id)
    }

    /// The arena of a pool on a node. That of the default pool if `pool` was released meanwhile.
    pub(super) fn arena(self: &Arc<Self>, pool: Option<MempoolId>, numa_id: Option<u32>) -> Arc<Arena> {
        let mut pools = lock(&self.pools);
        let pool = pool.filter(|id| pools.uses.contains_key(id));
        Arc::clone(pools.arenas.entry((pool, numa_id)).or_insert_with(|| Arena::new(self, pool, numa_id)))
    }

    fn arenas(&self) -> Vec<Arc<Arena>> {
        lock(&self.pools).arenas.values().cloned().collect()
    }

    /// Puts a block back into its arena once nothing uses it any more.
    pub(super) fn await_uses(&self, block: FreeBlock) {
        let ready = self.pending.push(block);
        self.put_all(ready);
        if self.is_closed() {
            // Nobody polls any more.
            self.drain_pending();
        }
    }

    /// Puts blocks back that nothing uses any more. While a segment is wholly free, gives back what the limit asks for, the cheapest first.
    pub(super) fn put_all(&self, blocks: impl IntoIterator<Item = FreeBlock>) {
        self.put(blocks);
        let Some(most) = self.options.max_cached_bytes else { return };
        if !self.has_whole.load(Ordering::Relaxed) || self.cached() <= most {
            return;
        }
        // Before the look for them, which takes the heaps' locks: one that becomes wholly free behind it says so again.
        self.has_whole.store(false, Ordering::Relaxed);
        self.trim_arenas(most);
        if self.cached() > most {
            self.flush_caches();
            self.trim_arenas(most);
        }
        self.has_whole.fetch_or(self.cached() <= most, Ordering::Relaxed);
    }

    pub(super) fn put(&self, blocks: impl IntoIterator<Item = FreeBlock>) {
        for block in blocks {
            let arena = Arc::clone(block.arena());
            if arena.put(*block) {
                self.has_whole.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Puts blocks back whose streams are done with them, and gives back what there is too much of. Unless it `waits`, none come back while
    /// another thread looks for them, and nothing goes back while a stream waits for a fence: the caller may be the one to reach that.
    pub(super) fn poll(&self, waits: bool) {
        if waits || self.context.driver().while_nothing_is_awaited(|| self.look(false, true)).is_none() {
            self.look(waits, waits);
        }
    }

    fn look(&self, waits: bool, gives_back: bool) {
        // The program's hook hears of what fails without the lock.
        let reports = LateReports::new();
        let looking = if waits { Some(lock(&self.looking)) } else { try_lock(&self.looking) };
        if looking.is_some() {
            self.put(self.pending.poll(gives_back));
        }
        drop((looking, reports));
        if gives_back {
            self.put_all([]);
        }
    }

    /// Waits on the host for streams that use freed blocks, but for captures; whether it did. Not while one waits for a fence, maybe the caller's.
    fn wait_for_uses(&self) -> bool {
        // Another thread that looks has them until it is done.
        let looking = lock(&self.looking);
        let points = self.pending.points();
        drop(looking);
        // A point that cannot be asked may be a capture's. Whatever a wait says, the next look finds out what has ended.
        let busy = points.iter().filter(|point| matches!(point.is_reached(), Ok(false)));
        let is_quiet = !self.context.driver().is_fence_awaited();
        if is_quiet {
            busy.for_each(|point| _ = point.wait());
        }
        is_quiet && !points.is_empty()
    }

    /// Takes the blocks that threads keep for themselves back. A thread that does so meanwhile waits until they are where it finds them.
    pub(super) fn flush_caches(&self) {
        let caches = lock(&self.caches);
        self.put(caches.iter().flat_map(|cache| thread_cache::take_all(cache)));
    }

    /// Gives whole segments that are free back until no more than `bytes` bytes are cached. Calls the driver.
    pub(super) fn trim_to(&self, bytes: usize) {
        self.poll(true);
        self.flush_caches();
        self.trim_arenas(bytes);
    }

    fn trim_arenas(&self, most: usize) {
        for arena in self.arenas() {
            let cached = self.cached();
            arena.trim(|given_back| cached.saturating_sub(given_back) <= most);
        }
    }

    /// Gives back what every arena holds too much of, if no stream is busy, or without `patience` if none waits for a fence. Whether
    /// something is left. The driver waits for all streams before it unpins, and meanwhile holds up whoever launches: a stream that
    /// waits for another process would so hold up the thread that could let that process go on.
    pub(super) fn is_surplus_left(&self, patience: bool) -> bool {
        let arenas = self.arenas();
        if self.is_closed() || !arenas.iter().any(|arena| arena.has_surplus()) {
            return false;
        }
        let driver = self.context.driver();
        let unpin = || arenas.iter().for_each(|arena| arena.return_surplus());
        (if patience { driver.while_idle(unpin) } else { driver.while_nothing_is_awaited(unpin) }).is_none()
    }

    /// The last handle is gone. What is free goes back now, what is in use when it is freed.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.worker.stop();
        let caches = std::mem::take(&mut *lock(&self.caches));
        self.put(caches.iter().flat_map(|cache| thread_cache::close(cache)));
        self.drain_pending();
        // The arenas refer to all of this, and filters may have blocks: from now on only blocks in use keep it.
        let Pools { arenas, routes, .. } = std::mem::take(&mut *lock(&self.pools));
        arenas.values().for_each(|arena| arena.close());
        // What a filter has captured may panic as it goes. The drop of the last handle does not.
        routes.into_iter().for_each(|route| _ = catch_panic(|| drop(route)));
    }

    fn drain_pending(&self) {
        for mut block in self.pending.drain() {
            // Streams may still use it: nobody will be given it, and its segment's release waits for them.
            block.segment.absorb(std::mem::take(&mut block.uses));
            self.put([block]);
        }
    }

    /// The bytes that are held and in nobody's hands.
    fn cached(&self) -> usize {
        self.figures.held().saturating_sub(self.figures.blocks.active_bytes())
    }

    /// A block of at least `len` bytes: see [`PinnedCachingAllocator::allocate_with`](super::PinnedCachingAllocator::allocate_with).
    pub(super) fn block(
        self: &Arc<Self>,
        len: usize,
        stream: Option<&Stream>,
        numa_id: Option<u32>,
    ) -> Result<PinnedBlock> {
        refuse_forked()?;
        let size = classes::block_size(len).ok_or(Error::TooLarge { bytes: len })?;
        let arena = self.arena(self.route(stream.map(Stream::id)), numa_id.or(self.options.numa_id));
        if arena.is_home
            && let Some(block) = thread_cache::pop(self.id, size)
        {
            return Ok(PinnedBlock::new(block, len));
        }
        let block = self.allocate(&arena, size, len)?;
        if size >= classes::LARGE && self.options.returns_surplus && arena.has_surplus() {
            self.worker.want(self);
        }
        self.figures.count(block.capacity, true);
        Ok(PinnedBlock::new(block, len))
    }

    /// A block of `size` bytes, which `requested` were rounded to, past the thread caches.
    fn allocate(&self, arena: &Arc<Arena>, size: usize, requested: usize) -> Result<FreeBlock> {
        self.poll(false);
        if let Some(block) = arena.take(size) {
            return Ok(block);
        }
        if size >= classes::LARGE {
            // Pinning as much costs more than taking it from the threads that keep it.
            self.flush_caches();
            if let Some(block) = arena.take(size) {
                return Ok(block);
            }
        }
        let (needed, held) = (size.next_multiple_of(classes::PAGE), self.figures.held());
        let most = self.options.max_bytes.unwrap_or(usize::MAX);
        // What is cached stays while the request fits beside it.
        let left = most.saturating_sub(held) / classes::PAGE * classes::PAGE;
        let mut pinned = self.pin(arena, heap::segment_for(size, held).min(left).max(needed), requested);
        for waits in [false, true] {
            // Nothing helps with what is larger than the limit.
            let is_full = needed <= most && matches!(pinned, Err(Error::OutOfMemory { .. }));
            // At the limit, what another thread had in hand may be free by now, with nothing left to wait for.
            let is_at_limit = matches!(pinned, Err(Error::OutOfMemory { source: None, .. }));
            if !is_full || (waits && !self.wait_for_uses() && !is_at_limit) {
                break;
            }
            self.poll(true);
            for _ in 0..2 {
                if let Some(block) = arena.take(size) {
                    return Ok(block);
                }
                // Blocks that streams used come back while the driver waits for all work.
                self.trim_to(0);
            }
            if let Some(block) = arena.take(size) {
                return Ok(block);
            }
            // No more than is needed.
            pinned = self.pin(arena, needed, requested);
        }
        arena.add_and_take(pinned?, size).ok_or(Error::TooManyBlocks)
    }

    /// Pins a segment for `requested` bytes. Calls the driver.
    fn pin(&self, arena: &Arc<Arena>, segment: usize, requested: usize) -> Result<Segment> {
        if !self.figures.claim(segment, self.options.max_bytes) {
            let (used, limit) = (self.figures.held() as u64, self.options.max_bytes.unwrap_or(0) as u64);
            return Err(Error::OutOfMemory { requested, used, limit, source: None });
        }
        Segment::new(arena, segment).map_err(|source| {
            self.figures.unclaim(segment);
            // Less memory in use could help. The driver has two codes for pages that it cannot pin.
            let is_for_memory = match &source {
                CoreError::Driver(error) => {
                    let codes = [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_OPERATING_SYSTEM];
                    codes.contains(&error.code())
                }
                CoreError::Io { source, .. } => source.kind() == ErrorKind::OutOfMemory,
                CoreError::NoPage { .. } | CoreError::LockLimit { .. } => true,
                source => matches!(source, CoreError::OutOfHostMemory { .. }),
            };
            if !is_for_memory {
                return source.into();
            }
            let used = self.figures.blocks.active_bytes() as u64;
            Error::OutOfMemory { requested, used, limit: 0, source: Some(source) }
        })
    }
}

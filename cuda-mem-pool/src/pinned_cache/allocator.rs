//! The allocator's handle.

use std::sync::{Arc, OnceLock};

use cuda_mem_core::{Context, Stream, StreamId, forked};

use super::block::PinnedBlock;
use super::shared::Shared;
use super::statistics::PinnedCacheStatistics;
use super::{PinnedCacheOptions, thread_cache};
use crate::engine::classes;
use crate::error::{PoolError, Result, refuse_forked};
use crate::mempool_id::MempoolId;
use crate::primitive::{Ordering, lock, wait_unless_awaited};
use crate::resource::ResourceContext;

/// Allocates pinned host memory, and keeps what is freed, so that the next request does not wait for the driver.
///
/// Clones are handles to the same allocator. When the last one is dropped, what is free goes back to the system; blocks that
/// are still in use stay valid, and go back when they are dropped. That drop waits for streams that still use what goes back, and
/// releases the private pools: graphs that captured blocks of theirs must not run any more.
///
/// ```
/// use cuda_mem_pool::cuda_mem_core::Driver;
/// use cuda_mem_pool::pinned_cache::PinnedCacheOptions;
/// use cuda_mem_pool::{Error, PinnedCachingAllocator};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let options = PinnedCacheOptions::default().with_max_cached_bytes(1 << 30);
/// let allocator = PinnedCachingAllocator::with_options(&driver.device(0)?.primary_context()?, options);
/// let mut block = allocator.allocate(1_000_000)?;
/// block.as_mut_slice()?.fill(1);
/// drop(block);
/// let again = allocator.allocate(1_010_000)?; // the same memory, without a driver call
/// assert_eq!(again.as_slice()?[0], 1);
/// let statistics = allocator.statistics();
/// assert_eq!((statistics.active_requests.current, statistics.active_requests.allocated), (1, 2));
/// assert_eq!(statistics.host_alloc_time.count, statistics.num_host_alloc);
/// assert!(matches!(allocator.allocate(usize::MAX), Err(Error::TooLarge { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PinnedCachingAllocator {
    pub(super) handle: Arc<Handle>,
}

/// What ends with the last handle, and with the last memory of it as a resource.
#[derive(Debug)]
pub(super) struct Handle {
    pub(super) shared: Arc<Shared>,
    /// For calls that name no stream.
    pub(super) home: ResourceContext,
    /// Set once every device is known to reach pinned memory where the host does.
    pub(super) has_same_address: OnceLock<()>,
}

impl PinnedCachingAllocator {
    /// An allocator with the default [`PinnedCacheOptions`]. Pins nothing yet.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        Self::with_options(context, PinnedCacheOptions::default())
    }

    /// An allocator with options of one's own. Pins nothing yet.
    #[must_use]
    pub fn with_options(context: &Context, options: PinnedCacheOptions) -> Self {
        let (shared, home) = (Shared::new(context, options), ResourceContext::new(context));
        Self { handle: Arc::new(Handle { shared, home, has_same_address: OnceLock::new() }) }
    }

    /// Allocates a block of at least `len` bytes on the allocator's own node, of the default pool unless a private pool's filter has it.
    ///
    /// A block of this size that the calling thread has freed is taken without waiting or a driver call. Otherwise blocks whose streams
    /// are done come back, and memory is pinned only if nothing free fits. When the system has no more, free memory is given
    /// back first, for which the driver waits for all work of the context, and the host waits for the streams that still use freed blocks.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory), after everything that was free had been given back, or at once beyond
    /// [`max_bytes`](PinnedCacheOptions::max_bytes); [`Error::TooLarge`](crate::Error::TooLarge).
    #[inline]
    pub fn allocate(&self, len: usize) -> Result<PinnedBlock> {
        let shared = self.shared();
        if len <= thread_cache::LARGEST
            && !forked()
            && shared.routes.load(Ordering::Acquire) == 0
            && let Some(size) = classes::block_size(len)
            && let Some(block) = thread_cache::pop(shared.id, size)
        {
            return Ok(PinnedBlock::new(block, len));
        }
        self.allocate_with(len, None, None)
    }

    /// As [`PinnedCachingAllocator::allocate`], for a stream, by which the filters of private pools choose, and on a NUMA node, if it
    /// is not to be the allocator's own: `NoSuchNumaNode` in [`Error::Core`](crate::Error::Core) if there is none. Never takes memory of another
    /// node or pool.
    pub fn allocate_with(
        &self,
        len: usize,
        stream: Option<&Stream>,
        numa_id: Option<u32>,
    ) -> Result<PinnedBlock> {
        self.shared().block(len, stream, numa_id)
    }

    /// Has allocations for which `filter` says yes come from the private pool `id`, which this makes or uses once more. The
    /// filter gets the stream of [`PinnedCachingAllocator::allocate_with`], if there is one, and is called in the allocating thread. Of
    /// several that say yes, the one that was begun last has the allocation. What a filter allocates itself goes to no private pool. A
    /// call that ends a use of a pool waits for filters that are running, so a filter must not wait for that call. If it panics, nothing was allocated.
    ///
    /// The memory of a private pool serves nobody else, until [`PinnedCachingAllocator::release_pool`] was called as often as
    /// this, or the last handle to the allocator is dropped: a graph that captured some of it must not run after either.
    ///
    /// ```
    /// # let driver = cuda_mem_core::Driver::over(cuda_mem_sim::table())?;
    /// # let allocator = cuda_mem_pool::PinnedCachingAllocator::new(&driver.device(0)?.primary_context()?);
    /// let pool = cuda_mem_pool::MempoolId::for_user();
    /// let this_thread = std::thread::current().id();
    /// allocator.begin_allocate_to_pool(pool, move |_| std::thread::current().id() == this_thread)?;
    /// let block = allocator.allocate(3000)?;
    /// allocator.end_allocate_to_pool(pool)?;
    /// assert_eq!(block.pool(), Some(pool));
    /// drop(block);
    /// allocator.release_pool(pool)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PoolError`](crate::segments::PoolError): `AlreadyRouted` if allocations go there already, `NoPool` for [`MempoolId::NONE`].
    pub fn begin_allocate_to_pool(
        &self,
        id: MempoolId,
        filter: impl Fn(Option<StreamId>) -> bool + Send + Sync + 'static,
    ) -> Result<()> {
        refuse_forked()?;
        let shared = self.shared();
        let mut pools = lock(&shared.pools);
        match pools.position(id) {
            _ if id == MempoolId::NONE => return Err(PoolError::NoPool.into()),
            Some(_) => return Err(PoolError::AlreadyRouted { id }.into()),
            None => {}
        }
        *pools.uses.entry(id).or_default() += 1;
        pools.routes.push((id, Arc::new(filter)));
        shared.routes.store(pools.routes.len(), Ordering::Release);
        Ok(())
    }

    /// Ends what [`PinnedCachingAllocator::begin_allocate_to_pool`] began. The pool and its memory stay. Makes no driver call.
    ///
    /// # Errors
    ///
    /// [`PoolError::NotRouted`](crate::segments::PoolError::NotRouted) if that was not begun.
    pub fn end_allocate_to_pool(&self, id: MempoolId) -> Result<()> {
        refuse_forked()?;
        let shared = self.shared();
        let mut pools = lock(&shared.pools);
        let position = pools.position(id).ok_or(PoolError::NotRouted { id })?;
        let mut route = pools.routes.remove(position);
        shared.routes.store(pools.routes.len(), Ordering::Release);
        drop(pools);
        wait_unless_awaited(|| Arc::get_mut(&mut route.1).is_some());
        // What the filter has captured is dropped outside the lock.
        drop(route);
        Ok(())
    }

    /// Ends one use of a private pool. With the last one, when the graphs that captured its blocks were reset, its memory
    /// goes back to the system: what is in blocks that still exist, when they are dropped. Nothing goes to it then, whatever was begun.
    ///
    /// # Errors
    ///
    /// [`PoolError::Unknown`](crate::segments::PoolError::Unknown).
    pub fn release_pool(&self, id: MempoolId) -> Result<()> {
        refuse_forked()?;
        let shared = self.shared();
        let mut pools = lock(&shared.pools);
        match pools.uses.get_mut(&id) {
            None => return Err(PoolError::Unknown { id }.into()),
            Some(uses) if *uses > 1 => {
                *uses -= 1;
                return Ok(());
            }
            Some(_) => pools.uses.remove(&id),
        };
        let mut route = pools.position(id).map(|position| pools.routes.remove(position));
        shared.routes.store(pools.routes.len(), Ordering::Release);
        let released: Vec<_> = pools.arenas.extract_if(|(pool, _), _| *pool == Some(id)).collect();
        drop(pools);
        route.iter_mut().for_each(|(_, filter)| wait_unless_awaited(|| Arc::get_mut(filter).is_some()));
        released.iter().for_each(|(_, arena)| arena.close());
        // Last: what the filter has captured may panic as it goes.
        drop(route);
        Ok(())
    }

    /// Gives memory back to the system until no more than `bytes` bytes are held beside the blocks in use. Only whole segments
    /// can go, largest first, and none with a block that is in use, that a stream still uses, or that a graph has captured:
    /// more may stay. Before anything goes, the driver waits for all work of the context.
    pub fn trim_to(&self, bytes: usize) {
        if !forked() {
            self.shared().trim_to(bytes);
        }
    }

    /// Gives everything that is free back to the system, as [`PinnedCachingAllocator::trim_to`] 0 does.
    pub fn empty_cache(&self) {
        self.trim_to(0);
    }

    /// What the allocator has and has done. Makes no driver call.
    #[must_use]
    pub fn statistics(&self) -> PinnedCacheStatistics {
        if forked() { PinnedCacheStatistics::default() } else { self.shared().figures.read() }
    }

    /// Has the peaks of the statistics start anew from what there is now, and the longest and the shortest times from none.
    pub fn reset_peak_statistics(&self) {
        if !forked() {
            self.shared().figures.reset_peak();
        }
    }

    /// Has the accumulated figures of the statistics start anew from zero: `allocated`, `freed`, numbers of calls, and times.
    pub fn reset_accumulated_statistics(&self) {
        if !forked() {
            self.shared().figures.reset_accumulated();
        }
    }

    /// Whether the driver has refused to register memory, as it does under confidential computing (`CUDA_ERROR_NOT_SUPPORTED`), so that it
    /// allocates it ([`PinnedBuffer`](cuda_mem_core::PinnedBuffer)): that takes several times as long, and the driver chooses the NUMA node.
    #[must_use]
    pub fn is_allocated_by_driver(&self) -> bool {
        self.shared().is_registration_refused.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.handle.shared
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !forked() {
            self.shared.close();
        }
    }
}

crate::impl_debug!(PinnedCachingAllocator, |it| statistics: it.statistics());

//! Private pools, as users have them.
//!
//! # Safety
//!
//! Declares an unsafe function; nothing is called here.

#![allow(unsafe_code, reason = "declares an unsafe function")]

use std::collections::HashSet;
use std::sync::Arc;

use cuda_mem_core::Device;
use cuda_mem_core::sys::CUdeviceptr;

use super::State;
use crate::caching::CachingAllocator;
use crate::caching::callbacks::refuse_watchers;
use crate::caching::shared::{Shared, refuse_forked};
use crate::error::{Error, Result};
use crate::mempool_id::MempoolId;
use crate::primitive::{MutexGuard, Ordering, lock};
use crate::resource::{MemoryResource, RawResource};
use crate::segments::{Checkpoint, Filter, Options, Restored};

/// Private pools: memory that serves nobody else, in segments that never move, with PyTorch's names and rules.
///
/// ```
/// use cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
/// use cuda_mem_pool::segments::Filter;
/// use cuda_mem_pool::MempoolId;
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
///
/// let id = MempoolId::for_graph();
/// allocator.begin_allocate_to_pool(id, Filter::this_thread())?;
/// let block = allocator.allocate_by_address(3 << 20, &stream)?; // of the pool
/// allocator.end_allocate_to_pool(id)?;
/// assert_eq!(allocator.base_allocation(block)?, (block, 20 << 20)); // its segment
/// // SAFETY: nothing uses it.
/// unsafe { allocator.free_by_address(block) }?;
/// allocator.release_pool(id)?;
/// assert_eq!(allocator.empty_pool_cache(id)?, 20 << 20);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
///
/// # Capture
///
/// All of these may be called while streams capture, and no call of theirs disturbs a capture. A block that was allocated while
/// its stream captured, and its allocations went to a pool, may be used by the graph, wherever that is launched: the pool keeps its
/// memory until the last [`release_pool`](Self::release_pool), whatever was freed meanwhile. A block that was allocated before the
/// capture is freed behind the graph's last launch, and not sooner: nothing here sees that a graph uses it
/// ([`free_by_address`](Self::free_by_address) says all of it). Blocks that wait for other streams
/// ([`record_stream`](Self::record_stream)) stay away while a graph may be captured from their pool: as long as allocations go
/// to it, unless [`set_graph_capture_record_stream_reuse`](Self::set_graph_capture_record_stream_reuse) is on.
impl CachingAllocator {
    /// Makes the pool, or adds a use to it. Its segments come from `source` if one is named, which is asked on an internal stream
    /// that the host waits for, in the thread's relaxed capture mode, and must give memory at multiples of 512, as pools of the driver do and an
    /// [`AlignedAdaptor`](crate::AlignedAdaptor) can; else they are memory of the device, in handles that can be exported.
    ///
    /// # Errors
    ///
    /// [`PoolError`](crate::segments::PoolError) in [`Error::Pool`] for [`MempoolId::NONE`], for a pool that exists if a source is named, and for one that
    /// was released; [`Error::OwnSource`] if the source is this allocator.
    pub fn create_or_incref_pool(&self, id: MempoolId, source: Option<Arc<dyn RawResource>>) -> Result<()> {
        let address = |source: &Arc<dyn RawResource>| Arc::as_ptr(source).cast::<()>().addr();
        if source.as_ref().is_some_and(|source| address(source) == address(&self.raw())) {
            return Err(Error::OwnSource { id });
        }
        // Refused, the source goes without the lock.
        let kept = source.clone();
        let made = self.shared().pools()?.pools.create_or_incref(id, source);
        drop(kept);
        Ok(made?)
    }

    /// How often the pool is in use; 0 if there is none, or its last use has ended.
    #[must_use]
    pub fn pool_use_count(&self, id: MempoolId) -> u64 {
        self.shared().pools().map_or(0, |state| state.pools.use_count(id))
    }

    /// From here on allocations that the filter accepts go to the pool, which is made if there is none and has one use more.
    /// Of several filters that accept one, the one that was begun last decides. A filter is asked in the allocating thread, with
    /// the [id](cuda_mem_core::StreamId::as_raw) of the stream; what it allocates itself goes to no private pool.
    ///
    /// # Errors
    ///
    /// [`PoolError`](crate::segments::PoolError) in [`Error::Pool`] if allocations go to the pool already, it was released, or is [`MempoolId::NONE`].
    pub fn begin_allocate_to_pool(&self, id: MempoolId, filter: Filter) -> Result<()> {
        refuse_forked()?;
        let shared = self.shared();
        // Afterwards nothing that waits in this pool comes back, as long as allocations go to it.
        shared.poll_private();
        // Refused, the filter goes without the lock.
        let kept = filter.clone();
        let begun = shared.pools()?.pools.begin_allocate(id, filter);
        drop(kept);
        begun?;
        shared.private.routes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Ends what [`CachingAllocator::begin_allocate_to_pool`] began, whichever was begun after it. Its use of the pool stays, until
    /// [`CachingAllocator::release_pool`].
    ///
    /// # Errors
    ///
    /// [`PoolError::NotRouted`](crate::segments::PoolError::NotRouted) in [`Error::Pool`].
    pub fn end_allocate_to_pool(&self, id: MempoolId) -> Result<()> {
        let shared = self.shared();
        let ended = shared.pools()?.pools.end_allocate(id);
        // Dropped without the lock.
        let filter = ended?;
        shared.private.routes.fetch_sub(1, Ordering::Relaxed);
        shared.private.captures.forget();
        drop(filter);
        Ok(())
    }

    /// Ends one use of the pool. After the last one nothing is allocated from it any more, and its memory goes back with
    /// [`CachingAllocator::empty_cache`], or when there is no other; blocks that still exist stay valid until they are freed. Pools
    /// may be released in any order.
    ///
    /// # Errors
    ///
    /// [`PoolError`](crate::segments::PoolError) in [`Error::Pool`] if there is no such pool, it was released before, or allocations go to it.
    pub fn release_pool(&self, id: MempoolId) -> Result<()> {
        Ok(self.shared().pools()?.pools.release_pool(id)?)
    }

    /// Whether the pool's free memory may serve requests of its streams that would else be out of memory. It serves none once the
    /// pool has given memory to a stream that captured: a graph goes on using what is free.
    ///
    /// # Errors
    ///
    /// [`PoolError`](crate::segments::PoolError) in [`Error::Pool`] if there is no such pool, or it was released.
    pub fn set_use_on_oom(&self, id: MempoolId, use_on_oom: bool) -> Result<()> {
        Ok(self.shared().pools()?.pools.set_use_on_oom(id, use_on_oom)?)
    }

    /// Whether each request to the pool gets the whole of the free block that is found for it.
    ///
    /// # Errors
    ///
    /// As [`CachingAllocator::set_use_on_oom`].
    pub fn set_no_split(&self, id: MempoolId, no_split: bool) -> Result<()> {
        Ok(self.shared().pools()?.pools.set_no_split(id, no_split)?)
    }

    /// As [`CachingAllocator::empty_cache`], for one private pool alone, which must have been released: a pool in use keeps its
    /// memory. [`MempoolId::NONE`] is the default pool with all released ones. How many bytes went.
    ///
    /// The host waits for what may use the pool: its blocks' streams, those that were recorded, and for a graph's pool all that the
    /// allocator knows. Memory stays while one of them captures.
    ///
    /// # Errors
    ///
    /// [`Error::Core`] of the driver or of the pool's source. What was not taken stays.
    pub fn empty_pool_cache(&self, id: MempoolId) -> Result<usize> {
        if id == MempoolId::NONE {
            return self.empty_cache();
        }
        let shared = self.shared();
        drop(shared.pools()?);
        refuse_watchers()?;
        shared.poll();
        shared.reclaim_pool(id)
    }

    /// The options of private pools that hold from here on, as a whole. Segments and blocks stay as they are. Their rounding
    /// and threshold of garbage collection count for the default pool too.
    ///
    /// # Errors
    ///
    /// `Forked` in [`Error::Core`].
    pub fn set_segment_options(&self, options: Options) -> Result<()> {
        let shared = self.shared();
        let mut state = shared.pools()?;
        state.options = options;
        state.pools.set_options(options);
        shared.rounding.set(&options);
        drop(state);
        shared.set_garbage(options.garbage_collection_threshold());
        Ok(())
    }

    /// The layout of a pool as it is.
    ///
    /// Freed blocks that other streams use ([`record_stream`](Self::record_stream)) come back first. Once no allocations go to the
    /// pool the host waits for that, also for what streams did in captures that have ended.
    ///
    /// # Errors
    ///
    /// [`PoolError`](crate::segments::PoolError) in [`Error::Pool`] if there is no such pool, it was released, or streams still use freed blocks of it:
    /// while allocations go to it, and where one of the streams captures. [`Error::Core`] of the driver if that fails what is waited for.
    pub fn checkpoint_pool(&self, id: MempoolId) -> Result<Checkpoint> {
        self.shared().checkpoint_pool(id)
    }

    /// Makes a pool's layout what it was at a checkpoint: all its blocks are freed, and those of the checkpoint are allocated again,
    /// at the addresses that they had. What is freed already is waited for as for a checkpoint.
    ///
    /// # Errors
    ///
    /// As [`CachingAllocator::checkpoint_pool`], and if a segment of the checkpoint was given back since. Nothing was changed then.
    ///
    /// # Safety
    ///
    /// What [`Restored`] calls freed is not used any more, as for [`CachingAllocator::free_by_address`], and is not freed by anybody
    /// else. What it calls allocated is used behind all that used that memory before.
    pub unsafe fn restore_pool(&self, id: MempoolId, checkpoint: &Checkpoint) -> Result<Restored> {
        self.shared().restore_pool(id, checkpoint)
    }

    /// Whether exactly the blocks at these addresses are in somebody's hands, of all that came from the pool.
    ///
    /// # Errors
    ///
    /// [`PoolError::Unknown`](crate::segments::PoolError::Unknown) in [`Error::Pool`].
    pub fn check_pool_live_allocations(
        &self,
        id: MempoolId,
        addresses: &HashSet<CUdeviceptr>,
    ) -> Result<bool> {
        Ok(self.shared().pools()?.pools.get(id)?.heap().check_live_allocations(addresses))
    }

    /// Lets another device reach all memory of this allocator, what it has and what it gets; nothing if that is so already. An
    /// upstream's memory is the upstream's to share.
    ///
    /// Wraps [`cuMemSetAccess`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html) for each mapping.
    ///
    /// # Errors
    ///
    /// [`Error::NoPeerAccess`] if the device cannot; [`Error::Core`] of the driver, after which some of the memory may be in its
    /// reach.
    pub fn enable_peer_access(&self, peer: Device) -> Result<()> {
        self.shared().enable_peer_access(peer)
    }

    /// The address and the bytes of what a block lies in: its segment, for a block of a private pool, else the whole pages of 2 MiB.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAddress`] if no block begins there; [`Error::InCallback`].
    pub fn base_allocation(&self, address: CUdeviceptr) -> Result<(CUdeviceptr, usize)> {
        self.shared().base_allocation(address)
    }

    /// The bytes of a block, which it counts with in [`allocated_bytes`](crate::statistics::DeviceStatistics::allocated_bytes): at least
    /// those that were asked for.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAddress`] if no block begins there; [`Error::InCallback`].
    pub fn block_bytes(&self, address: CUdeviceptr) -> Result<usize> {
        self.shared().block_bytes(address)
    }
}

impl Shared {
    pub(super) fn pools(&self) -> Result<MutexGuard<'_, State>> {
        refuse_forked()?;
        Ok(lock(&self.private.state))
    }
}

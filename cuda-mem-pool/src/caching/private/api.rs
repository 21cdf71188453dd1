//! Private pools, as users have them.
//!
//! # Safety
//!
//! Declares unsafe functions; nothing is called here.

#![allow(unsafe_code, reason = "declares unsafe functions")]

use std::collections::HashSet;
use std::marker::PhantomData;
use std::sync::Arc;

use cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_core::{Stream, catch_panic};

use super::PoolState;
use super::graph::Restored;
use crate::caching::CachingAllocator;
use crate::caching::callbacks::refuse_watchers;
use crate::caching::sleep::Tag;
use crate::error::{Error, PoolError, Result, refuse_forked};
use crate::mempool_id::MempoolId;
use crate::primitive::{MutexGuard, Ordering, lock, wait_unless_awaited};
use crate::resource::{MemoryResource, RawResource};
use crate::segments::{Checkpoint, Filter, Options};

/// Private pools: memory that serves nobody else, in segments that never move, with PyTorch's names and rules. What refuses a call
/// for the pool's sake, as of one that is not there or was released, is a [`PoolError`](crate::segments::PoolError) in [`Error::Pool`].
///
/// ```
/// use cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
/// use cuda_mem_pool::MemoryResource;
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
///
/// let pool = allocator.private_pool(None)?;
/// let route = pool.route_this_thread()?;
/// let block = allocator.allocate(3 << 20, &stream)?; // of the pool
/// drop(route);
/// assert_eq!(allocator.reserved_bytes(), 20 << 20); // its segment
/// // SAFETY: nobody opens it.
/// assert_eq!(unsafe { allocator.ipc_handle(block.address()) }?.len(), 3 << 20);
/// drop(block);
/// drop(pool);
/// assert_eq!(allocator.empty_cache()?, 20 << 20);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
///
/// # Capture
///
/// No call disturbs a capture. A block that was allocated while its stream captured may be used by the graph until the last
/// [`release_pool`](Self::release_pool), whatever was freed meanwhile; one that was allocated before is freed behind the graph's last launch.
/// Blocks that wait for other streams ([`record_stream`](Self::record_stream)) stay away as long as allocations go to their pool, if a graph
/// may be captured from it, unless [`set_graph_capture_record_stream_reuse`](Self::set_graph_capture_record_stream_reuse) is on.
impl CachingAllocator {
    /// Makes a private pool, which is in use until the result is dropped. Its segments are from a source, as
    /// [`create_or_incref_pool`](Self::create_or_incref_pool) says; without one, memory of `cuMemAlloc`, of which there are
    /// [legacy handles](Self::ipc_handle).
    pub fn private_pool(&self, source: Option<Arc<dyn RawResource>>) -> Result<PrivatePool> {
        let id = MempoolId::for_user();
        self.create_or_incref_pool(id, source)?;
        Ok(PrivatePool { allocator: self.clone(), id })
    }

    /// Makes the pool, or adds a use to it. A `source` gives its segments at multiples of 256, as pools of the driver do; it is asked on an
    /// internal stream that the host waits for, in the thread's relaxed capture mode. Without one they are memory of `cuMemAlloc`.
    ///
    /// # Errors
    ///
    /// [`Error::Pool`] for [`MempoolId::NONE`] and a tag's own name, for a pool that exists if a source is named, and for one that was released;
    /// [`Error::OwnSource`] if the source is this allocator.
    pub fn create_or_incref_pool(&self, id: MempoolId, source: Option<Arc<dyn RawResource>>) -> Result<()> {
        refuse_tag_s(id)?;
        let address = |source: &Arc<dyn RawResource>| Arc::as_ptr(source).cast::<()>().addr();
        if source.as_ref().is_some_and(|source| address(source) == address(&self.raw())) {
            return Err(Error::OwnSource { id });
        }
        // Refused, the source goes without the lock.
        let kept = source.clone();
        let made = self.pool_state()?.pools.create_or_incref(id, source);
        drop(kept);
        Ok(made?)
    }

    /// Counts the uses of the pool: 0 if there is none, or its last use has ended, or none has begun.
    #[must_use]
    pub fn pool_use_count(&self, id: MempoolId) -> u64 {
        self.pool_state().ok().and_then(|mut state| state.pools.in_use(id).ok()?.uses).unwrap_or(0)
    }

    /// Has allocations that the filter accepts go to the pool, which is made if there is none and has one use more. Of several filters
    /// that accept one, the one that was begun last decides. A filter is asked in the allocating thread, with the
    /// [id](cuda_mem_core::StreamId::as_raw) of the stream; what it allocates itself goes to no private pool. A call that ends a use of a pool
    /// waits for filters that are running, so a filter must not wait for the thread of such a call.
    ///
    /// # Errors
    ///
    /// [`Error::Pool`] if allocations go to the pool already, it was released, or is [`MempoolId::NONE`] or a tag's own.
    pub fn begin_allocate_to_pool(&self, id: MempoolId, filter: Filter) -> Result<()> {
        refuse_tag_s(id)?;
        self.begin_route(id, filter)
    }

    /// As [`begin_allocate_to_pool`](Self::begin_allocate_to_pool), also for a tag's own pool, which may have several.
    pub(in crate::caching) fn begin_route(&self, id: MempoolId, filter: Filter) -> Result<()> {
        refuse_forked()?;
        // Afterwards nothing that waits in this pool comes back, as long as allocations go to it.
        self.shared().pools().poll();
        // Refused, the filter goes without the lock.
        let kept = filter.clone();
        let begun = self.pool_state()?.pools.begin_allocate(id, filter);
        drop(kept);
        begun?;
        self.shared().private.routes.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Ends what [`CachingAllocator::begin_allocate_to_pool`] began, whichever was begun after it. Its use of the pool stays, until
    /// [`CachingAllocator::release_pool`].
    ///
    /// # Errors
    ///
    /// [`Error::Pool`] if no allocations go to the pool, or it is a tag's own.
    pub fn end_allocate_to_pool(&self, id: MempoolId) -> Result<()> {
        refuse_tag_s(id)?;
        self.end_route(id, None)
    }

    /// Whether allocations that some filter accepts go to a pool, by [`CachingAllocator::begin_allocate_to_pool`]. Scopes of tags do not count.
    #[must_use]
    pub fn has_routes(&self) -> bool {
        self.pool_state().is_ok_and(|state| state.pools.routes().0.iter().any(|(id, _)| !id.is_tag_s_own()))
    }

    /// As [`end_allocate_to_pool`](Self::end_allocate_to_pool), of the one with this filter.
    pub(in crate::caching) fn end_route(&self, id: MempoolId, filter: Option<&Filter>) -> Result<()> {
        let ended = self.pool_state()?.pools.end_allocate(id, filter);
        self.forget_route(ended?);
        Ok(())
    }

    /// Without the lock, and once nobody asks the filter any more, unless this is one. A panic of what the filter has captured is nobody's: the
    /// pool's use is yet to end.
    fn forget_route(&self, mut filter: Arc<Filter>) {
        let private = &self.shared().private;
        private.routes.fetch_sub(1, Ordering::Relaxed);
        lock(&private.captures.pasts).clear();
        wait_unless_awaited(|| Arc::get_mut(&mut filter).is_some());
        let _ = catch_panic(|| drop(filter));
    }

    /// Ends one use of the pool. After the last one nothing is allocated from it any more, whatever was begun, and its memory goes back with
    /// [`CachingAllocator::empty_cache`], or when there is no other; blocks that still exist stay valid until they are freed.
    ///
    /// # Errors
    ///
    /// [`Error::Pool`] if there is no such pool, it was released before, or it is a tag's own, which lives as long as the allocator.
    pub fn release_pool(&self, id: MempoolId) -> Result<()> {
        refuse_tag_s(id)?;
        self.release_use(id)
    }

    pub(in crate::caching) fn release_use(&self, id: MempoolId) -> Result<()> {
        let released = self.pool_state()?.pools.release_pool(id);
        if let Some(filter) = released? {
            self.forget_route(filter);
        }
        Ok(())
    }

    /// Sets whether the pool's free memory may serve requests of its streams that would else be out of memory. It serves none once the
    /// pool has given memory to a stream that captured: a graph goes on using what is free.
    pub fn set_use_on_oom(&self, id: MempoolId, use_on_oom: bool) -> Result<()> {
        self.pool_state()?.pools.in_use(id)?.use_on_oom = use_on_oom;
        Ok(())
    }

    /// Has each request to the pool get the whole of the free block that is found for it.
    pub fn set_no_split(&self, id: MempoolId) -> Result<()> {
        self.pool_state()?.pools.in_use(id)?.heap.no_split = true;
        Ok(())
    }

    /// Gives back the free memory of one private pool, which must have been released: a pool in use keeps its memory, and 0 is returned, as for none.
    /// [`MempoolId::NONE`] is the default pool with all released ones. The bytes that went.
    ///
    /// The host waits for what may use the pool: its blocks' streams, those that were recorded, and for a graph's pool all that the
    /// allocator knows; not for those of the default pool. Memory stays while one of them captures, and what the driver or the pool's source
    /// does not take.
    pub fn empty_pool_cache(&self, id: MempoolId) -> Result<usize> {
        refuse_watchers()?;
        if id == MempoolId::NONE {
            let went = self.empty_cache();
            let pools = self.shared().pools();
            pools.wait_for_uses();
            return Ok(pools.reclaim(id, true, 0)?.saturating_add(went?));
        }
        self.shared().poll();
        self.shared().pools().reclaim_pool(id)
    }

    /// Sets the options of all private pools from here on. Segments and blocks stay as they are. Their rounding and threshold of garbage
    /// collection count for the default pool too.
    ///
    /// # Errors
    ///
    /// [`Error::Options`].
    pub fn set_segment_options(&self, options: Options) -> Result<()> {
        options.check()?;
        let mut state = self.pool_state()?;
        state.pools.set_options(options);
        self.shared().rounding.set(&options);
        Ok(())
    }

    /// Sets whether the default pool grows by pages, which may move once they are free: PyTorch's `expandable_segments`, on at first. While it is
    /// off, what goes to no private pool is in segments of `cuMemAlloc`, which stay where they are until they go back as those of
    /// released pools do, and of which there are [legacy handles](Self::ipc_handle). What there is stays where it is. It is always off on a
    /// device that does not map memory.
    pub fn set_expandable_segments(&self, expandable: bool) -> Result<()> {
        refuse_forked()?;
        let shared = self.shared();
        shared.private.serve_default(!(expandable && shared.maps));
        Ok(())
    }

    /// Takes the layout of a pool as it is. Freed blocks that other streams use ([`record_stream`](Self::record_stream)) come back first:
    /// once no allocations go to the pool the host waits for that, also for what streams did in captures that have ended.
    ///
    /// # Errors
    ///
    /// [`Error::Pool`] if there is no such pool, it was released, or streams still use freed blocks of it: while allocations go to it, and
    /// where one of the streams captures, or a tracker asks that is told of such a free. [`Error::Core`] of the driver if that fails what is
    /// waited for.
    pub fn checkpoint_pool(&self, id: MempoolId) -> Result<Checkpoint> {
        self.shared().pools().checkpoint(id)
    }

    /// Makes a pool's layout what it was at a checkpoint: all its blocks are freed, and those of the checkpoint are allocated again,
    /// at the addresses that they had. Waits as [`CachingAllocator::checkpoint_pool`].
    ///
    /// # Errors
    ///
    /// As [`CachingAllocator::checkpoint_pool`], and if a segment of the checkpoint was given back since. Nothing was changed then.
    ///
    /// # Safety
    ///
    /// What [`Restored`] calls freed is not used any more, also not on streams that [`record_stream`](Self::record_stream) was told, and is
    /// not freed again. What it calls allocated is used behind all earlier uses of that memory.
    pub unsafe fn restore_pool(&self, id: MempoolId, checkpoint: &Checkpoint) -> Result<Restored> {
        self.shared().pools().restore(id, checkpoint)
    }

    /// Checks whether exactly the blocks at these addresses are allocated, of all blocks of the pool.
    pub fn check_pool_live_allocations(
        &self,
        id: MempoolId,
        addresses: &HashSet<CUdeviceptr>,
    ) -> Result<bool> {
        Ok(self.pool_state()?.pools.get(id)?.heap.check_live_allocations(addresses))
    }

    /// Allocates as [`CachingAllocator::allocate_by_address`] if the request goes to a private pool; None if to the default one.
    pub fn allocate_in_pool(&self, bytes: usize, stream: &Stream) -> Result<Option<CUdeviceptr>> {
        refuse_forked()?;
        let shared = self.shared();
        if shared.private.is_routed() { shared.pools().allocate(bytes, stream, false) } else { Ok(None) }
    }

    /// Sets whether blocks of private pools that other streams used during a capture may serve that capture again before it has ended:
    /// PyTorch's `graph_capture_record_stream_reuse`, which is off at first.
    ///
    /// It may if each such stream was [recorded](Self::record_stream) in the capture that the block's own stream is part of when the block is
    /// freed. It is free again for its own stream once that comes, by the edges of the graph, after all that those streams had been given by
    /// then: the next allocation looks. Where that cannot be told, it waits until the capture has ended.
    ///
    /// Wraps [`cuStreamGetCaptureInfo`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__STREAM.html) and
    /// [`cuGraphNodeGetDependencies`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__GRAPH.html), once for each node.
    ///
    /// # Safety
    ///
    /// While it is on, memory is not allocated for a stream that captures, nor a block freed that such a stream used, beside
    /// another thread that gives a stream of the same capture anything, changes its graph, or ends it. Who changes the graph, or
    /// what a stream's next node comes after, leaves what came before a node before it.
    pub unsafe fn set_graph_capture_record_stream_reuse(&self, reuse: bool) -> Result<()> {
        refuse_forked()?;
        self.shared().private.captures.reused.store(reuse, Ordering::Relaxed);
        Ok(())
    }

    /// The tag of that name, which is made if there is none. It lives as long as the allocator. [`Tag`] has an example.
    pub fn tag(&self, name: &str) -> Result<Tag> {
        Tag::of(self, name)
    }

    /// All tags by name.
    #[must_use]
    pub fn tags(&self) -> Vec<Tag> {
        Tag::all(self)
    }

    fn pool_state(&self) -> Result<MutexGuard<'_, PoolState>> {
        refuse_forked()?;
        Ok(lock(&self.shared().private.state))
    }
}

/// Refuses the name of a tag's own pool: released, it would come back as one that never sleeps.
pub(in crate::caching) fn refuse_tag_s(id: MempoolId) -> Result<()> {
    if id.is_tag_s_own() { Err(PoolError::OfTag { id }.into()) } else { Ok(()) }
}

/// A private pool of a caching allocator, in use until it is dropped. Its memory goes back with
/// [`CachingAllocator::empty_cache`], or when there is no other.
///
/// Around a graph, whose memory is allocated by address: an [`Allocation`](crate::Allocation) refuses uses on a stream that captures.
///
/// ```
/// use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
/// use cuda_mem_pool::cuda_mem_core::sys::{CUresult, CUstreamCaptureMode};
/// use cuda_mem_pool::cuda_mem_core::{Driver, Stream};
///
/// const LEN: usize = 8 << 20;
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
/// let (table, raw) = (driver.table(), stream.as_raw().cast());
/// let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
///
/// let pool = allocator.private_pool(None)?;
/// context.with_current(|| {
///     // SAFETY: a live stream; the graph alone uses the block, and is launched only while there is the pool.
///     unsafe {
///         table.cuStreamBeginCapture()?(raw, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL);
///         let route = pool.route_this_thread()?;
///         let address = allocator.allocate_by_address(LEN, &stream)?;
///         table.cuMemsetD8Async()?(address, 7, LEN, raw);
///         allocator.free_by_address(address)?; // the rest of the capture may have it; the pool keeps it for the graph
///         drop(route);
///         table.cuStreamEndCapture()?(raw, &mut graph);
///         table.cuGraphInstantiateWithFlags()?(&mut executable, graph, 0);
///         assert_eq!(table.cuGraphLaunch()?(executable, raw), CUresult::CUDA_SUCCESS);
///         stream.synchronize()?;
///         table.cuGraphExecDestroy()?(executable);
///         table.cuGraphDestroy()?(graph);
///     }
///     Ok::<(), Box<dyn std::error::Error>>(())
/// })??;
/// drop(pool);
/// assert_eq!(allocator.empty_cache()?, 20 << 20); // its segment
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "the pool's use ends when this is dropped"]
pub struct PrivatePool {
    allocator: CachingAllocator,
    id: MempoolId,
}

impl PrivatePool {
    /// The pool's name, for those of the allocator's functions that take one.
    #[must_use]
    pub fn id(&self) -> MempoolId {
        self.id
    }

    /// Has allocations that the filter accepts go to the pool until the result is dropped.
    ///
    /// # Errors
    ///
    /// As [`CachingAllocator::begin_allocate_to_pool`]: a pool has one route at a time.
    pub fn route(&self, filter: Filter) -> Result<PoolRoute<'_>> {
        self.allocator.begin_allocate_to_pool(self.id, filter.clone())?;
        Ok(PoolRoute { pool: self, filter: Some(filter), _not_send: PhantomData })
    }

    /// Has allocations of the calling thread go to the pool until the result is dropped.
    pub fn route_this_thread(&self) -> Result<PoolRoute<'_>> {
        self.route(Filter::this_thread())
    }
}

impl Drop for PrivatePool {
    fn drop(&mut self) {
        // Refused in a forked child alone, where the pool is the parent's.
        let _ = self.allocator.release_pool(self.id);
    }
}

/// Allocations go to a private pool until this is dropped, which stays in its thread: the filter may be that thread's.
/// [`CachingAllocator::private_pool`] has an example.
#[derive(Debug)]
#[must_use = "the route ends when this is dropped"]
pub struct PoolRoute<'p> {
    pool: &'p PrivatePool,
    filter: Option<Filter>,
    _not_send: PhantomData<*mut ()>,
}

impl Drop for PoolRoute<'_> {
    fn drop(&mut self) {
        let PrivatePool { allocator, id } = self.pool;
        // As for the pool, unless somebody ended it by its name.
        if allocator.end_route(*id, self.filter.as_ref()).is_ok() {
            let _ = allocator.release_pool(*id);
        }
        // As `forget_route`, which was not the last that has it.
        let _ = catch_panic(|| drop(self.filter.take()));
    }
}

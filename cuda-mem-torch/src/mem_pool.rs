//! A private pool as an owner.

use std::sync::Arc;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Device, forked};
use cuda_mem_ipc::cuda_mem_pool::snapshot::Snapshot;
use cuda_mem_ipc::cuda_mem_pool::{self as pool, MempoolId, RawResource};

use crate::allocator::{AllocatorSource, CudaAllocator, for_core};
use crate::current::current_allocator;
use crate::error::{Result, no_panic};

/// A private pool of an allocator, for one device: PyTorch's `MemPool`.
///
/// Allocations go to it between [`begin_allocate_to_pool`](CudaAllocator::begin_allocate_to_pool) and
/// [`end_allocate_to_pool`](CudaAllocator::end_allocate_to_pool). Dropped, it helps out no more with free memory of the pool, takes its use of
/// the pool away and then has the pool's cache emptied. Allocations and graphs may still hold the pool: its memory goes back when the last has
/// let go and caches are emptied, or memory is needed.
///
/// It is no handle that could be cloned:
///
/// ```compile_fail
/// fn two<P: Clone>(pool: &P) -> P { pool.clone() }
/// fn of(pool: &cuda_mem_torch::MemPool) { two(pool); }
/// ```
///
/// ```
/// use std::sync::Arc;
///
/// use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::segments::Filter;
/// use cuda_mem_torch::{CudaAllocator, MemPool, NativeAllocator};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let device = driver.device(0)?;
/// let context = device.primary_context()?;
/// let allocator: Arc<dyn CudaAllocator> = Arc::new(NativeAllocator::new(driver));
/// allocator.init(1)?;
///
/// let pool = context.with_current(|| MemPool::of(&allocator, None, true, false, false))??;
/// assert_eq!((pool.device(), pool.use_count()?), (device, 1));
/// allocator.begin_allocate_to_pool(device, pool.id(), Filter::this_thread())?;
/// let block = allocator.malloc(3 << 20, device, &Stream::new(&context)?)?;
/// allocator.end_allocate_to_pool(device, pool.id())?;
/// // SAFETY: nothing uses it.
/// unsafe { allocator.raw_delete(block) }?;
/// # allocator.release_pool(device, pool.id())?;
/// # Ok::<(), cuda_mem_torch::Error>(())
/// ```
pub struct MemPool {
    owner: Arc<dyn CudaAllocator>,
    allocator: Option<Arc<dyn CudaAllocator>>,
    id: MempoolId,
    device: Device,
}

impl MemPool {
    /// A pool of the [program's allocator](current_allocator) on the device that is current, which it stays on. PyTorch's defaults
    /// are `None, true, false, false`.
    ///
    /// Its segments are memory of `allocator` if one is named, which the pool keeps, else of the program's allocator as it has them.
    /// `is_user_created` says how the pool is [named](MemPool::graph_pool_handle). With `use_on_oom`, requests that would else be out of memory
    /// may have free memory of the pool, as [`set_use_on_oom`](CudaAllocator::set_use_on_oom) says; with `no_split`, each request to it gets the
    /// whole of the free block that is found.
    ///
    /// # Errors
    ///
    /// [`Error::Core`](crate::Error::Core) where there is no driver; as [`MemPool::of`].
    pub fn new(
        allocator: Option<Arc<dyn CudaAllocator>>,
        is_user_created: bool,
        use_on_oom: bool,
        no_split: bool,
    ) -> Result<Self> {
        Self::of(&current_allocator()?, allocator, is_user_created, use_on_oom, no_split)
    }

    /// As [`MemPool::new`], of an allocator that is not the program's.
    ///
    /// # Errors
    ///
    /// `NoCurrentContext` in [`Error::Pool`](crate::Error::Pool) if no device is current, `OwnSource` in it if `allocator` is the pool's own one;
    /// [`Error::NotInitialized`](crate::Error::NotInitialized) if the device is not the allocator's.
    pub fn of(
        owner: &Arc<dyn CudaAllocator>,
        allocator: Option<Arc<dyn CudaAllocator>>,
        is_user_created: bool,
        use_on_oom: bool,
        no_split: bool,
    ) -> Result<Self> {
        let device = owner.native().caches.current_device()?;
        let id = Self::graph_pool_handle(is_user_created);
        if allocator.as_ref().is_some_and(|allocator| allocator.raw_deleter() == owner.raw_deleter()) {
            return Err(pool::Error::OwnSource { id }.into());
        }
        let source =
            allocator.clone().map(|allocator| Arc::new(AllocatorSource(allocator)) as Arc<dyn RawResource>);
        owner.create_or_incref_pool(device, id, source)?;
        // From here on it is released if anything is wrong.
        let pool = Self { owner: Arc::clone(owner), allocator, id, device };
        if use_on_oom {
            pool.owner.set_use_on_oom(device, id, true)?;
        }
        if no_split {
            pool.owner.set_no_split(device, id)?;
        }
        Ok(pool)
    }

    /// Its name, which no other pool of the process has.
    #[must_use]
    pub fn id(&self) -> MempoolId {
        self.id
    }

    /// Whose memory its segments are, if that was named.
    #[must_use]
    pub fn allocator(&self) -> Option<&Arc<dyn CudaAllocator>> {
        self.allocator.as_ref()
    }

    /// How often the pool is in use: 1 for this value, and 1 for each graph or other user that has not released it.
    ///
    /// # Errors
    ///
    /// `Forked` in [`Error::Core`](crate::Error::Core).
    pub fn use_count(&self) -> Result<u64> {
        self.owner.pool_use_count(self.device, self.id)
    }

    /// The device that was current when it was made.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// The pool's segments, with the history of the allocator.
    ///
    /// # Errors
    ///
    /// As [`CudaAllocator::snapshot`].
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.owner.snapshot(self.id)
    }

    /// A new name for a pool, and no more: `(0, n)` for one that a user makes, `(n, 0)` for a graph's, each counted from 1, because
    /// `(0, 0)` stands for no pool.
    #[must_use]
    pub fn graph_pool_handle(is_user_created: bool) -> MempoolId {
        if is_user_created { MempoolId::for_user() } else { MempoolId::for_graph() }
    }
}

impl Drop for MemPool {
    fn drop(&mut self) {
        if forked() {
            return;
        }
        // A graph that still holds the pool writes where it allocated: from here on other requests may not have that memory.
        let ended = self.owner.set_use_on_oom(self.device, self.id, false);
        let released = no_panic("release_pool", || self.owner.release_pool(self.device, self.id));
        let ended = ended.and(released);
        // What is in use stays, which is no error.
        let ended = ended.and_then(|()| self.owner.empty_cache(self.id));
        if let Err(error) = ended {
            self.device.driver().report_release_failure(&for_core(error, 0));
        }
    }
}

crate::impl_debug!(MemPool, |it| id: it.id, device: it.device);

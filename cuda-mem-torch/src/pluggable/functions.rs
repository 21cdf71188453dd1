//! The functions that a program may set beside its two, each for a part of the work.

use std::sync::Arc;

use cuda_mem_ipc::cuda_mem_pool::MempoolId;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Device, Stream, forked};
use cuda_mem_ipc::cuda_mem_pool::segments::Filter;

use super::PluggableAllocator;
use crate::lock::lock;

/// A function of the program, if it is set.
type Hook<F> = Option<Arc<F>>;
type BaseAllocFn = dyn Fn(CUdeviceptr, &mut usize) -> CUdeviceptr + Send + Sync;
type RecordStreamFn = dyn Fn(CUdeviceptr, &Stream) + Send + Sync;
pub(super) type PoolFn = dyn Fn(Device, MempoolId) + Send + Sync;

/// What is set. None is called under the lock.
#[derive(Clone, Default)]
pub(super) struct Hooks {
    pub(super) init: Hook<dyn Fn(usize) + Send + Sync>,
    pub(super) reset: Hook<dyn Fn() + Send + Sync>,
    pub(super) memory_fraction: Hook<dyn Fn(f64, Device) + Send + Sync>,
    pub(super) base_alloc: Hook<BaseAllocFn>,
    pub(super) record_stream: Hook<RecordStreamFn>,
    pub(super) begin_allocate_to_pool: Hook<dyn Fn(Device, MempoolId, Filter) + Send + Sync>,
    pub(super) end_allocate_to_pool: Hook<PoolFn>,
    pub(super) release_pool: Hook<PoolFn>,
}

/// The setters. Each hands a part of the work to the program; without it, the part is done here. No lock is held while a function
/// is called, or dropped, so it may use the allocator.
impl PluggableAllocator {
    /// Has `init` be called by [`init`](crate::CudaAllocator::init) with the number of devices, after the bookkeeping is ready for them.
    ///
    /// Unset: the bookkeeping alone is made ready. [`create_custom_allocator`](crate::create_custom_allocator) has called `init` with
    /// 0 by the time that a setter can be, as PyTorch's does.
    pub fn set_init_fn(&self, init: impl Fn(usize) + Send + Sync + 'static) {
        self.set(|hooks| hooks.init.replace(Arc::new(init)));
    }

    /// Has `reset` be called where the program's functions should give back what they cache: by
    /// [`empty_cache`](crate::CudaAllocator::empty_cache) of everything, and before a request, also one to a private pool, is out of memory.
    ///
    /// It replaces nothing: what is cached here, freed blocks that streams used and released private pools, goes back to the program's `free`
    /// first, with it or without. To empty a private pool alone does not call it: that memory is known here.
    pub fn set_reset_fn(&self, reset: impl Fn() + Send + Sync + 'static) {
        self.set(|hooks| hooks.reset.replace(Arc::new(reset)));
    }

    /// Has `memory_fraction` be called with what [`set_memory_fraction`](crate::CudaAllocator::set_memory_fraction) is told, and answer
    /// for it: from now on nothing is limited here, of private pools neither.
    ///
    /// Unset: requests beyond the fraction are out of memory, after the same ladder as others, and `alloc` is not called.
    pub fn set_memory_fraction_fn(&self, memory_fraction: impl Fn(f64, Device) + Send + Sync + 'static) {
        self.set(|hooks| hooks.memory_fraction.replace(Arc::new(memory_fraction)));
        // Nor are pools limited by an earlier fraction. Refused in a forked child alone, where nothing is allocated.
        let made = self.inner.native.caches.all().into_iter().flatten();
        made.for_each(|device| _ = device.caching.set_memory_fraction(1.0));
    }

    /// Has `base_alloc` tell the address and, in its second argument, the bytes of what an allocation lies in.
    ///
    /// Unset: the allocation itself, with the size that was asked for; of a private pool, its segment.
    pub fn set_base_alloc_fn(
        &self,
        base_alloc: impl Fn(CUdeviceptr, &mut usize) -> CUdeviceptr + Send + Sync + 'static,
    ) {
        self.set(|hooks| hooks.base_alloc.replace(Arc::new(base_alloc)));
    }

    /// Has `record_stream` be told of streams that use an allocation, and answer for it: frees wait for nothing here then. Of what is not allocated it does not hear. A block of a
    /// private pool that is kept here serves again without the program's functions, so it waits for its streams here all the same.
    ///
    /// Unset: the allocation is kept after its free, and given to the program's `free`, once the streams have passed the work that
    /// they were given by then.
    pub fn set_record_stream_fn(&self, record_stream: impl Fn(CUdeviceptr, &Stream) + Send + Sync + 'static) {
        self.set(|hooks| hooks.record_stream.replace(Arc::new(record_stream)));
    }

    /// Has `begin` be told that allocations which the filter accepts belong to a pool, and answer for pools: they are unknown here then, and
    /// each allocation is a call of `alloc`. A [`MemPool`](crate::MemPool) has its uses counted here, and no memory. The other two pool
    /// functions must be set as well: [`Error::NoPoolFunction`](crate::Error::NoPoolFunction) says so. Set it before the first pool begins:
    /// one that began here has its memory, and ends, here.
    ///
    /// Unset: private pools are those of the [caching allocator](cuda_mem_ipc::cuda_mem_pool::caching::CachingAllocator), with segments
    /// of the program's `alloc`, which go back to its `free`.
    pub fn set_begin_allocate_to_pool(
        &self,
        begin: impl Fn(Device, MempoolId, Filter) + Send + Sync + 'static,
    ) {
        self.set(|hooks| hooks.begin_allocate_to_pool.replace(Arc::new(begin)));
    }

    /// Has `end` be told that what [`set_begin_allocate_to_pool`](Self::set_begin_allocate_to_pool) speaks of has ended; after it has
    /// ended here, if it began here.
    ///
    /// Unset: it ends here, or is an error, if pools are the program's.
    pub fn set_end_allocate_to_pool_fn(&self, end: impl Fn(Device, MempoolId) + Send + Sync + 'static) {
        self.set(|hooks| hooks.end_allocate_to_pool.replace(Arc::new(end)));
    }

    /// Has `release` be told that a use of a pool has ended; after it has ended here, if it is counted here.
    ///
    /// Unset: it ends here, or is an error, if pools are the program's.
    pub fn set_release_pool(&self, release: impl Fn(Device, MempoolId) + Send + Sync + 'static) {
        self.set(|hooks| hooks.release_pool.replace(Arc::new(release)));
    }

    /// Not in a forked child, where a thread of the parent may have the lock. What was there before is dropped without it.
    fn set<T>(&self, set: impl FnOnce(&mut Hooks) -> T) {
        let _before = (!forked()).then(|| set(&mut lock(&self.inner.program.hooks)));
    }
}

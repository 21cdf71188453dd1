//! The allocator as PyTorch sees it.
//!
//! # Safety
//!
//! Relies on the promise of [`create_custom_allocator`]'s caller. The functions that take memory back hand on their callers'.

#![allow(unsafe_code, reason = "takes memory back by address")]

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Device, Driver, Stream};
use cuda_mem_ipc::cuda_mem_pool::segments::{Filter, PoolError};
use cuda_mem_ipc::cuda_mem_pool::snapshot::{BlockState, Snapshot};
use cuda_mem_ipc::cuda_mem_pool::statistics::DeviceStatistics;
use cuda_mem_ipc::cuda_mem_pool::{self as pool, MempoolId, RawResource};

use super::books::{segment, sum};
use super::functions::Hooks;
use super::{Inner, PluggableAllocator};
use crate::allocator::{
    CudaAllocator, Delete, NativeAllocator, RawDeleter, Sealed, expect_stream_of, refuse_forked,
};
use crate::error::{Error, OutOfMemoryObserver, Result};
use crate::ipc::{ShareableHandle, legacy};
use crate::lock::lock;

thread_local! {
    /// The thread is in an observer, and no observer is told of what it asks for, of the functions or in a pool.
    static OBSERVED: Cell<bool> = const { Cell::new(false) };
}

/// An allocator of two functions. It is initialised, for no device yet, as PyTorch's.
///
/// `alloc` gives memory of a size on a device for work of a stream: an address, or 0 if there is none, which is out of memory. `free`
/// gets the address with size, device and stream of the allocation. Both may be called by any thread and at once; an error of
/// `alloc` is the request's, and memory of which `free` has an error, or in which it panics, is still allocated.
///
/// [`PluggableAllocator`] has an example.
///
/// # Errors
///
/// `Forked` in [`Error::Core`].
///
/// # Safety
///
/// What `alloc` gives is memory of the device, with as many bytes as were asked for, that nobody else has until `free` has taken it
/// back, to be used by work that is ordered behind the call on its stream.
pub unsafe fn create_custom_allocator(
    driver: Driver,
    alloc: impl Fn(usize, Device, &Stream) -> Result<CUdeviceptr> + Send + Sync + 'static,
    free: impl Fn(CUdeviceptr, usize, Device, &Stream) -> Result<()> + Send + Sync + 'static,
) -> Result<Arc<PluggableAllocator>> {
    let allocator = PluggableAllocator::of(driver, Arc::new(alloc), Arc::new(free), Hooks::default());
    allocator.init(0)?;
    Ok(Arc::new(allocator))
}

impl Delete for Inner {
    unsafe fn delete(&self, address: CUdeviceptr) -> Result<()> {
        refuse_forked()?;
        if address == 0 || self.free(address)? {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.native.raw_delete(address) }
    }
}

impl Sealed for PluggableAllocator {}

impl CudaAllocator for PluggableAllocator {
    fn native(&self) -> &NativeAllocator {
        &self.inner.native
    }

    fn raw_deleter(&self) -> RawDeleter {
        RawDeleter::new(self.inner.clone())
    }

    fn name(&self) -> &'static str {
        "pluggable"
    }

    fn malloc(&self, size: usize, device: Device, stream: &Stream) -> Result<CUdeviceptr> {
        let found = self.inner.native.caches.of(device)?;
        expect_stream_of(device, stream)?;
        if size == 0 || !self.is_enabled() {
            return self.inner.native.malloc(size, device, stream);
        }
        let address = match found.caching.allocate_in_pool(size, stream)? {
            Some(address) => address,
            None => self.inner.allocate(size, device, stream)?,
        };
        // Notes the peaks of both together: between two allocations figures only fall.
        self.device_stats(device)?;
        Ok(address)
    }

    unsafe fn raw_delete(&self, address: CUdeviceptr) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.delete(address) }
    }

    /// Makes the bookkeeping ready for the devices, and calls the program's function, if one is set.
    fn init(&self, device_count: usize) -> Result<()> {
        self.inner.native.init(device_count)?;
        self.inner.initialized.store(true, Ordering::Relaxed);
        let init = lock(&self.inner.program.hooks).init.clone();
        if let Some(init) = init {
            init(device_count);
        }
        Ok(())
    }

    fn initialized(&self) -> bool {
        self.inner.initialized.load(Ordering::Relaxed)
    }

    fn memory_fraction(&self, device: Device) -> Result<f64> {
        self.inner.native.caches.of(device)?;
        Ok(self.inner.program.books.with(|state| state.of(device).fraction))
    }

    fn set_memory_fraction(&self, fraction: f64, device: Device) -> Result<()> {
        self.inner.native.caches.of(device)?;
        if !(0.0..=1.0).contains(&fraction) {
            return Err(pool::Error::InvalidFraction { fraction }.into());
        }
        self.inner.program.books.with(|state| state.of(device).fraction = fraction);
        let set = lock(&self.inner.program.hooks).memory_fraction.clone();
        // For pools of other memory, too.
        self.inner.native.set_memory_fraction(if set.is_some() { 1.0 } else { fraction }, device)?;
        if let Some(set) = set {
            set(fraction, device);
        }
        Ok(())
    }

    fn empty_cache(&self, id: MempoolId) -> Result<usize> {
        refuse_forked()?;
        if id == MempoolId::NONE { self.inner.empty() } else { self.inner.native.empty_cache(id) }
    }

    fn base_allocation(&self, address: CUdeviceptr) -> Result<(CUdeviceptr, usize)> {
        refuse_forked()?;
        let base_alloc = lock(&self.inner.program.hooks).base_alloc.clone();
        if let Some(base_alloc) = base_alloc {
            let mut bytes = 0;
            let base = base_alloc(address, &mut bytes);
            return Ok((base, bytes));
        }
        match self.inner.program.books.with(|state| state.blocks.get(&address).map(|block| block.size)) {
            Some(size) => Ok((address, size)),
            None => self.inner.native.base_allocation(address),
        }
    }

    fn record_stream(&self, address: CUdeviceptr, stream: &Stream) -> Result<()> {
        refuse_forked()?;
        if address == 0 {
            return Ok(());
        }
        self.inner.native.caches.driver.expect_same(stream.context().driver(), "the stream")?;
        let record = lock(&self.inner.program.hooks).record_stream.clone();
        let recorded = self.inner.program.books.with(|state| {
            let block = state.blocks.get(&address)?;
            // The program answers for its functions' memory. A pool's blocks serve again without them, so the pool hears of the stream.
            let is_known = record.is_some() || block.stream == *stream;
            Some(if is_known { Ok(()) } else { block.uses.record_stream(stream) })
        });
        match recorded {
            Some(recorded) => recorded?,
            None => self.inner.native.record_stream(address, stream)?,
        }
        record.iter().for_each(|record| record(address, stream));
        Ok(())
    }

    /// The figures of the own allocations and those of the pools.
    fn device_stats(&self, device: Device) -> Result<DeviceStatistics> {
        let pools = self.inner.native.device_stats(device)?;
        Ok(self.inner.program.books.with(|state| {
            let of = state.of(device);
            of.peaks = sum(&of.statistics, &pools, &of.peaks);
            of.peaks
        }))
    }

    fn reset_accumulated_stats(&self, device: Device) -> Result<()> {
        self.inner.native.reset_accumulated_stats(device)?;
        self.inner.program.books.with(|state| state.of(device).statistics.reset_accumulated());
        Ok(())
    }

    fn reset_peak_stats(&self, device: Device) -> Result<()> {
        self.inner.native.reset_peak_stats(device)?;
        self.inner.program.books.with(|state| {
            let of = state.of(device);
            of.statistics.reset_peak();
            of.peaks = DeviceStatistics::default();
        });
        Ok(())
    }

    /// Each allocation of the functions is a segment of one block.
    fn snapshot(&self, id: MempoolId) -> Result<Snapshot> {
        let mut snapshot = self.inner.native.snapshot(id)?;
        if id == MempoolId::NONE {
            self.inner.program.books.with(|state| {
                let live = state.blocks.iter();
                let live = live.map(|(&at, block)| segment(at, block, BlockState::ActiveAllocated));
                let freed = state.freed.iter();
                let freed = freed.map(|of| segment(of.address, &of.block, BlockState::ActivePendingFree));
                snapshot.segments.extend(live.chain(freed));
            });
        }
        Ok(snapshot)
    }

    fn begin_allocate_to_pool(&self, device: Device, id: MempoolId, filter: Filter) -> Result<()> {
        self.inner.native.caches.of(device)?;
        let begin = lock(&self.inner.program.hooks).begin_allocate_to_pool.clone();
        if let Some(begin) = begin {
            // A `MemPool` is kept here all the same: the use that is released later must not be its owner's.
            if self.pool_use_count(device, id)? > 0 {
                self.inner.native.create_or_incref_pool(device, id, None)?;
            }
            begin(device, id, filter);
            return Ok(());
        }
        // A pool is made with its source. The one use is that of the beginning; without one a new pool goes again.
        self.create_or_incref_pool(device, id, None)?;
        let begun = self.inner.native.begin_allocate_to_pool(device, id, filter);
        self.inner.native.release_pool(device, id)?;
        begun
    }

    fn end_allocate_to_pool(&self, device: Device, id: MempoolId) -> Result<()> {
        let native = || self.inner.native.end_allocate_to_pool(device, id);
        self.inner.end((device, id), native, "set_end_allocate_to_pool_fn", |of| &of.end_allocate_to_pool)
    }

    fn release_pool(&self, device: Device, id: MempoolId) -> Result<()> {
        let native = || self.inner.native.release_pool(device, id);
        self.inner.end((device, id), native, "set_release_pool", |of| &of.release_pool)
    }

    /// A pool gets its segments from the program's functions, unless it is told otherwise when it is made.
    fn create_or_incref_pool(
        &self,
        device: Device,
        id: MempoolId,
        source: Option<Arc<dyn RawResource>>,
    ) -> Result<()> {
        let own = source.is_none();
        let source = source.unwrap_or_else(|| self.inner.program.clone());
        match self.inner.native.create_or_incref_pool(device, id, Some(source)) {
            Err(Error::Pool(pool::Error::Pool(PoolError::SourceIsSet { .. }))) if own => {
                self.inner.native.create_or_incref_pool(device, id, None)
            }
            made => made,
        }
    }

    unsafe fn share_ipc_handle(&self, address: CUdeviceptr) -> Result<ShareableHandle> {
        refuse_forked()?;
        let native = &self.inner.native;
        match self.inner.program.books.with(|state| state.blocks.get(&address).map(|block| block.device)) {
            // SAFETY: the caller's promise.
            Some(device) => unsafe { Ok(legacy(&native.caches.of(device)?.context, address)?) },
            // SAFETY: as above.
            None => unsafe { native.share_ipc_handle(address) },
        }
    }

    fn attach_out_of_memory_observer(&self, observer: OutOfMemoryObserver) -> Result<()> {
        let observer: OutOfMemoryObserver = Arc::new(move |report| {
            if !OBSERVED.replace(true) {
                let told = catch_unwind(AssertUnwindSafe(|| observer(report)));
                OBSERVED.set(false);
                told.unwrap_or_else(|panic| resume_unwind(panic));
            }
        });
        self.inner.native.attach_out_of_memory_observer(Arc::clone(&observer))?;
        lock(&self.inner.observers).push(observer);
        Ok(())
    }
}

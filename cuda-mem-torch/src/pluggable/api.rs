//! The allocator as PyTorch sees it.
//!
//! # Safety
//!
//! Relies on the promise of [`create_custom_allocator`]'s caller. The functions that take memory back hand on their callers'.

#![allow(unsafe_code, reason = "takes memory back by address")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Device, Driver, Stream};
use cuda_mem_ipc::cuda_mem_pool::history::HistoryOptions;
use cuda_mem_ipc::cuda_mem_pool::segments::Filter;
use cuda_mem_ipc::cuda_mem_pool::snapshot::Snapshot;
use cuda_mem_ipc::cuda_mem_pool::statistics::DeviceStatistics;
use cuda_mem_ipc::cuda_mem_pool::{self as pool, MempoolId, RawResource};

use super::functions::Functions;
use super::{Inner, PluggableAllocator};
use crate::allocator::{
    CudaAllocator, Delete, NativeAllocator, RawDeleter, Sealed, TraceTracker, expect_stream_of, refuse_forked,
};
use crate::devices::PerDevice;
use crate::error::{Error, OutOfMemoryObserver, Result};
use crate::ipc::{ShareableHandle, legacy};
use crate::lock::{lock, read};

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
    let functions = Functions {
        alloc: Arc::new(alloc),
        free: Arc::new(free),
        init: None,
        reset: None,
        memory_fraction: None,
        base_alloc: None,
        record_stream: None,
        begin_allocate_to_pool: None,
        end_allocate_to_pool: None,
        release_pool: None,
    };
    let allocator = PluggableAllocator::of(driver, functions);
    allocator.init(0)?;
    Ok(Arc::new(allocator))
}

impl Inner {
    /// What there is of a device, which is made ready when it is first used: the program's functions need no `init`.
    pub(super) fn ready(&self, device: Device) -> Result<&PerDevice> {
        match self.native.caches.of(device) {
            Err(Error::NotInitialized { .. }) => {
                let ordinal = usize::try_from(device.as_raw()).unwrap_or(0);
                self.native.caches.init(ordinal.saturating_add(1))?;
                self.native.caches.of(device)
            }
            found => found,
        }
    }
}

impl Delete for Inner {
    unsafe fn delete(&self, address: CUdeviceptr) -> Result<()> {
        refuse_forked()?;
        if address == 0 || self.free(address)? {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.native.caches.delete_by_address(address) }
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
        let ready = self.inner.ready(device)?;
        expect_stream_of(device, stream)?;
        if size == 0 || !self.is_enabled() {
            return self.inner.native.caches.malloc(size, device, stream);
        }
        let address = match ready.caching.allocate_in_pool(size, stream)? {
            Some(address) => address,
            None => self.inner.allocate(size, device, stream)?,
        };
        // Notes the peaks of both together: between two allocations figures only fall.
        self.inner.device_stats(device)?;
        Ok(address)
    }

    fn raw_alloc(&self, size: usize) -> Result<CUdeviceptr> {
        self.inner.ready(self.inner.native.caches.current_device()?)?;
        let (device, stream) = self.inner.native.caches.current()?;
        self.malloc(size, device, &stream)
    }

    unsafe fn raw_delete(&self, address: CUdeviceptr) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.inner.delete(address) }
    }

    /// Makes the bookkeeping ready for the devices, and calls the program's function, if one is set.
    fn init(&self, device_count: usize) -> Result<()> {
        self.inner.native.caches.init(device_count)?;
        for device in self.inner.native.caches.all()? {
            // From here on it can be recorded.
            self.inner.histories.of(device.context.device());
        }
        self.inner.initialized.store(true, Ordering::Relaxed);
        let init = read(&self.inner.functions).init.clone();
        if let Some(init) = init {
            init(device_count);
        }
        Ok(())
    }

    fn initialized(&self) -> bool {
        self.inner.initialized.load(Ordering::Relaxed)
    }

    fn memory_fraction(&self, device: Device) -> Result<f64> {
        self.inner.ready(device)?;
        Ok(self.inner.books.with(|state| state.of(device).fraction))
    }

    fn set_memory_fraction(&self, fraction: f64, device: Device) -> Result<()> {
        self.inner.ready(device)?;
        if !(0.0..=1.0).contains(&fraction) {
            return Err(pool::Error::InvalidFraction { fraction }.into());
        }
        self.inner.books.with(|state| state.of(device).fraction = fraction);
        self.inner.share_fraction(device)?;
        let set = read(&self.inner.functions).memory_fraction.clone();
        if let Some(set) = set {
            set(fraction, device);
        }
        Ok(())
    }

    fn empty_cache(&self, id: MempoolId) -> Result<usize> {
        refuse_forked()?;
        if id == MempoolId::NONE { self.inner.empty() } else { self.inner.native.caches.empty_cache(id) }
    }

    fn cache_info(&self, device: Device, largest: &mut usize) -> Result<()> {
        self.inner.ready(device)?;
        self.inner.native.caches.cache_info(device, largest)
    }

    fn base_allocation(&self, address: CUdeviceptr) -> Result<(CUdeviceptr, usize)> {
        refuse_forked()?;
        let base_alloc = read(&self.inner.functions).base_alloc.clone();
        if let Some(base_alloc) = base_alloc {
            let mut bytes = 0;
            let base = base_alloc(address, &mut bytes);
            return Ok((base, bytes));
        }
        match self.inner.books.with(|state| state.blocks.get(&address).map(|block| block.size)) {
            Some(size) => Ok((address, size)),
            None => self.inner.native.caches.base_allocation(address),
        }
    }

    fn record_stream(&self, address: CUdeviceptr, stream: &Stream) -> Result<()> {
        refuse_forked()?;
        if address == 0 {
            return Ok(());
        }
        self.inner.native.caches.driver.expect_same(stream.context().driver(), "the stream")?;
        let record = read(&self.inner.functions).record_stream.clone();
        if let Some(record) = record {
            record(address, stream);
            return Ok(());
        }
        let recorded = self.inner.books.with(|state| {
            let block = state.blocks.get(&address)?;
            Some(if block.stream == *stream { Ok(()) } else { block.uses.record_stream(stream) })
        });
        match recorded {
            Some(recorded) => Ok(recorded?),
            None => self.inner.native.caches.record_stream(address, stream),
        }
    }

    fn expandable_segment_sizes(&self, device: Device) -> Result<Vec<pool::caching::StreamSegmentSize>> {
        Ok(self.inner.ready(device)?.caching.stream_segment_sizes()?)
    }

    fn device_stats(&self, device: Device) -> Result<DeviceStatistics> {
        self.inner.device_stats(device)
    }

    fn reset_accumulated_stats(&self, device: Device) -> Result<()> {
        self.inner.ready(device)?.caching.reset_accumulated_statistics();
        self.inner.books.with(|state| state.of(device).statistics.reset_accumulated());
        Ok(())
    }

    fn reset_peak_stats(&self, device: Device) -> Result<()> {
        self.inner.ready(device)?.caching.reset_peak_statistics();
        self.inner.books.with(|state| {
            let of = state.of(device);
            of.statistics.reset_peak();
            of.peaks = DeviceStatistics::default();
        });
        Ok(())
    }

    fn snapshot(&self, id: MempoolId) -> Result<Snapshot> {
        refuse_forked()?;
        self.inner.snapshot(id)
    }

    fn begin_allocate_to_pool(&self, device: Device, id: MempoolId, filter: Filter) -> Result<()> {
        refuse_forked()?;
        self.inner.begin_allocate_to_pool(device, id, filter)
    }

    fn end_allocate_to_pool(&self, device: Device, id: MempoolId) -> Result<()> {
        refuse_forked()?;
        self.inner.end_allocate_to_pool(device, id)
    }

    fn release_pool(&self, device: Device, id: MempoolId) -> Result<()> {
        refuse_forked()?;
        self.inner.release_pool(device, id)
    }

    fn create_or_incref_pool(
        &self,
        device: Device,
        id: MempoolId,
        source: Option<Arc<dyn RawResource>>,
    ) -> Result<()> {
        self.inner.create_or_incref_pool(device, id, source)
    }

    unsafe fn share_ipc_handle(&self, address: CUdeviceptr) -> Result<ShareableHandle> {
        refuse_forked()?;
        let caches = &self.inner.native.caches;
        let block =
            self.inner.books.with(|state| state.blocks.get(&address).map(|block| (block.device, block.size)));
        match block {
            // SAFETY: the caller's promise.
            Some((device, size)) => unsafe { Ok(legacy(&caches.of(device)?.context, address, size)?) },
            // SAFETY: as above.
            None => unsafe { caches.share_ipc_handle(address) },
        }
    }

    fn record_history(&self, enabled: bool, options: &HistoryOptions) -> Result<()> {
        self.inner.native.caches.record_history(enabled, options)?;
        // The program's provider of stacks is asked on both sides, each for its own entries.
        self.inner.histories.record(enabled.then_some(options));
        Ok(())
    }

    fn attach_out_of_memory_observer(&self, observer: OutOfMemoryObserver) -> Result<()> {
        self.inner.native.caches.attach_out_of_memory_observer(&observer)?;
        lock(&self.inner.observers).push(observer);
        Ok(())
    }

    fn attach_allocator_trace_tracker(&self, tracker: TraceTracker) -> Result<()> {
        self.inner.native.caches.attach_allocator_trace_tracker(&tracker)?;
        self.inner.histories.attach(&tracker);
        Ok(())
    }
}

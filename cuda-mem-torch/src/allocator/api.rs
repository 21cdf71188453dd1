//! What PyTorch asks of an allocator.
//!
//! # Safety
//!
//! Declares unsafe functions, and makes owners of what was just allocated.

#![allow(unsafe_code, reason = "takes memory back by address, and copies by address")]

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cuda_mem_ipc::cuda_mem_pool::caching::StreamSegmentSize;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Device, Stream, copy, forked};
use cuda_mem_ipc::cuda_mem_pool::history::HistoryOptions;
use cuda_mem_ipc::cuda_mem_pool::segments::Filter;
use cuda_mem_ipc::cuda_mem_pool::snapshot::{Snapshot, TraceEntry};
use cuda_mem_ipc::cuda_mem_pool::statistics::DeviceStatistics;
use cuda_mem_ipc::cuda_mem_pool::{MempoolId, RawResource};

use super::data_ptr::Delete as _;
use super::sealed::Sealed;
use super::{AllocatorState, CheckpointDelta, DataPtr, NativeAllocator, RawDeleter, refuse_forked};
use crate::error::{Error, OutOfMemoryObserver, Result};
use crate::ipc::{self, IpcDevPtr, ShareableHandle};

/// An allocator as PyTorch has it (`c10::cuda::CUDACachingAllocator::CUDAAllocator`): two stand behind it, [`NativeAllocator`] and
/// [`PluggableAllocator`](crate::PluggableAllocator).
///
/// What is provided is what the caching allocator does, which [`native`](Self::native) names: every allocator has one, if only for
/// private pools. The trait is sealed: pools and owners rely on each allocation having one owner, which other types could not promise.
///
/// ```compile_fail,E0277
/// use cuda_mem_torch::{CudaAllocator, NativeAllocator, RawDeleter};
///
/// #[derive(Debug)]
/// struct Mine(NativeAllocator);
///
/// impl CudaAllocator for Mine {
///     fn native(&self) -> &NativeAllocator {
///         &self.0
///     }
///     fn raw_deleter(&self) -> RawDeleter {
///         self.0.raw_deleter()
///     }
///     fn name(&self) -> &'static str {
///         "mine"
///     }
/// }
/// ```
///
/// The branch for ROCm of PyTorch's header, which has another type of stream, is left out: streams are CUDA's.
///
/// # Capture
///
/// Unless a function says otherwise it may be called while streams capture, and disturbs none.
///
/// # Errors
///
/// A function has these, and those that it names:
///
/// - [`Error::Core`](crate::Error::Core): `Forked` in a forked child, and else what the driver refuses;
/// - [`Error::NotInitialized`](crate::Error::NotInitialized) of a device, before [`init`](Self::init) was called for it;
/// - [`Error::UnknownPointer`](crate::Error::UnknownPointer) of an address, if nothing is allocated there from this allocator;
/// - [`PoolError`](cuda_mem_ipc::cuda_mem_pool::segments::PoolError) in [`Error::Pool`](crate::Error::Pool) of a pool;
/// - of a [`PluggableAllocator`](crate::PluggableAllocator) what its `alloc` and `free` fail with.
pub trait CudaAllocator: Sealed + fmt::Debug + Send + Sync {
    /// The caching allocator behind this one.
    fn native(&self) -> &NativeAllocator;

    /// What frees this allocator's memory: always this one's, whichever is the program's by then.
    fn raw_deleter(&self) -> RawDeleter;

    /// The kind of allocator: `native` or `pluggable`, as PyTorch calls them.
    fn name(&self) -> &'static str;

    /// Memory of `size` bytes on `device` for work of `stream`, by its address; 0 for no bytes. It lives no longer than the
    /// allocator: what keeps that is a handle to it, an owner of such memory, or its deleter.
    ///
    /// # Errors
    ///
    /// One of which [`Error::is_out_of_memory`](crate::Error::is_out_of_memory) is true, after all that the allocator can do; `TooLarge` in
    /// [`Error::Pool`](crate::Error::Pool), for more than any device has; in [`Error::Core`](crate::Error::Core) `ForeignContext` for a stream
    /// of another device and, while the allocator is off, `Capturing`; [`Error::GivenTwice`](crate::Error::GivenTwice).
    fn malloc(&self, size: usize, device: Device, stream: &Stream) -> Result<CUdeviceptr> {
        self.native().caches.malloc(size, device, stream)
    }

    /// Memory of the current device for work of its default stream, with what frees it. [`DataPtr`] has an example.
    ///
    /// PyTorch has a current stream for each device; here it is the legacy default stream, as there until the program changes it.
    ///
    /// # Errors
    ///
    /// As [`malloc`](Self::malloc); `NoCurrentContext` in [`Error::Pool`](crate::Error::Pool).
    fn allocate(&self, size: usize) -> Result<DataPtr> {
        let device = self.native().caches.current_device()?;
        let address = self.raw_alloc(size)?;
        // SAFETY: just allocated from the allocator that this deletes of, and known to nobody else. Nothing uses it but `unsafe` code that asks
        // for its address, whose author promises that its uses are over, or recorded, when this is dropped.
        Ok(unsafe { DataPtr::from_raw(address, device, self.raw_deleter()) })
    }

    /// As [`allocate`](Self::allocate), by address.
    ///
    /// # Errors
    ///
    /// As there.
    fn raw_alloc(&self, size: usize) -> Result<CUdeviceptr> {
        let (device, stream) = self.native().caches.current()?;
        self.malloc(size, device, &stream)
    }

    /// As [`malloc`](Self::malloc), on the stream's device.
    ///
    /// # Errors
    ///
    /// As there.
    fn raw_alloc_with_stream(&self, size: usize, stream: &Stream) -> Result<CUdeviceptr> {
        self.malloc(size, stream.context().device(), stream)
    }

    /// Frees an allocation, ordered on the stream that it was allocated for. Nothing for address 0.
    ///
    /// # Safety
    ///
    /// As [`free_by_address`](cuda_mem_ipc::cuda_mem_pool::caching::CachingAllocator::free_by_address): nobody uses it any more but
    /// work that is ordered before this point of its stream, or is on streams that [`record_stream`](Self::record_stream) was told.
    unsafe fn raw_delete(&self, address: CUdeviceptr) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.native().caches.delete(address) }
    }

    /// Makes the allocator ready for the devices 0 to `device_count` - 1. Called again, it adds devices and takes none away.
    ///
    /// # Errors
    ///
    /// [`Error::Core`](crate::Error::Core) of the driver, for more devices than it has.
    fn init(&self, device_count: usize) -> Result<()> {
        refuse_forked()?;
        let caches = &self.native().caches;
        (0..device_count).try_for_each(|number| caches.devices.make(caches.driver, number).map(drop))
    }

    /// Whether it was initialised, for any device.
    fn initialized(&self) -> bool {
        !forked() && self.native().caches.devices.get(0).is_some()
    }

    /// The share of the device's memory that may be held, from 0 to 1.
    fn memory_fraction(&self, device: Device) -> Result<f64> {
        Ok(self.native().caches.of(device)?.caching.memory_fraction())
    }

    /// Sets the share of the device's memory that may be held, from 0 to 1; 1 is no limit. What is held already stays.
    ///
    /// # Errors
    ///
    /// [`InvalidFraction`](cuda_mem_ipc::cuda_mem_pool::Error::InvalidFraction) in [`Error::Pool`](crate::Error::Pool).
    fn set_memory_fraction(&self, fraction: f64, device: Device) -> Result<()> {
        Ok(self.native().caches.of(device)?.caching.set_memory_fraction(fraction)?)
    }

    /// The bytes that are mapped in growing segments, for each stream and size class.
    fn expandable_segment_sizes(&self, device: Device) -> Result<Vec<StreamSegmentSize>> {
        Ok(self.native().caches.of(device)?.caching.stream_segment_sizes()?)
    }

    /// Gives back what is cached on all devices; of a private pool, which must have been released, that alone. PyTorch's default is
    /// `MempoolId::NONE`: the default pool and all released ones. How many bytes went.
    fn empty_cache(&self, id: MempoolId) -> Result<usize> {
        let mut bytes = 0usize;
        for device in self.native().caches.all()? {
            bytes = bytes.saturating_add(device.caching.empty_pool_cache(id)?);
        }
        Ok(bytes)
    }

    /// Turns the allocator off or on. While it is off, memory comes straight from the driver (`cuMemAlloc`) and goes straight back,
    /// whatever was allocated before is freed to where it came from, and streams that capture get none.
    fn enable(&self, enabled: bool) {
        self.native().caches.enabled.store(enabled, Ordering::Relaxed);
    }

    /// Whether it is on.
    fn is_enabled(&self) -> bool {
        self.native().caches.is_enabled()
    }

    /// Raises `largest` to the largest free block of the device, in bytes. If it is 0, it starts from what the driver has free.
    /// Libraries bound their work space with it.
    fn cache_info(&self, device: Device, largest: &mut usize) -> Result<()> {
        *largest = self.native().caches.of(device)?.largest(*largest)?;
        Ok(())
    }

    /// The address and the bytes of what an allocation lies in.
    fn base_allocation(&self, address: CUdeviceptr) -> Result<(CUdeviceptr, usize)> {
        let caches = &self.native().caches;
        let found = caches.find(|device| device.caching.base_allocation(address))?;
        let uncached = || caches.uncached.look(address, |allocation| (address, allocation.bytes()));
        found.or_else(uncached).ok_or(Error::UnknownPointer { address })
    }

    /// Enters a stream as a user of an allocation, which stays away from everybody after its free until the stream has passed the
    /// work that it was given by then; if another thread frees it, of a thread's default stream only work given before this call. Nothing for address 0.
    fn record_stream(&self, address: CUdeviceptr, stream: &Stream) -> Result<()> {
        let caches = &self.native().caches;
        if address == 0 || caches.find(|device| device.caching.record_stream(address, stream))?.is_some() {
            return Ok(());
        }
        let recorded = caches.uncached.look(address, |allocation| allocation.on(stream).map(drop));
        Ok(recorded.ok_or(Error::UnknownPointer { address })??)
    }

    /// The statistics, with PyTorch's keys. What [`enable`](Self::enable) had come straight from the driver is not in them.
    fn device_stats(&self, device: Device) -> Result<DeviceStatistics> {
        Ok(self.native().caches.of(device)?.caching.statistics())
    }

    /// Has the sums and counts start anew from nothing.
    fn reset_accumulated_stats(&self, device: Device) -> Result<()> {
        self.native().caches.of(device)?.caching.reset_accumulated_statistics();
        Ok(())
    }

    /// Has the peaks start anew from what there is now.
    fn reset_peak_stats(&self, device: Device) -> Result<()> {
        self.native().caches.of(device)?.caching.reset_peak_statistics();
        Ok(())
    }

    /// All memory and all blocks of all devices, and their history; of a private pool, its segments alone. `MempoolId::NONE` is everything.
    fn snapshot(&self, id: MempoolId) -> Result<Snapshot> {
        refuse_forked()?;
        let mut all = self.native().caches.devices.snapshot();
        all.segments.retain(|segment| id == MempoolId::NONE || segment.segment_pool_id == id);
        Ok(all)
    }

    /// From here on, allocations on the device that the filter accepts go to the pool, which is made if there is none and has one use more.
    fn begin_allocate_to_pool(&self, device: Device, id: MempoolId, filter: Filter) -> Result<()> {
        Ok(self.native().caches.of(device)?.caching.begin_allocate_to_pool(id, filter)?)
    }

    /// Ends what [`begin_allocate_to_pool`](Self::begin_allocate_to_pool) began. Its use of the pool stays. Of a pool that is a program's own,
    /// this and [`release_pool`](Self::release_pool) may fail with [`Error::NoPoolFunction`](crate::Error::NoPoolFunction).
    fn end_allocate_to_pool(&self, device: Device, id: MempoolId) -> Result<()> {
        Ok(self.native().caches.of(device)?.caching.end_allocate_to_pool(id)?)
    }

    /// Takes one use of the pool away. After the last, its free memory goes back when the cache is emptied, or is needed.
    fn release_pool(&self, device: Device, id: MempoolId) -> Result<()> {
        Ok(self.native().caches.of(device)?.caching.release_pool(id)?)
    }

    /// Makes the pool, with its segments from `source` if one is named, or adds a use to it.
    fn create_or_incref_pool(
        &self,
        device: Device,
        id: MempoolId,
        source: Option<Arc<dyn RawResource>>,
    ) -> Result<()> {
        Ok(self.native().caches.of(device)?.caching.create_or_incref_pool(id, source)?)
    }

    /// How often the pool is in use: what there is not, 0 times.
    fn pool_use_count(&self, device: Device, id: MempoolId) -> Result<u64> {
        Ok(self.native().caches.of(device)?.caching.pool_use_count(id))
    }

    /// Whether the pool's free memory may serve requests of no pool that would else be out of memory. None of a
    /// [`PluggableAllocator`](crate::PluggableAllocator): those are its functions' alone.
    fn set_use_on_oom(&self, device: Device, id: MempoolId, use_on_oom: bool) -> Result<()> {
        Ok(self.native().caches.of(device)?.caching.set_use_on_oom(id, use_on_oom)?)
    }

    /// Has each request to the pool get the whole of the free block that is found for it.
    fn set_no_split(&self, device: Device, id: MempoolId) -> Result<()> {
        Ok(self.native().caches.of(device)?.caching.set_no_split(id)?)
    }

    /// Whether exactly the blocks at these addresses are allocated, of all blocks of the pool.
    fn check_pool_live_allocations(
        &self,
        device: Device,
        id: MempoolId,
        addresses: &HashSet<CUdeviceptr>,
    ) -> Result<bool> {
        Ok(self.native().caches.of(device)?.caching.check_pool_live_allocations(id, addresses)?)
    }

    /// Bytes by which another process opens the memory of an allocation ([`ipc_dev_ptr`](Self::ipc_dev_ptr)), and where in it the
    /// allocation begins. Asked again for the same allocation, they are the same.
    ///
    /// # Safety
    ///
    /// Who opens it reads and writes all of the memory that the allocation lies in. It must not be freed before they are done.
    unsafe fn share_ipc_handle(&self, address: CUdeviceptr) -> Result<ShareableHandle> {
        // SAFETY: the caller's promise.
        unsafe { self.native().caches.share_ipc_handle(address) }
    }

    /// Opens what another process shared, for the current device. The same bytes are opened once: all users have a share in it,
    /// and the last that is dropped closes it.
    ///
    /// # Errors
    ///
    /// [`Error::Handle`](crate::Error::Handle) says what is wrong with the bytes; `NoCurrentContext` as [`allocate`](Self::allocate).
    fn ipc_dev_ptr(&self, handle: &[u8]) -> Result<IpcDevPtr> {
        let caches = &self.native().caches;
        ipc::open(&caches.opened, &caches.of(caches.current_device()?)?.context, handle)
    }

    /// Records what happens on all devices, those to come too, or no more. The options are PyTorch's arguments: `frames` is
    /// its context recorder, `context` its `when`, `clear_history` its `clearHistory`.
    fn record_history(&self, enabled: bool, options: &HistoryOptions) -> Result<()> {
        refuse_forked()?;
        self.native().caches.devices.record_history(enabled.then_some(options));
        Ok(())
    }

    /// Has `observer` be told of each request that fails for lack of memory, before its caller is, on all devices, those to
    /// come too, for as long as the allocator lives. No lock is held: it may use the allocator.
    fn attach_out_of_memory_observer(&self, observer: OutOfMemoryObserver) -> Result<()> {
        refuse_forked()?;
        self.native().caches.devices.attach(move |device| {
            let observer = Arc::clone(&observer);
            device.caching.attach_oom_observer(move |report| observer(&report.into()))
        });
        Ok(())
    }

    /// Has `tracker` be told of everything that happens on all devices, those to come too, recorded or not, for as long as the allocator lives.
    fn attach_allocator_trace_tracker(&self, tracker: Arc<dyn Fn(&TraceEntry) + Send + Sync>) -> Result<()> {
        refuse_forked()?;
        self.native().caches.devices.attach(move |device| {
            let tracker = Arc::clone(&tracker);
            device.caching.history().attach(move |entry| tracker(entry))
        });
        Ok(())
    }

    /// The layout of a private pool as it is.
    ///
    /// # Errors
    ///
    /// Streams still use freed blocks of it.
    fn checkpoint_state(&self, device: Device, id: MempoolId) -> Result<AllocatorState> {
        let checkpoint = self.native().caches.of(device)?.caching.checkpoint_pool(id)?;
        Ok(AllocatorState { device, id, checkpoint })
    }

    /// Makes a private pool's layout what it was at a checkpoint: all its blocks are freed, and those of the checkpoint are
    /// allocated again, where they were.
    ///
    /// # Errors
    ///
    /// As [`checkpoint_state`](Self::checkpoint_state); [`Error::OtherDevice`](crate::Error::OtherDevice). Nothing was changed then.
    ///
    /// # Safety
    ///
    /// As [`restore_pool`](cuda_mem_ipc::cuda_mem_pool::caching::CachingAllocator::restore_pool).
    unsafe fn set_checkpoint_pool_state(
        &self,
        device: Device,
        state: &AllocatorState,
    ) -> Result<CheckpointDelta> {
        if state.device != device {
            return Err(Error::OtherDevice { of: state.device, asked: device });
        }
        let found = self.native().caches.of(device)?;
        // SAFETY: the caller's promise.
        let restored = unsafe { found.caching.restore_pool(state.id, &state.checkpoint) }?;
        let owner = |address| {
            // SAFETY: allocated just now by the restore, which hands each of them to its caller; used by `unsafe` code alone, as above.
            unsafe { DataPtr::from_raw(address, device, self.raw_deleter()) }
        };
        let dataptrs_allocd = restored.allocated.into_iter().map(owner).collect();
        Ok(CheckpointDelta { ptrs_freed: restored.freed, dataptrs_allocd })
    }

    /// Lets `device` reach the memory of `device_to_access`: all that this allocator has and gets there, and what anybody has there
    /// of `cuMemAlloc`.
    ///
    /// # Errors
    ///
    /// [`NoPeerAccess`](cuda_mem_ipc::cuda_mem_pool::Error::NoPeerAccess) in [`Error::Pool`](crate::Error::Pool) if it cannot.
    fn enable_peer_access(&self, device: Device, device_to_access: Device) -> Result<()> {
        let caches = &self.native().caches;
        let (reaching, owner) = (caches.of(device)?, caches.of(device_to_access)?);
        if device == device_to_access {
            return Ok(());
        }
        owner.caching.enable_peer_access(device)?;
        Ok(reaching.context.enable_peer_access(&owner.context)?)
    }

    /// Puts a copy between devices into `stream`: a plain one on one device, or with `p2p_enabled`; else a peer copy, which reaches
    /// mapped memory without peer access.
    ///
    /// # Capture
    ///
    /// Becomes part of the graph if the stream captures.
    ///
    /// # Safety
    ///
    /// As [`memcpy_async`](cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::copy::memcpy_async).
    #[allow(clippy::too_many_arguments, reason = "PyTorch's")]
    unsafe fn memcpy_async(
        &self,
        target: CUdeviceptr,
        target_device: Device,
        source: CUdeviceptr,
        source_device: Device,
        bytes: usize,
        stream: &Stream,
        p2p_enabled: bool,
    ) -> Result<()> {
        if p2p_enabled || target_device == source_device {
            // SAFETY: the caller's promise.
            return Ok(unsafe { copy::memcpy_async(stream, target, source, bytes) }?);
        }
        let caches = &self.native().caches;
        let (to, from) = (caches.of(target_device)?, caches.of(source_device)?);
        let (target, source) = ((target, &to.context), (source, &from.context));
        // SAFETY: the caller's promise.
        Ok(unsafe { copy::memcpy_peer_async(stream, target, source, bytes) }?)
    }

    /// Copies between two addresses of the current device, and waits for it.
    ///
    /// # Capture
    ///
    /// An error while the default stream cannot be waited for, because a blocking stream captures.
    ///
    /// # Errors
    ///
    /// As [`allocate`](Self::allocate).
    ///
    /// # Safety
    ///
    /// As [`memcpy_async`](cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::copy::memcpy_async), until this returns.
    unsafe fn copy_data(&self, target: CUdeviceptr, source: CUdeviceptr, bytes: usize) -> Result<()> {
        let (_, stream) = self.native().caches.current()?;
        // SAFETY: the caller's promise.
        unsafe { copy::memcpy_async(&stream, target, source, bytes) }?;
        Ok(stream.synchronize()?)
    }
}

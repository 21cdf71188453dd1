//! Private pools: their checkpoints, and segments of them from other allocators.
//!
//! # Safety
//!
//! Relies on a pool giving each segment back once, when nothing uses it, and on callers that let blocks serve their capture again, by the contract
//! of [`set_graph_capture_record_stream_reuse`](super::NativeAllocator::set_graph_capture_record_stream_reuse).

#![allow(unsafe_code, reason = "is a resource, and lets blocks serve their capture again")]

use std::alloc::Layout;
use std::sync::Arc;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Device, MemorySource, Stream};
use cuda_mem_ipc::cuda_mem_pool::segments::Checkpoint;
use cuda_mem_ipc::cuda_mem_pool::{self as pool, MempoolId, RawResource};

use super::{CudaAllocator, DataPtr, NativeAllocator, refuse_forked};
use crate::error::{Error, Result};

/// The layout of a private pool at one moment, of [`CudaAllocator::checkpoint_state`](super::CudaAllocator::checkpoint_state).
///
/// ```
/// use std::sync::Arc;
///
/// use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Driver;
/// use cuda_mem_torch::{CudaAllocator, MemPool, NativeAllocator};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let device = driver.device(0)?;
/// let allocator: Arc<dyn CudaAllocator> = Arc::new(NativeAllocator::new(driver));
/// allocator.init(1)?;
/// let pool = device.primary_context()?.with_current(|| MemPool::of(&allocator, None, true, false, false))??;
/// let state = allocator.checkpoint_state(device, pool.id())?;
/// // SAFETY: nothing was allocated in the pool.
/// let delta = unsafe { allocator.set_checkpoint_pool_state(device, &state) }?;
/// assert!(delta.ptrs_freed.is_empty() && delta.dataptrs_allocd.is_empty());
/// # Ok::<(), cuda_mem_torch::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct AllocatorState {
    pub(crate) device: Device,
    pub(crate) id: MempoolId,
    pub(crate) checkpoint: Checkpoint,
}

/// What [`CudaAllocator::set_checkpoint_pool_state`](super::CudaAllocator::set_checkpoint_pool_state) did. [`AllocatorState`] has an example.
#[derive(Debug)]
#[non_exhaustive]
pub struct CheckpointDelta {
    /// Where blocks were freed. Their owners must not free them again.
    pub ptrs_freed: Vec<CUdeviceptr>,
    /// The allocations of the checkpoint, remade. Dropped, they are freed.
    pub dataptrs_allocd: Vec<DataPtr>,
}

impl NativeAllocator {
    /// Whether blocks of private pools that other streams used during a capture may serve that capture again before it has ended:
    /// PyTorch's `graph_capture_record_stream_reuse`. They may not at first.
    ///
    /// [The caching allocator's](cuda_mem_ipc::cuda_mem_pool::caching::CachingAllocator::set_graph_capture_record_stream_reuse) says which
    /// blocks may, and when. It holds for all devices, those that are yet to be initialised too, and for the private pools of a
    /// [`PluggableAllocator`](crate::PluggableAllocator) whose [`native`](CudaAllocator::native) one this is.
    ///
    /// # Errors
    ///
    /// `Forked` in [`Error::Core`].
    ///
    /// # Safety
    ///
    /// As there.
    pub unsafe fn set_graph_capture_record_stream_reuse(&self, reuse: bool) -> Result<()> {
        refuse_forked()?;
        // SAFETY: the caller's promise.
        Ok(unsafe { self.caches.devices.set_reuse(reuse) }?)
    }
}

/// An allocator as the source of a pool's segments.
#[derive(Debug)]
pub(crate) struct AllocatorSource(pub(crate) Arc<dyn CudaAllocator>);

// SAFETY: the memory is the allocator's, handed through; `CudaAllocator` is sealed, and both that there are give memory away once.
unsafe impl MemorySource for AllocatorSource {
    unsafe fn deallocate(&self, address: CUdeviceptr, _layout: Layout, _stream: &Stream) -> core::Result<()> {
        // SAFETY: the caller's promise: it is ordered on this stream, on which it was allocated.
        unsafe { self.0.raw_delete(address) }.map_err(|error| for_core(error, address))
    }
}

// SAFETY: as above.
unsafe impl RawResource for AllocatorSource {
    fn allocate(&self, layout: Layout, stream: &Stream) -> pool::Result<CUdeviceptr> {
        self.0.raw_alloc_with_stream(layout.size(), stream).map_err(|error| for_pool(error, layout.size()))
    }
}

/// An error for those who ask a source of segments.
pub(crate) fn for_pool(error: Error, requested: usize) -> pool::Error {
    if error.is_out_of_memory() {
        return pool::Error::OutOfMemory { requested, used: 0, limit: 0, source: None };
    }
    match error {
        Error::Pool(error) => error,
        Error::Core(error) => error.into(),
        error => core::Error::Io { call: "alloc", source: Arc::new(std::io::Error::other(error)) }.into(),
    }
}

/// An error for those who give a source its memory back.
pub(crate) fn for_core(error: Error, address: CUdeviceptr) -> core::Error {
    match error {
        Error::Core(error) | Error::Pool(pool::Error::Core(error)) => error,
        Error::UnknownPointer { .. } => core::Error::NotAllocated { address },
        error => core::Error::Io { call: "free", source: Arc::new(std::io::Error::other(error)) },
    }
}

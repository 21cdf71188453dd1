//! What allocators hand over.

use cuda_mem_ipc::cuda_mem_pool::MempoolId;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Device;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::segments::Checkpoint;

use super::DataPtr;

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

impl AllocatorState {
    /// The pool.
    #[must_use]
    pub fn id(&self) -> MempoolId {
        self.id
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }
}

/// What [`CudaAllocator::set_checkpoint_pool_state`](super::CudaAllocator::set_checkpoint_pool_state) did.
/// [`AllocatorState`] has an example.
#[derive(Debug)]
#[non_exhaustive]
pub struct CheckpointDelta {
    /// Where blocks were freed. Whoever had them must not free them.
    pub ptrs_freed: Vec<CUdeviceptr>,
    /// The allocations of the checkpoint, remade. Dropped, they are freed.
    pub dataptrs_allocd: Vec<DataPtr>,
}

//! What allocators hand over.

use std::fmt;
use std::sync::Arc;

use cuda_mem_ipc::cuda_mem_pool::MempoolId;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Device;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::segments::Checkpoint;

use super::DataPtr;

/// A request that failed for lack of memory, as PyTorch tells its observers. Its text begins as that of PyTorch's error.
///
/// ```
/// use std::sync::Arc;
///
/// use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Driver;
/// use cuda_mem_torch::{CudaAllocator, NativeAllocator};
///
/// let allocator = NativeAllocator::new(Driver::over(cuda_mem_sim::table())?); // with a GPU: Driver::system()?
/// allocator.init(1)?;
/// allocator.attach_out_of_memory_observer(Arc::new(|event| println!("{} bytes: {event}", event.requested)))?;
/// # Ok::<(), cuda_mem_torch::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutOfMemory {
    /// The device.
    pub device: Device,
    /// What was asked for, in bytes.
    pub requested: usize,
    /// The most that the allocator may hold: its share of the device's memory, in bytes.
    pub allowed: usize,
    /// What the device has, in bytes.
    pub total: usize,
    /// What the device had free, if it said so, in bytes.
    pub free: Option<usize>,
    /// What is allocated of the allocator, in bytes.
    pub allocated: usize,
}

/// Who is told of requests that fail for lack of memory.
pub type OutOfMemoryObserver = Arc<dyn Fn(&OutOfMemory) + Send + Sync>;

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, requested, allowed, total, free, allocated } = self;
        write!(
            f,
            "CUDA out of memory. Tried to allocate {}. GPU {} has a total capacity of {}",
            Bytes(*requested),
            device.as_raw(),
            Bytes(*total)
        )?;
        if let Some(free) = free {
            write!(f, " of which {} is free", Bytes(*free))?;
        }
        f.write_str(". ")?;
        if allowed < total {
            write!(f, "{} allowed; ", Bytes(*allowed))?;
        }
        write!(f, "{} is allocated here", Bytes(*allocated))
    }
}

/// Bytes as PyTorch writes them.
struct Bytes(usize);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            0..=0x400 => write!(f, "{} bytes", self.0),
            0x401..=0x10_0000 => write!(f, "{:.2} KiB", bytes / 1024.0),
            0x10_0001..=0x4000_0000 => write!(f, "{:.2} MiB", bytes / 1024.0 / 1024.0),
            _ => write!(f, "{:.2} GiB", bytes / 1024.0 / 1024.0 / 1024.0),
        }
    }
}

/// The layout of a private pool at one moment, of [`CudaAllocator::checkpoint_state`](super::CudaAllocator::checkpoint_state).
///
/// ```
/// use std::sync::Arc;
///
/// use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Driver;
/// use cuda_mem_torch::{CudaAllocator, MemPool, NativeAllocator};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
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

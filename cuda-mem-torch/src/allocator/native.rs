//! The caching allocator as PyTorch's native one.

use std::sync::Arc;

use cuda_mem_ipc::cuda_mem_pool::caching::CachingOptions;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Driver;

use super::{Caches, CudaAllocator, RawDeleter, Sealed};

/// A caching allocator for each device of a driver, behind PyTorch's interface: what PyTorch calls `native`.
///
/// Clones are handles to the same one.
///
/// ```
/// use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Driver;
/// use cuda_mem_torch::{CudaAllocator, NativeAllocator};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let allocator = NativeAllocator::new(driver);
/// assert!(!allocator.initialized());
/// allocator.init(driver.device_count()?)?;
/// assert!(allocator.initialized());
/// # Ok::<(), cuda_mem_torch::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct NativeAllocator {
    pub(crate) caches: Arc<Caches>,
}

impl NativeAllocator {
    /// An allocator of the driver's devices, from [`CudaAllocator::init`] on.
    #[must_use]
    pub fn new(driver: Driver) -> Self {
        Self::with_options(driver, CachingOptions::default())
    }

    /// As [`NativeAllocator::new`], of devices that need no [`CudaAllocator::init`].
    pub(crate) fn lazy(driver: Driver) -> Self {
        Self { caches: Arc::new(Caches::new(driver, CachingOptions::default(), true)) }
    }

    /// As [`NativeAllocator::new`], with options for each device.
    #[must_use]
    pub fn with_options(driver: Driver, options: CachingOptions) -> Self {
        Self { caches: Arc::new(Caches::new(driver, options, false)) }
    }
}

impl Sealed for NativeAllocator {}

impl CudaAllocator for NativeAllocator {
    fn native(&self) -> &NativeAllocator {
        self
    }

    fn raw_deleter(&self) -> RawDeleter {
        RawDeleter::new(self.caches.clone())
    }

    fn name(&self) -> &'static str {
        "native"
    }
}

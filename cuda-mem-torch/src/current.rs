//! The program's allocator.

use std::sync::{Arc, Mutex};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Driver;

use crate::allocator::{CudaAllocator, NativeAllocator, refuse_forked};
use crate::error::{Error, Result};
use crate::lock::lock;

static CURRENT: Mutex<Option<Arc<dyn CudaAllocator>>> = Mutex::new(None);

/// The program's allocator: the one that [`change_current_allocator`] made it, or else a [`NativeAllocator`] of the system's driver,
/// which is made by the first call and which the program initialises (`init`).
///
/// # Errors
///
/// [`Error::Core`] where there is no driver.
pub fn current_allocator() -> Result<Arc<dyn CudaAllocator>> {
    refuse_forked()?;
    if let Some(current) = &*lock(&CURRENT) {
        return Ok(Arc::clone(current));
    }
    // Not under the lock: it is opened for the first time, perhaps.
    let native: Arc<dyn CudaAllocator> = Arc::new(NativeAllocator::new(Driver::system()?));
    Ok(Arc::clone(lock(&CURRENT).get_or_insert(native)))
}

/// Makes an allocator the program's, once: one that is initialised stays, and an allocator of
/// [`create_custom_allocator`](crate::create_custom_allocator) is so from the start. What other allocators gave keeps its own deleters.
///
/// ```
/// use std::sync::Arc;
///
/// use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::Driver;
/// use cuda_mem_torch::{CudaAllocator, Error, NativeAllocator, change_current_allocator, current_allocator};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let first = Arc::new(NativeAllocator::new(driver));
/// change_current_allocator(first.clone())?;
/// first.init(1)?;
/// let second = Arc::new(NativeAllocator::new(driver));
/// assert!(matches!(change_current_allocator(second), Err(Error::AlreadyInitialized { .. })));
/// assert_eq!(current_allocator()?.raw_deleter(), first.raw_deleter());
/// # Ok::<(), Error>(())
/// ```
///
/// # Errors
///
/// [`Error::AlreadyInitialized`]; `Forked` in [`Error::Core`].
pub fn change_current_allocator(allocator: Arc<dyn CudaAllocator>) -> Result<()> {
    refuse_forked()?;
    let mut current = lock(&CURRENT);
    if let Some(current) = current.as_ref().filter(|current| current.initialized()) {
        return Err(Error::AlreadyInitialized { name: current.name() });
    }
    let before = current.replace(allocator);
    drop(current);
    // Without the lock: the last handle to an allocator may run the program's code.
    drop(before);
    Ok(())
}

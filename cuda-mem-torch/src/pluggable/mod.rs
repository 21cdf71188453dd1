//! An allocator of two functions, with our bookkeeping around them.

mod api;
mod books;
mod functions;
mod memory;
mod pools;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{Device, Driver, Stream, forked};

pub use api::create_custom_allocator;

use self::books::Books;
use self::functions::Hooks;
use crate::allocator::NativeAllocator;
use crate::error::{OutOfMemoryObserver, Result};
use crate::lock::lock;

/// An allocator that a program makes of two functions of its own: PyTorch's `CUDAPluggableAllocator`, which [`create_custom_allocator`] makes.
///
/// The functions get exact sizes: each allocation is one call, and each free another, with the size, the device and the stream of
/// the allocation. All else is kept here: statistics, snapshots and history, streams that use an allocation, the ladder before a
/// request is out of memory, the memory fraction, handles for other processes, and private pools, whose segments, of PyTorch's
/// sizes, come from the same two functions. A setter hands one of these to the program.
///
/// A request of no bytes has address 0 and calls no function.
///
/// A clone has the same functions and none of the bookkeeping: what one allocated is unknown to the other, and it is not
/// initialised. PyTorch deletes moves and assignments because its pointers would dangle; here [`DataPtr`](crate::DataPtr)s keep what
/// they need, so an allocator may be moved, and dropped before its memory: that stays until it is freed.
///
/// ```
/// use std::sync::Mutex;
/// use std::sync::Arc;
///
/// use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{DeviceBuffer, Driver, Stream};
/// use cuda_mem_torch::{CudaAllocator, create_custom_allocator};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let device = driver.device(0)?;
/// let stream = Stream::new(&device.primary_context()?)?;
/// let buffers = Arc::new(Mutex::new(Vec::new()));
/// let freed = buffers.clone();
/// // SAFETY: the memory is a buffer of its own, which is kept until the free.
/// let allocator = unsafe {
///     create_custom_allocator(
///         driver,
///         move |size, _device, stream| {
///             let buffer = DeviceBuffer::<u8>::uninit(stream, size)?;
///             let address = buffer.as_raw();
///             buffers.lock().unwrap().push(buffer);
///             Ok(address)
///         },
///         move |address, _size, _device, _stream| {
///             freed.lock().unwrap().retain(|buffer| buffer.as_raw() != address);
///             Ok(())
///         },
///     )
/// }?;
/// let block = allocator.malloc(1000, device, &stream)?;
/// assert_eq!(allocator.device_stats(device)?.allocated_bytes.all.current, 1000);
/// // SAFETY: nothing uses it.
/// unsafe { allocator.raw_delete(block) }?;
/// # Ok::<(), cuda_mem_torch::Error>(())
/// ```
pub struct PluggableAllocator {
    inner: Arc<Inner>,
}

/// What deleters keep too.
struct Inner {
    program: Arc<Program>,
    /// Keeps the private pools, and what comes straight from the driver.
    native: NativeAllocator,
    observers: Mutex<Vec<OutOfMemoryObserver>>,
    initialized: AtomicBool,
}

/// The program's functions and what is known of their memory. The sources of pools' segments have it too.
struct Program {
    alloc: Arc<AllocFn>,
    free: Arc<FreeFn>,
    hooks: Mutex<Hooks>,
    books: Books,
}

type AllocFn = dyn Fn(usize, Device, &Stream) -> Result<CUdeviceptr> + Send + Sync;
type FreeFn = dyn Fn(CUdeviceptr, usize, Device, &Stream) -> Result<()> + Send + Sync;

impl PluggableAllocator {
    fn of(driver: Driver, alloc: Arc<AllocFn>, free: Arc<FreeFn>, hooks: Hooks) -> Self {
        let inner = Arc::new(Inner {
            program: Arc::new(Program { alloc, free, hooks: Mutex::new(hooks), books: Books::default() }),
            native: NativeAllocator::lazy(driver),
            observers: Mutex::default(),
            initialized: AtomicBool::new(false),
        });
        let weak = Arc::downgrade(&inner);
        inner.native.caches.devices.attach(move |device| {
            let weak = weak.clone();
            // The program's functions are called as a pool calls them: beside captures.
            let reclaim = move |_| {
                weak.upgrade().is_some_and(|inner| driver.in_relaxed_capture_mode(|| inner.reclaim()).is_ok())
            };
            device.caching.attach_oom_reclaimer(reclaim)
        });
        Self { inner }
    }
}

impl Drop for Inner {
    /// What was freed and waits for streams goes back yet. What nobody has freed cannot: nobody has its deleter any more.
    fn drop(&mut self) {
        if forked() {
            return;
        }
        self.give_back_rest();
    }
}

impl Clone for PluggableAllocator {
    /// Another allocator with the same functions, which knows nothing of what this one allocated and is not initialised.
    fn clone(&self) -> Self {
        let Program { alloc, free, hooks, .. } = &*self.inner.program;
        // In a forked child a thread of the parent may have the lock, and nothing is allocated.
        let hooks = if forked() { Hooks::default() } else { lock(hooks).clone() };
        Self::of(self.inner.native.caches.driver, alloc.clone(), free.clone(), hooks)
    }
}

crate::impl_debug!(PluggableAllocator, |it|
    initialized: it.inner.initialized.load(Ordering::Relaxed),
    // In a forked child a thread of the parent may have a lock.
    allocations: if forked() { 0 } else { it.inner.program.books.with(|state| state.blocks.len()) }
);

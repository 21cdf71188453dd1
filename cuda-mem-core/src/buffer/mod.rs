//! Memory of a device.
//!
//! # Safety
//!
//! Declares an unsafe trait; nothing is called here.

#![allow(unsafe_code, reason = "declares an unsafe trait")]

mod borrowed;
mod device;
mod managed;
mod range;

pub use borrowed::UsedElsewhere;
pub use device::{DeviceBuffer, free};
pub use managed::ManagedBuffer;
pub use range::DeviceRange;

pub(crate) use borrowed::{Borrowed, Enqueued, used_memory};
pub(crate) use range::expect_equal;

use std::alloc::Layout;
use std::fmt;

use cuda_mem_sys::CUdeviceptr;

use crate::error::Result;
use crate::stream::Stream;

/// Who takes the memory of a [`DeviceBuffer`](crate::DeviceBuffer) back.
///
/// ```
/// use std::{alloc::Layout, sync::Arc};
///
/// use cuda_mem_core::raw_pool::{self, MemoryPool};
/// use cuda_mem_core::{DeviceBuffer, Driver, MemorySource, Result, Stream};
///
/// #[derive(Debug)]
/// struct Pool(MemoryPool);
///
/// // SAFETY: the driver gives memory of a pool to one receiver until it is freed, aligned to 256 bytes.
/// unsafe impl MemorySource for Pool {
///     unsafe fn deallocate(&self, address: u64, _layout: Layout, stream: &Stream) -> Result<()> {
///         // SAFETY: the caller's promise.
///         unsafe { raw_pool::free(address, stream) }
///     }
/// }
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let stream = Stream::new(&driver.device(0)?.primary_context()?)?;
/// let pool = Arc::new(Pool(MemoryPool::current_of_device(driver.device(0)?)?));
/// let (address, layout) = (pool.0.allocate(4096, &stream)?, Layout::from_size_align(4096, 256)?);
/// // SAFETY: memory of the pool, allocated on this stream and known to nobody else.
/// let buffer = unsafe { DeviceBuffer::<u32>::from_source(&stream, address, layout, pool) }?;
/// assert_eq!(buffer.len(), 1024);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Safety
///
/// Memory that came from it belongs to its receiver until [`deallocate`](MemorySource::deallocate) has succeeded. It is
/// aligned to 256 bytes or to what was asked for, if that is more.
pub unsafe trait MemorySource: Send + Sync + fmt::Debug {
    /// Takes memory back, ordered on `stream`.
    ///
    /// # Errors
    ///
    /// [`Error::Capturing`](crate::Error::Capturing) or [`Error::Timeout`](crate::Error::Timeout) if it cannot be taken back now, and will
    /// be offered again;
    /// [`Error::NotAllocated`](crate::Error::NotAllocated) and [`Error::WrongSize`](crate::Error::WrongSize) from sources that
    /// know what they gave; [`Error::Driver`](crate::Error::Driver) and others. The memory is still allocated after any error.
    ///
    /// # Safety
    ///
    /// `address` came from this source with this layout and is given back once; all work that uses it is ordered before
    /// this point of `stream`.
    unsafe fn deallocate(&self, address: CUdeviceptr, layout: Layout, stream: &Stream) -> Result<()>;
}

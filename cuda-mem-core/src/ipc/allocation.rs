//! Device memory that has a legacy handle.
//!
//! # Safety
//!
//! Relies on `cuMemAlloc` giving memory that belongs to its receiver until `cuMemFree`, and on every use of it being in its
//! [`Uses`]: work that is put into a stream without [`DeviceAllocation::on`] is its author's `unsafe` responsibility.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::ops::Range;

use cuda_mem_sys::CUdeviceptr;

use super::MemoryHandle;
use crate::buffer::{Borrowed, used_memory};
use crate::driver::deferred::{Held, Owned, Release};
use crate::driver::{Context, Driver, refuse_forked};
use crate::error::{Error, Refused, Result, WithBytes, call};
use crate::uses::Uses;

/// What such memory is allocated in: the driver shares whole pages, and what else lies in them would be shared too.
const PAGE: usize = 2 << 20;

/// Device memory of `cuMemAlloc`, which is what legacy handles name.
///
/// It has pages of its own, so that no handle of it shows anything else. Dropped, it waits for the device uses that it knows of
/// and is freed; it must not be before other processes have closed it.
///
/// ```
/// use cuda_mem_core::Driver;
/// use cuda_mem_core::ipc::DeviceAllocation;
///
/// let context = Driver::over(cuda_mem_sim::table())?.device(0)?.primary_context()?; // with a GPU: Driver::system()?
/// let memory = DeviceAllocation::new(&context, 100_000)?;
/// // SAFETY: the memory stays until the other process has closed what it opens by it.
/// let handle = unsafe { memory.handle(5000..6000) }?; // to be sent over any channel
/// assert_eq!((handle.offset(), handle.len()), (5000, 1000));
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceAllocation {
    /// Taken out when the memory is dropped.
    block: Owned<Block>,
    bytes: usize,
}

/// What there is to free.
#[derive(Debug)]
struct Block {
    /// 0 once it is freed.
    address: CUdeviceptr,
    context: Context,
    uses: Uses,
}

impl DeviceAllocation {
    /// At least `bytes` bytes, a multiple of 2 MiB. What is in it is undefined.
    ///
    /// Wraps [`cuMemAlloc`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    ///
    /// # Errors
    ///
    /// [`Error::TooLarge`]; [`Error::Driver`]: code 2 for more than there is.
    pub fn new(context: &Context, bytes: usize) -> Result<Self> {
        let whole = bytes.max(1).checked_next_multiple_of(PAGE);
        let bytes = whole.ok_or(Error::TooLarge { count: bytes, size: 1 })?;
        context.driver().reclaim();
        let (_relaxed, _bound) = context.bind_relaxed()?;
        let mut address = 0;
        // SAFETY: one address to write; the context is current.
        unsafe { call!(context.driver(), cuMemAlloc(&mut address, bytes)) }.with_bytes(bytes)?;
        let block = Block { address, context: context.clone(), uses: Uses::new() };
        Ok(Self { block: Owned::new(block), bytes })
    }

    /// A handle of some of the bytes, for other processes.
    ///
    /// Wraps [`cuIpcGetMemHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html), whose handle is that of the
    /// whole allocation.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfRange`].
    ///
    /// # Safety
    ///
    /// No other process has the memory open by the result when this value frees it: CUDA does not say what comes of that
    /// ([`cuIpcCloseMemHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html)).
    pub unsafe fn handle(&self, range: Range<usize>) -> Result<MemoryHandle> {
        let Some(len) = range.end.checked_sub(range.start).filter(|_| range.end <= self.bytes) else {
            return Err(Error::OutOfRange { range, len: self.bytes });
        };
        let address = self.block.address + range.start as u64;
        // SAFETY: device memory, of which nothing here borrows a slice; the caller's promise.
        unsafe { MemoryHandle::of_address(&self.block.context, address, len as u64) }
    }

    /// Frees it now, and tells whether the driver took it. Waits for the device uses that it knows of, and the driver for all
    /// work of the context.
    ///
    /// Wraps [`cuMemFree`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
    /// The memory comes back with the error.
    pub fn close(mut self) -> Result<(), Refused<Self>> {
        if let Err(error) = self.block.release() {
            return Err(Refused::new(error, self));
        }
        Ok(())
    }
}

used_memory!(
    DeviceAllocation,
    |this| this.block.address,
    this.bytes,
    Borrowed::of(&this.block.uses, &this.block.context)
);

impl Held for Block {
    fn driver(&self) -> Driver {
        self.context.driver()
    }

    fn is_released(&self) -> bool {
        self.address == 0
    }
}

impl Release for Block {
    fn release(&mut self) -> Result<()> {
        refuse_forked()?;
        if self.address == 0 {
            return Ok(());
        }
        self.uses.synchronize()?;
        let (_relaxed, _bound) = self.context.bind_relaxed()?;
        // SAFETY: memory that this value owns, freed once; no use of it runs any more. The context is current.
        unsafe { call!(self.context.driver(), cuMemFree(self.address)) }?;
        self.address = 0;
        Ok(())
    }
}

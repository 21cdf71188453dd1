//! How memory comes and goes, and is shared with other processes.
//!
//! # Safety
//!
//! The functions that take memory back or share it by address hand on their callers' promise.

#![allow(unsafe_code, reason = "takes memory back and exports it by address")]

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::ipc::DeviceAllocation;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Context, Device, Stream};

use super::caches::Caches;
use super::data_ptr::Delete;
use crate::devices::PerDevice;
use crate::error::{Error, Result};
use crate::ipc::{self, ShareableHandle, VERSIONS, legacy};

impl Caches {
    pub(crate) fn malloc(&self, size: usize, device: Device, stream: &Stream) -> Result<CUdeviceptr> {
        let found = self.of(device)?;
        expect_stream_of(device, stream)?;
        if size == 0 {
            return Ok(0);
        }
        if !self.is_enabled() {
            return self.allocate_uncached(&found.context, size, stream);
        }
        Ok(found.caching.allocate_by_address(size, stream)?)
    }

    /// Memory of `cuMemAlloc`. A stream that captures gets none: a graph would outlive it.
    fn allocate_uncached(&self, context: &Context, size: usize, stream: &Stream) -> Result<CUdeviceptr> {
        if stream.is_capturing()? {
            return Err(core::Error::Capturing { call: "an allocation while the allocator is off" }.into());
        }
        let allocation = DeviceAllocation::new(context, size)?;
        // The free waits for it.
        drop(allocation.on(stream)?);
        let address = allocation.as_raw();
        self.uncached.insert(address, allocation);
        Ok(address)
    }

    /// # Safety
    ///
    /// As [`share_ipc_handle`](crate::CudaAllocator::share_ipc_handle).
    pub(crate) unsafe fn share_ipc_handle(&self, address: CUdeviceptr) -> Result<ShareableHandle> {
        let share = |device: &PerDevice| {
            let shared = ipc::share(&device.caching, address, VERSIONS[0])?;
            // SAFETY: the caller's promise.
            shared.map_or_else(|| Ok(unsafe { legacy(&device.context, address) }?), Ok)
        };
        if let Some(shared) = self.find(share)? {
            return Ok(shared);
        }
        // SAFETY: as above. One byte: the handle is for all of it anyway.
        let handle = self.uncached.look(address, |allocation| unsafe { allocation.handle(0..1) });
        Ok(handle.ok_or(Error::UnknownPointer { address })??.into())
    }
}

// What is freed here was allocated here: by an address alone nothing else can be.
impl Delete for Caches {
    unsafe fn delete(&self, address: CUdeviceptr) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        if self.find(|device| unsafe { device.caching.free_by_address(address) })?.is_some() {
            return Ok(());
        }
        let allocation = self.uncached.remove(address).ok_or(Error::UnknownPointer { address })?;
        allocation.close().map_err(|refused| {
            self.uncached.insert(address, refused.owner);
            refused.error.into()
        })
    }
}

/// Memory of a device is for streams of that device.
pub(crate) fn expect_stream_of(device: Device, stream: &Stream) -> Result<()> {
    let is_its = stream.context().device() == device;
    if is_its { Ok(()) } else { Err(core::Error::ForeignContext { what: "the stream" }.into()) }
}

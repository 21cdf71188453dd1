//! How memory comes and goes, is copied by address and shared with other processes.
//!
//! # Safety
//!
//! The functions that take memory back, copy or share it by address hand on their callers' promise.

#![allow(unsafe_code, reason = "takes memory back, copies and exports it by address")]

use cuda_mem_ipc::cuda_mem_pool::MempoolId;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::ipc::DeviceAllocation;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Context, Device, Stream};

use super::caches::Caches;
use super::data_ptr::Delete;
use crate::devices::PerDevice;
use crate::error::{Error, Result};
use crate::ipc::{IpcDevPtr, ShareableHandle, VERSIONS, legacy, private};

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

    /// # Safety
    ///
    /// As [`CudaAllocator::raw_delete`](super::CudaAllocator::raw_delete).
    pub(crate) unsafe fn delete_by_address(&self, address: CUdeviceptr) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        let freed = self.find(|device| unsafe { device.caching.free_by_address(address) })?;
        if freed.is_none() && !self.uncached.free(address, |()| Ok::<_, Error>(()))? {
            return Err(Error::UnknownPointer { address });
        }
        Ok(())
    }

    /// Memory of `cuMemAlloc`. A stream that captures gets none: a graph would outlive it.
    fn allocate_uncached(&self, context: &Context, size: usize, stream: &Stream) -> Result<CUdeviceptr> {
        if stream.is_capturing()? {
            return Err(core::Error::Capturing { call: "an allocation while the allocator is off" }.into());
        }
        let allocation = DeviceAllocation::new(context, size)?;
        // The free waits for it.
        drop(allocation.on(stream)?);
        Ok(self.uncached.insert(allocation, ()))
    }

    pub(crate) fn record_stream(&self, address: CUdeviceptr, stream: &Stream) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let recorded = self.find(|device| device.caching.record_stream(address, stream))?;
        if recorded.is_some() {
            return Ok(());
        }
        let recorded = self.uncached.look(address, |block| block.allocation.on(stream).map(drop));
        Ok(recorded.ok_or(Error::UnknownPointer { address })??)
    }

    pub(crate) fn base_allocation(&self, address: CUdeviceptr) -> Result<(CUdeviceptr, usize)> {
        let found = self.find(|device| device.caching.base_allocation(address))?;
        let found = found.or_else(|| self.uncached.base(address));
        found.ok_or(Error::UnknownPointer { address })
    }

    pub(crate) fn empty_cache(&self, id: MempoolId) -> Result<usize> {
        let mut bytes = 0usize;
        for device in self.all()? {
            bytes = bytes.saturating_add(device.caching.empty_pool_cache(id)?);
        }
        Ok(bytes)
    }

    pub(crate) fn cache_info(&self, device: Device, largest: &mut usize) -> Result<()> {
        let device = self.of(device)?;
        if *largest == 0 {
            *largest = device.context.memory_info()?.free;
        }
        *largest = (*largest).max(device.caching.largest_free_block()?);
        Ok(())
    }

    /// # Safety
    ///
    /// As [`share_ipc_handle`](crate::CudaAllocator::share_ipc_handle).
    pub(crate) unsafe fn share_ipc_handle(&self, address: CUdeviceptr) -> Result<ShareableHandle> {
        let share = |device: &PerDevice| {
            let shared = device.exports.share(&device.caching, address, VERSIONS[0])?;
            // SAFETY: the caller's promise.
            shared.map_or_else(|| Ok(unsafe { private(&device.context, address) }?), Ok)
        };
        if let Some(shared) = self.find(share)? {
            return Ok(shared);
        }
        let (address, bytes) = self.uncached.base(address).ok_or(Error::UnknownPointer { address })?;
        let context = self.context_of(address)?;
        // SAFETY: the caller's promise.
        Ok(unsafe { legacy(&context, address, bytes) }?)
    }

    fn context_of(&self, address: CUdeviceptr) -> Result<Context> {
        for device in self.all()? {
            let known = core::pointer::attributes(&device.context, address)?;
            if known.device == device.context.device().as_raw() {
                return Ok(device.context.clone());
            }
        }
        Err(Error::UnknownPointer { address })
    }

    pub(crate) fn ipc_dev_ptr(&self, handle: &[u8]) -> Result<IpcDevPtr> {
        self.opened.open(&self.of(self.current_device()?)?.context, handle)
    }
}

// What is freed here was allocated here: by an address alone nothing else can be.
impl Delete for Caches {
    unsafe fn delete(&self, address: CUdeviceptr) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.delete_by_address(address) }
    }
}

/// Memory of a device is for streams of that device.
pub(crate) fn expect_stream_of(device: Device, stream: &Stream) -> Result<()> {
    let is_its = stream.context().device() == device;
    if is_its { Ok(()) } else { Err(core::Error::ForeignContext { what: "the stream" }.into()) }
}

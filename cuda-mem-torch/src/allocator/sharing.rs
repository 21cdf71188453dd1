//! Shares allocations with other processes, and opens theirs.
//!
//! # Safety
//!
//! The functions hand on their callers' promise about memory that others write.

#![allow(unsafe_code, reason = "exports memory by address")]

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Context};

use super::Caches;
use crate::devices::PerDevice;
use crate::error::{Error, Result};
use crate::ipc::{IpcDevPtr, ShareableHandle, VERSIONS, legacy, private};

impl Caches {
    /// # Safety
    ///
    /// As [`share_ipc_handle`](crate::CudaAllocator::share_ipc_handle).
    pub(crate) unsafe fn share_ipc_handle(&self, address: CUdeviceptr) -> Result<ShareableHandle> {
        if let Some((address, bytes)) = self.uncached_base(address) {
            let device = self.context_of(address)?;
            // SAFETY: the caller's promise.
            return Ok(unsafe { legacy(&device, address, bytes) }?);
        }
        let share = |device: &PerDevice| {
            let shared = device.exports.share(&device.caching, address, VERSIONS[0])?;
            // SAFETY: the caller's promise.
            shared.map_or_else(|| Ok(unsafe { private(&device.context, address) }?), Ok)
        };
        self.find_device(share)?.ok_or(Error::UnknownPointer { address })
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

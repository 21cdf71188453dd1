//! Memory straight from the driver, while an allocator is off.

use std::collections::HashMap;
use std::fmt;
use std::sync::Mutex;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::ipc::DeviceAllocation;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Context, Stream, forked};

use crate::error::Result;
use crate::lock::lock;

/// What was allocated so, by address.
#[derive(Default)]
pub(crate) struct Uncached(Mutex<HashMap<CUdeviceptr, DeviceAllocation>>);

impl Uncached {
    /// Memory of `cuMemAlloc`. A stream that captures gets none: a graph would outlive it.
    pub(super) fn allocate(&self, context: &Context, size: usize, stream: &Stream) -> Result<CUdeviceptr> {
        if stream.is_capturing()? {
            return Err(core::Error::Capturing { call: "an allocation while the allocator is off" }.into());
        }
        let allocation = DeviceAllocation::new(context, size)?;
        // The free waits for it.
        drop(allocation.on(stream)?);
        let address = allocation.as_raw();
        lock(&self.0).insert(address, allocation);
        Ok(address)
    }

    /// Frees memory, once the streams that use it are done; false if it is none of these.
    pub(super) fn free(&self, address: CUdeviceptr) -> Result<bool> {
        let Some(allocation) = lock(&self.0).remove(&address) else { return Ok(false) };
        if let Err(refused) = allocation.close() {
            lock(&self.0).insert(address, refused.owner);
            return Err(refused.error.into());
        }
        Ok(true)
    }

    /// Enters a stream as a user; false if it is none of these.
    pub(super) fn record_stream(&self, address: CUdeviceptr, stream: &Stream) -> Result<bool> {
        let allocations = lock(&self.0);
        let Some(allocation) = allocations.get(&address) else { return Ok(false) };
        drop(allocation.on(stream)?);
        Ok(true)
    }

    /// An allocation's address and bytes.
    pub(super) fn base(&self, address: CUdeviceptr) -> Option<(CUdeviceptr, usize)> {
        lock(&self.0).get(&address).map(|allocation| (address, allocation.bytes()))
    }
}

impl fmt::Debug for Uncached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // In a forked child a thread of the parent may have the lock.
        let count = if forked() { 0 } else { lock(&self.0).len() };
        f.debug_tuple("Uncached").field(&count).finish()
    }
}

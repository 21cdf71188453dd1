//! What this process shares.
//!
//! # Safety
//!
//! The functions hand on their callers' promise about memory that others write.

#![allow(unsafe_code, reason = "exports memory by address")]

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cuda_mem_ipc::cuda_mem_pool::caching::BlockExport;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::ipc::MemoryHandle;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Context};
use cuda_mem_ipc::cuda_mem_pool::{self as pool};

use super::ShareableHandle;
use super::blob::{Named, Piece};
use crate::allocator::Caches;
use crate::error::{Error, Result};
use crate::lock::lock;

/// The descriptors of mapped memory that is shared, by allocation: importers take them out of this process.
#[derive(Default)]
pub(crate) struct Exports {
    /// How many there are, so that the usual free costs one load.
    count: AtomicUsize,
    shared: Mutex<BTreeMap<CUdeviceptr, Shared>>,
}

struct Shared {
    handle: ShareableHandle,
    _descriptors: Vec<OwnedFd>,
}

impl Exports {
    pub(crate) const fn new() -> Self {
        Self { count: AtomicUsize::new(0), shared: Mutex::new(BTreeMap::new()) }
    }

    /// The allocation was freed: nobody imports it any more. Who has it open keeps its memory.
    #[inline]
    pub(crate) fn end(&self, address: CUdeviceptr) {
        if self.count.load(Ordering::Relaxed) != 0 {
            self.end_of_these(address);
        }
    }

    #[cold]
    fn end_of_these(&self, address: CUdeviceptr) {
        let ended = lock(&self.shared).remove(&address);
        if ended.is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A block in mapped memory, which `export` exports if it is not shared yet.
    pub(crate) fn share<E>(
        &self,
        address: CUdeviceptr,
        export: impl FnOnce() -> Result<BlockExport, E>,
    ) -> Result<ShareableHandle, E> {
        let mut shared = lock(&self.shared);
        if let Some(known) = shared.get(&address) {
            return Ok(known.handle.clone());
        }
        let export = export()?;
        let piece = |(bytes, descriptor): &(usize, OwnedFd)| Piece {
            bytes: *bytes as u64,
            descriptor: descriptor.as_raw_fd(),
        };
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        let named = Named::Mapped { pid, pieces: export.pieces.iter().map(piece).collect() };
        let handle = ShareableHandle { offset: address.wrapping_sub(export.base), handle: named.write() };
        let descriptors = export.pieces.into_iter().map(|(_, descriptor)| descriptor).collect();
        shared.insert(address, Shared { handle: handle.clone(), _descriptors: descriptors });
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(handle)
    }

    /// Memory of `cuMemAlloc`, by the driver's handle for the whole of it.
    ///
    /// # Safety
    ///
    /// As [`share_ipc_handle`](crate::CudaAllocator::share_ipc_handle).
    pub(crate) unsafe fn legacy(
        &self,
        context: &Context,
        address: CUdeviceptr,
        bytes: usize,
    ) -> Result<ShareableHandle> {
        // SAFETY: the caller's promise.
        let handle = unsafe { MemoryHandle::of_address(context, address, bytes as u64) }?;
        Ok(ShareableHandle { offset: handle.offset(), handle: Named::Legacy(*handle.base()).write() })
    }
}

impl Caches {
    /// # Safety
    ///
    /// As [`share_ipc_handle`](crate::CudaAllocator::share_ipc_handle).
    pub(crate) unsafe fn share_ipc_handle(&self, address: CUdeviceptr) -> Result<ShareableHandle> {
        if let Some((address, bytes)) = self.uncached_base(address) {
            let device = self.context_of(address)?;
            // SAFETY: the caller's promise.
            return unsafe { self.exports.legacy(&device, address, bytes) };
        }
        let export = || {
            let found = self.find(|cache| cache.export_block(address))?;
            found.ok_or(Error::UnknownPointer { address })
        };
        match self.exports.share(address, export) {
            // A private pool's segment that another allocator gave.
            Err(Error::Pool(pool::Error::Core(core::Error::NotShareable { .. }))) => {
                let context = self.context_of(address)?;
                // SAFETY: the caller's promise. One byte: the handle is for the whole allocation anyway.
                unsafe { self.exports.legacy(&context, address, 1) }
            }
            shared => shared,
        }
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
}

impl fmt::Debug for Exports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exports").finish_non_exhaustive()
    }
}

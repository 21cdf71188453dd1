//! Private pools with segments of the program's functions.
//!
//! # Safety
//!
//! Relies on the promise of [`create_custom_allocator`](super::create_custom_allocator)'s caller: the memory is its receiver's.

#![allow(unsafe_code, reason = "is a resource")]

use std::alloc::Layout;
use std::sync::Arc;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Device, MemorySource, Stream};
use cuda_mem_ipc::cuda_mem_pool::segments::PoolError;
use cuda_mem_ipc::cuda_mem_pool::{self as pool, MempoolId, RawResource};

use super::functions::{Hooks, PoolFn};
use super::{Inner, Program};
use crate::allocator::{for_core, for_pool};
use crate::error::{Error, Result};
use crate::lock::lock;

// SAFETY: the memory is the program's, handed through.
unsafe impl MemorySource for Program {
    unsafe fn deallocate(&self, address: CUdeviceptr, layout: Layout, stream: &Stream) -> core::Result<()> {
        let device = stream.context().device();
        self.free(address, layout.size(), device, stream).map_err(|error| for_core(error, address))
    }
}

/// The program's functions as a source of segments, whose memory is in no books but the pools'. It counts for the fraction.
// SAFETY: as above.
unsafe impl RawResource for Program {
    fn allocate(&self, layout: Layout, stream: &Stream) -> pool::Result<CUdeviceptr> {
        let requested = layout.size();
        match self.alloc(requested, stream.context().device(), stream) {
            Ok(0) => Err(pool::Error::OutOfMemory { requested, used: 0, limit: 0, source: None }),
            Ok(address) => Ok(address),
            Err(error) => Err(for_pool(error, requested)),
        }
    }
}

crate::impl_debug!(Program);

impl Inner {
    /// Ends something of a pool: by `native`, if it began here, and by the program's function.
    pub(super) fn end(
        &self,
        of: (Device, MempoolId),
        native: impl FnOnce() -> Result<()>,
        setter: &'static str,
        function: fn(&Hooks) -> &Option<Arc<PoolFn>>,
    ) -> Result<()> {
        let (device, id) = of;
        self.native.caches.of(device)?;
        let hooks = lock(&self.program.hooks).clone();
        let end = function(&hooks);
        match native() {
            // It did not begin here: it is the program's.
            Err(Error::Pool(pool::Error::Pool(
                PoolError::Unknown { .. } | PoolError::Released { .. } | PoolError::NotRouted { .. },
            ))) if hooks.begin_allocate_to_pool.is_some() => {
                end.as_ref().ok_or(Error::NoPoolFunction { setter, id })?;
            }
            ended => ended?,
        }
        end.iter().for_each(|end| end(device, id));
        Ok(())
    }
}

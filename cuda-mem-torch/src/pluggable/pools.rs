//! Private pools with segments of the program's functions.
//!
//! # Safety
//!
//! Relies on the promise of [`create_custom_allocator`](super::create_custom_allocator)'s caller: the memory is its receiver's.

#![allow(unsafe_code, reason = "is a resource")]

use std::alloc::Layout;
use std::sync::{Arc, RwLock};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::CUdeviceptr;
use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, Device, MemorySource, Stream};
use cuda_mem_ipc::cuda_mem_pool::segments::{Filter, PoolError};
use cuda_mem_ipc::cuda_mem_pool::{self as pool, MempoolId, RawResource};

use super::Inner;
use super::functions::Functions;
use crate::allocator::{for_core, for_pool};
use crate::error::{Error, Result};
use crate::lock::read;

/// The program's functions as a source of segments. Their memory is in no books but the pools'.
struct Segments(Arc<RwLock<Functions>>);

// SAFETY: the memory is the program's, handed through.
unsafe impl MemorySource for Segments {
    unsafe fn deallocate(&self, address: CUdeviceptr, layout: Layout, stream: &Stream) -> core::Result<()> {
        let free = read(&self.0).free.clone();
        free(address, layout.size(), stream.context().device(), stream)
            .map_err(|error| for_core(error, address))
    }
}

// SAFETY: as above.
unsafe impl RawResource for Segments {
    fn allocate(&self, layout: Layout, stream: &Stream) -> pool::Result<CUdeviceptr> {
        let requested = layout.size();
        let alloc = read(&self.0).alloc.clone();
        match alloc(requested, stream.context().device(), stream) {
            Ok(0) => Err(pool::Error::OutOfMemory { requested, used: 0, limit: 0, source: None }),
            Ok(address) => Ok(address),
            Err(error) => Err(for_pool(error, requested)),
        }
    }
}

crate::shown!(Segments);

impl Inner {
    pub(super) fn begin_allocate_to_pool(&self, device: Device, id: MempoolId, filter: Filter) -> Result<()> {
        let begin = read(&self.functions).begin_allocate_to_pool.clone();
        if let Some(begin) = begin {
            begin(device, id, filter);
            return Ok(());
        }
        let cache = &self.ready(device)?.caching;
        // A pool is made with its source, or it has one: from whoever made it.
        let made = match cache.create_or_incref_pool(id, Some(self.segments())) {
            Ok(()) => true,
            Err(pool::Error::Pool(PoolError::SourceIsSet { .. })) => false,
            Err(error) => return Err(error.into()),
        };
        let begun = cache.begin_allocate_to_pool(id, filter);
        if made {
            // Its one use is that of the beginning; without one it goes again.
            cache.release_pool(id)?;
        }
        Ok(begun?)
    }

    pub(super) fn end_allocate_to_pool(&self, device: Device, id: MempoolId) -> Result<()> {
        let functions = read(&self.functions).clone();
        if functions.begin_allocate_to_pool.is_none() {
            self.ready(device)?.caching.end_allocate_to_pool(id)?;
        } else if functions.end_allocate_to_pool.is_none() {
            return Err(Error::NoPoolFunction { setter: "set_end_allocate_to_pool_fn", id });
        }
        if let Some(end) = functions.end_allocate_to_pool {
            end(device, id);
        }
        Ok(())
    }

    pub(super) fn release_pool(&self, device: Device, id: MempoolId) -> Result<()> {
        let functions = read(&self.functions).clone();
        if functions.begin_allocate_to_pool.is_none() {
            self.ready(device)?.caching.release_pool(id)?;
        } else if functions.release_pool.is_none() {
            return Err(Error::NoPoolFunction { setter: "set_release_pool", id });
        }
        if let Some(release) = functions.release_pool {
            release(device, id);
        }
        Ok(())
    }

    /// A pool gets its segments from the program's functions, unless it is told otherwise when it is made.
    pub(super) fn create_or_incref_pool(
        &self,
        device: Device,
        id: MempoolId,
        source: Option<Arc<dyn RawResource>>,
    ) -> Result<()> {
        let cache = &self.ready(device)?.caching;
        if source.is_some() {
            return Ok(cache.create_or_incref_pool(id, source)?);
        }
        match cache.create_or_incref_pool(id, Some(self.segments())) {
            Err(pool::Error::Pool(PoolError::SourceIsSet { .. })) => {
                Ok(cache.create_or_incref_pool(id, None)?)
            }
            made => Ok(made?),
        }
    }

    fn segments(&self) -> Arc<dyn RawResource> {
        Arc::new(Segments(Arc::clone(&self.functions)))
    }
}

//! Other allocators as the sources of private pools.
//!
//! # Safety
//!
//! Relies on the functions that C passes: they may be called by any thread until the pool's memory is given back, do not unwind,
//! and a source's memory belongs to its receiver until it is freed.

#![allow(unsafe_code, reason = "calls functions of C")]

use std::alloc::Layout;
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_void};
use std::io;
use std::sync::Arc;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{self as core, MemorySource, Stream};
use cuda_mem_ipc::cuda_mem_pool::{Error, RawResource, Result as PoolResult};

use super::pointers::pointer;
use super::pools::Owned;

/// Where a pool's segments come from, if not from the device: another allocator.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct cuda_mem_torch_source {
    /// What each function is passed first.
    pub data: *mut c_void,
    /// Memory of so many bytes at a multiple of 256, or null if there is none, which is a lack of memory unless
    /// [`cuda_mem_torch_source_failed`] was called.
    pub alloc: Option<unsafe extern "C" fn(data: *mut c_void, bytes: usize) -> *mut c_void>,
    /// Takes it back. Nothing uses it any more.
    pub free: Option<unsafe extern "C" fn(data: *mut c_void, address: *mut c_void, bytes: usize)>,
    /// The pool needs the source no more; may be null.
    pub release: Option<unsafe extern "C" fn(data: *mut c_void)>,
}

/// A source, as the allocator has it.
pub(super) struct Source {
    pub(super) owned: Owned,
    pub(super) alloc: unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void,
    pub(super) free: unsafe extern "C" fn(*mut c_void, *mut c_void, usize),
}

crate::impl_debug!(Source);

// SAFETY: what was promised for the source: memory belongs to its receiver until it is freed. Alignment is checked by the books.
unsafe impl MemorySource for Source {
    unsafe fn deallocate(&self, address: u64, layout: Layout, _stream: &Stream) -> core::Result<()> {
        // SAFETY: the caller's promise, and what was promised for the source.
        unsafe { (self.free)(self.owned.data.raw(), pointer(address), layout.size()) };
        Ok(())
    }
}

// SAFETY: as above.
unsafe impl RawResource for Source {
    fn allocate(&self, layout: Layout, _stream: &Stream) -> PoolResult<u64> {
        let requested = layout.size();
        // Of a source whose function asks for this.
        let outer = keep(None);
        // SAFETY: what was promised for the source.
        let address = unsafe { (self.alloc)(self.owned.data.raw(), requested) };
        match (address.is_null(), keep(outer)) {
            (false, _) => Ok(address.expose_provenance() as u64),
            (true, None) => Err(Error::OutOfMemory { requested, used: 0, limit: 0, source: None }),
            (true, Some(reason)) => Err(reason.into()),
        }
    }
}

thread_local! {
    /// Why the source that this thread asks fails.
    static REASON: RefCell<Option<SourceFailed>> = const { RefCell::new(None) };
}

/// The reason that was kept before. A thread at its end keeps none: there a source fails for lack of memory.
fn keep(reason: Option<SourceFailed>) -> Option<SourceFailed> {
    REASON.try_with(|kept| kept.replace(reason)).ok().flatten()
}

/// What a source said of its failure.
#[derive(Debug, thiserror::Error)]
#[error("the pool's allocator failed: {0}")]
pub(super) struct SourceFailed(String);

impl From<SourceFailed> for Error {
    fn from(failed: SourceFailed) -> Self {
        core::Error::Io { call: "alloc", source: Arc::new(io::Error::other(failed)) }.into()
    }
}

/// Called by the `alloc` of a [`cuda_mem_torch_source`] before it returns null, it says that the source fails for another reason than a lack of
/// memory: nothing is tried then, and the request fails with `CUDA_MEM_TORCH_SOURCE_FAILED` and this text.
///
/// # Safety
///
/// `reason` is null or text that ends with a 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_source_failed(reason: *const c_char) {
    let reason = if reason.is_null() {
        String::new()
    } else {
        // SAFETY: the caller's promise.
        unsafe { CStr::from_ptr(reason) }.to_string_lossy().into_owned()
    };
    let _ = keep(Some(SourceFailed(reason)));
}

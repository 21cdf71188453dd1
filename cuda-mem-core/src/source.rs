//! Who memory came from and goes back to.
//!
//! # Safety
//!
//! Declares an unsafe trait; nothing is called here.

#![allow(unsafe_code, reason = "declares an unsafe trait")]

use std::alloc::Layout;
use std::fmt;

use cuda_mem_sys::CUdeviceptr;

use crate::error::Result;
use crate::stream::Stream;

/// Who takes the memory of a [`DeviceBuffer`](crate::DeviceBuffer) back.
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
    /// [`Error::Capturing`](crate::Error::Capturing) if it cannot be taken back now, and will be offered again;
    /// [`Error::NotAllocated`](crate::Error::NotAllocated) and [`Error::WrongSize`](crate::Error::WrongSize) from sources that
    /// know what they gave; [`Error::Driver`](crate::Error::Driver) and others. The memory is still allocated after any error.
    ///
    /// # Safety
    ///
    /// `address` came from this source with this layout and is given back once; all work that uses it is ordered before
    /// this point of `stream`.
    unsafe fn deallocate(&self, address: CUdeviceptr, layout: Layout, stream: &Stream) -> Result<()>;
}

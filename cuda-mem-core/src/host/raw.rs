//! Pinning by bare address, for those who keep the memory in place themselves: what PyTorch's `pin_memory` and
//! `unpin_memory` are made of.
//!
//! # Safety
//!
//! The functions are `unsafe`: they take addresses. Whoever calls them keeps the memory mapped while it is pinned.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::ffi::c_void;
use std::fmt;

use cuda_mem_sys::CUresult;

use super::options::RegisterOptions;
use super::populate::Population;
use super::registered::RegisterFlags;
use super::registration::{register, unregister};
use super::registry::Registry;
use super::system;
use crate::driver::{Driver, refuse_forked};
use crate::error::{Error, Result};

/// Pins `size` bytes at `ptr` for all contexts, with the system's driver, which is initialised if it is not.
///
/// It is registered in the primary context of the current context's device, of device 0 if no context is current. That context
/// stays alive until the memory is unpinned. The pages of much private memory are brought in by several threads before.
///
/// Wraps [`cuMemHostRegister`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html) with
/// `CU_MEMHOSTREGISTER_PORTABLE`.
///
/// # Errors
///
/// A [`PinError`] with the driver's code: 712 if any of the bytes is registered already, 1 for null, no bytes or addresses
/// without memory, 2 for more than the system has memory for, 700 and the like for earlier work that failed.
///
/// # Safety
///
/// The memory stays mapped until it is unpinned, and is not unmapped while a device uses it.
pub unsafe fn pin_memory(ptr: *mut c_void, size: usize) -> Result<(), PinError> {
    let driver = Driver::system().map_err(|error| PinError::new("registering", ptr, error))?;
    // SAFETY: the caller's promise.
    unsafe { pin_memory_with(driver, ptr, size) }
}

/// As [`pin_memory`], with any driver.
///
/// ```
/// use cuda_mem_core::{Driver, host::raw};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: pin_memory and unpin_memory
/// let mut memory = vec![0u8; 4096];
/// // SAFETY: the vector lives, and stays where it is, until it is unpinned below.
/// unsafe { raw::pin_memory_with(driver, memory.as_mut_ptr().cast(), memory.len()) }?;
/// // SAFETY: no device uses it.
/// unsafe { raw::unpin_memory_with(driver, memory.as_mut_ptr().cast()) }?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Safety
///
/// As for [`pin_memory`].
pub unsafe fn pin_memory_with(driver: Driver, ptr: *mut c_void, size: usize) -> Result<(), PinError> {
    let pinned = || {
        refuse_forked()?;
        let device = driver.current_device()?.map_or_else(|| driver.device(0), Ok)?;
        let context = device.primary_context()?;
        let flags = RegisterFlags::PORTABLE;
        let register = || {
            // SAFETY: the caller keeps the memory mapped.
            unsafe { register(&context, ptr.cast::<u8>(), size, flags) }
        };
        match system::range_of(ptr.cast::<u8>(), size) {
            Ok(range) if size > 0 => {
                driver.service::<Registry>().claim(range.clone(), flags, &context, true, || {
                    if let Some(pages) = Population::of_private(&range) {
                        let populated = pages.populate_and(&RegisterOptions::new(), &|| Ok(()));
                        // What else is wrong with the pages, the driver says, with its code. This it would not refuse: the system
                        // would end a process.
                        if let Err(error @ Error::OutOfHostMemory { .. }) = populated {
                            return Err(error);
                        }
                    }
                    register()
                })?
            }
            // No range; the driver has its code for that.
            _ => return register(),
        };
        Ok(())
    };
    pinned().map_err(|error| PinError::new("registering", ptr, error))
}

/// Unpins the memory that was pinned from `ptr` on, with the system's driver. The driver waits for the work of the context
/// that runs.
///
/// Memory that others have registered is unregistered as well; memory of a [`Registered`](super::Registered) is not. If one
/// shares the pin, all of the pinned memory stays registered until that is closed, and must stay mapped until then.
///
/// Wraps [`cuMemHostUnregister`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MEM.html).
///
/// # Errors
///
/// A [`PinError`] with the driver's code: 713 if nothing is registered there, 1 for null and for an address inside of pinned
/// memory, 700 and the like for earlier work that failed. The memory is still pinned then.
///
/// # Safety
///
/// No work that is put into a stream later uses the memory as pinned, and no graph does.
pub unsafe fn unpin_memory(ptr: *mut c_void) -> Result<(), PinError> {
    let driver = Driver::system().map_err(|error| PinError::new("unregistering", ptr, error))?;
    // SAFETY: the caller's promise.
    unsafe { unpin_memory_with(driver, ptr) }
}

/// As [`unpin_memory`], with any driver.
///
/// # Safety
///
/// As for [`unpin_memory`].
pub unsafe fn unpin_memory_with(driver: Driver, ptr: *mut c_void) -> Result<(), PinError> {
    let unregister = || {
        // SAFETY: the caller's promise; if it is no start of a registration, the driver says so.
        unsafe { unregister(driver, ptr.cast::<u8>()) }
    };
    let unpinned = refuse_forked()
        .and_then(|()| driver.service::<Registry>().unpin(ptr.addr(), unregister).unwrap_or_else(unregister));
    unpinned.map_err(|error| PinError::new("unregistering", ptr, error))
}

/// Why memory was not pinned or unpinned.
#[derive(Debug, Clone)]
pub struct PinError {
    act: &'static str,
    address: usize,
    error: Error,
}

impl PinError {
    #[cold]
    fn new(act: &'static str, ptr: *mut c_void, error: Error) -> Self {
        Self { act, address: ptr.addr(), error }
    }

    /// The driver's code for it, which is also the runtime's. None if there is no driver to ask.
    #[must_use]
    pub fn code(&self) -> Option<CUresult> {
        match &self.error {
            Error::HeldByOwner { .. } => Some(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
            Error::OutOfHostMemory { .. } => Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY),
            Error::Forked => Some(CUresult::CUDA_ERROR_NOT_INITIALIZED),
            error => error.code(),
        }
    }

    /// What went wrong.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Whether the code tells of earlier work that failed, and not of this call.
    #[must_use]
    pub fn is_of_earlier_work(&self) -> bool {
        matches!(&self.error, Error::Driver(error) if error.context_is_lost())
    }
}

impl fmt::Display for PinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} memory at {:#x} failed", self.act, self.address)?;
        if let Some(code) = self.code() {
            write!(f, " with cudaError: {}", code.0)?;
        }
        write!(f, ": {}", self.error)?;
        if self.is_of_earlier_work() {
            f.write_str(
                ". This may be the asynchronous error of an earlier operation; \
                 run with CUDA_LAUNCH_BLOCKING=1 to find out which",
            )?;
        }
        Ok(())
    }
}

impl std::error::Error for PinError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<PinError> for Error {
    fn from(error: PinError) -> Self {
        error.error
    }
}

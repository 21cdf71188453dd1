//! Ranges of host memory that the driver holds pinned.
//!
//! # Safety
//!
//! Relies on whoever has a [`Registration`] keeping the memory in place until it is released.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::ops::Range;

use cuda_mem_sys::{CUdevice_attribute, CUresult};

use super::registered::RegisterFlags;
use super::registry::{Claim, Registry};
use super::system::{self, Locks};
use crate::driver::{Context, Driver, Relaxed, refuse_forked};
use crate::error::{Error, RegisteredBy, Result, WithBytes, call};

/// A range of host memory that the driver holds pinned for us. Whoever has one keeps the memory in place.
#[derive(Debug)]
pub(crate) struct Registration {
    driver: Driver,
    flags: RegisterFlags,
    /// None for an empty range, and after it was released.
    claim: Option<Claim>,
}

impl Registration {
    /// If the driver does not know the range yet, `prepare` is called to have it registered.
    ///
    /// # Safety
    ///
    /// The bytes must stay mapped until [`Registration::release`] has succeeded.
    pub(crate) unsafe fn new(
        context: &Context,
        start: *const u8,
        len: usize,
        flags: RegisterFlags,
        prepare: impl FnOnce(&dyn Fn() -> Result<()>) -> Result<()>,
    ) -> Result<Self> {
        refuse_forked()?;
        let driver = context.driver();
        if len == 0 {
            return Ok(Self { driver, flags, claim: None });
        }
        if flags.contains(RegisterFlags::READ_ONLY) {
            let device = context.device();
            let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
            if !device.supports(attribute)? {
                let what = "registering host memory that it may only read";
                return Err(Error::Unsupported { device: device.name()?, what });
            }
        }
        let range = system::range_of(start, len)?;
        if driver.registrations_left() > 0 && driver.service::<Registry>().refuses(&range, flags) {
            // What is in the way may be nobody's any more.
            driver.undo_if_all_are_idle();
        }
        let register = || {
            // SAFETY: the caller keeps the bytes mapped.
            unsafe { register(context, start, len, flags) }
        };
        let claim =
            driver.service::<Registry>().claim(range, flags, context, false, || prepare(&register))?;
        Ok(Self { driver, flags, claim: Some(claim) })
    }

    /// How the memory is registered.
    pub(crate) fn flags(&self) -> RegisterFlags {
        self.flags
    }

    /// Unregisters the memory, unless somebody else here holds it as well. After an error it is still registered.
    pub(crate) fn release(&mut self) -> Result<()> {
        refuse_forked()?;
        let Some(claim) = self.claim else { return Ok(()) };
        self.driver.service::<Registry>().release(claim, || {
            // SAFETY: the start of a range that was registered through the registry and has its last holder here.
            unsafe { unregister(self.driver, std::ptr::without_provenance_mut(claim.start)) }
        })?;
        self.claim = None;
        Ok(())
    }

    /// Gives up on memory that the driver would not unregister and whose owner takes it back: nobody else may count on it.
    pub(crate) fn abandon(&mut self) {
        if let Some(claim) = self.claim.take() {
            self.driver.service::<Registry>().abandon(claim);
        }
    }
}

/// Has the driver pin the memory, and says what is wrong with it if it does not.
///
/// # Safety
///
/// The bytes must stay mapped until they are unregistered, if this succeeds.
pub(super) unsafe fn register(
    context: &Context,
    start: *const u8,
    len: usize,
    flags: RegisterFlags,
) -> Result<()> {
    let driver = context.driver();
    let registered = {
        let (_relaxed, _bound) = context.bind_relaxed()?;
        let address = start.cast_mut().cast();
        // SAFETY: the caller keeps the bytes mapped; the driver checks that they are. The context is current.
        unsafe { call!(driver, cuMemHostRegister(address, len, flags.bits())) }.with_bytes(len)
    };
    registered
        .map_err(|error| system::range_of(start, len).map_or(error.clone(), |range| explain(error, range)))
}

/// Has the driver let go of memory.
///
/// # Safety
///
/// `start` is where a registration starts, if it is one's start at all, and nobody counts on that registration any more.
pub(super) unsafe fn unregister(driver: Driver, start: *mut u8) -> Result<()> {
    let _relaxed = Relaxed::enter(driver)?;
    // SAFETY: the caller's promise; needs no current context (seen on hardware).
    unsafe { call!(driver, cuMemHostUnregister(start.cast())) }
}

/// What a refusal to register a range comes from, as far as it can be found out.
fn explain(error: Error, range: Range<usize>) -> Error {
    match error.code() {
        Some(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED) => {
            Error::AlreadyRegistered { range, by: RegisteredBy::Others }
        }
        Some(CUresult::CUDA_ERROR_INVALID_VALUE) => {
            system::hole_in(&range).map_or(error, |hole| Error::NotMapped { range, hole })
        }
        Some(code @ (CUresult::CUDA_ERROR_OUT_OF_MEMORY | CUresult::CUDA_ERROR_OPERATING_SYSTEM)) => {
            match Locks::of_the_process().filter(|locks| locks.refuse(range.len())) {
                Some(Locks { limit, locked }) => Error::LockLimit { bytes: range.len(), limit, locked, code },
                None => error,
            }
        }
        _ => error,
    }
}

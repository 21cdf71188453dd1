//! A device: a GPU, by its number.
//!
//! # Safety
//!
//! Relies on device numbers coming from `cuDeviceGet` of the same driver, so that every call here gets a valid one.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::sync::Mutex;

use cuda_mem_sys::{CUdevice, CUdevice_attribute, CUuuid};

use crate::driver::{Context, Driver, lock, refuse_forked};
use crate::error::{Error, Result, call};

/// A device of a [`Driver`]. Copies are handles to the same one.
///
/// ```
/// use cuda_mem_core::Driver;
///
/// let device = Driver::over(cuda_mem_sim::table())?.device(0)?; // in a program: Driver::system()?
/// println!("{}: {} MiB", device.name()?, device.total_memory()? >> 20);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Device {
    driver: Driver,
    raw: CUdevice,
}

impl Device {
    pub(crate) fn new(driver: Driver, raw: CUdevice) -> Self {
        Self { driver, raw }
    }

    /// The driver it belongs to.
    #[must_use]
    pub fn driver(self) -> Driver {
        self.driver
    }

    /// Its number as the driver counts.
    #[must_use]
    pub fn as_raw(self) -> CUdevice {
        self.raw
    }

    /// Its name.
    ///
    /// Wraps [`cuDeviceGetName`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html).
    pub fn name(self) -> Result<String> {
        refuse_forked()?;
        let mut name = [0u8; 256];
        let length = c_int::try_from(name.len()).unwrap_or(c_int::MAX);
        // SAFETY: at most `length` bytes are written, terminator included.
        unsafe { call!(self.driver, cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), length, self.raw)) }?;
        let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    /// Its UUID: 16 bytes, the same in every process.
    ///
    /// Wraps [`cuDeviceGetUuid`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html), once for each device.
    pub fn uuid(self) -> Result<[u8; 16]> {
        refuse_forked()?;
        self.driver.constants().uuid.get(self.raw, || {
            let mut uuid = CUuuid { bytes: [0; 16] };
            // SAFETY: one UUID to write.
            unsafe { call!(self.driver, cuDeviceGetUuid(&mut uuid, self.raw)) }?;
            Ok(uuid.bytes.map(|byte| u8::from_ne_bytes(byte.to_ne_bytes())))
        })
    }

    /// The size of its memory in bytes.
    ///
    /// Wraps [`cuDeviceTotalMem`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html).
    pub fn total_memory(self) -> Result<usize> {
        refuse_forked()?;
        let mut bytes = 0;
        // SAFETY: one size to write.
        unsafe { call!(self.driver, cuDeviceTotalMem(&mut bytes, self.raw)) }?;
        Ok(bytes)
    }

    /// One of its attributes.
    ///
    /// Wraps [`cuDeviceGetAttribute`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`] (an attribute that this driver does not know is code 1).
    pub fn attribute(self, attribute: CUdevice_attribute) -> Result<i32> {
        refuse_forked()?;
        let mut value = 0;
        // SAFETY: one int to write; the driver checks the attribute's number.
        unsafe { call!(self.driver, cuDeviceGetAttribute(&mut value, attribute, self.raw)) }?;
        Ok(value)
    }

    /// Whether the device supports what an attribute of zero or one stands for; an unknown attribute means it does not.
    /// Errors: as [`Device::attribute`], but for the unknown attribute.
    pub fn supports(self, attribute: CUdevice_attribute) -> Result<bool> {
        match self.attribute(attribute) {
            Ok(value) => Ok(value != 0),
            Err(Error::Driver(error)) if error.code() == cuda_mem_sys::CUresult::CUDA_ERROR_INVALID_VALUE => {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether kernels of this device can reach the memory of `peer` once peer access is enabled.
    ///
    /// Wraps [`cuDeviceCanAccessPeer`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__PEER__ACCESS.html).
    pub fn can_access_peer(self, peer: Self) -> Result<bool> {
        refuse_forked()?;
        self.driver.expect_same(peer.driver, "the peer device")?;
        let mut can = 0;
        // SAFETY: one int to write, two valid devices.
        unsafe { call!(self.driver, cuDeviceCanAccessPeer(&mut can, self.raw, peer.raw)) }?;
        Ok(can != 0)
    }

    /// Its primary context, retained. The one that CUDA's runtime and PyTorch use.
    pub fn primary_context(self) -> Result<Context> {
        Context::retain_primary(self)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.raw)
    }
}

/// Of all devices of a driver.
#[derive(Debug, Default)]
pub(crate) struct Constants {
    pub(crate) uuid: Constant<[u8; 16]>,
    /// The smallest piece of physical memory.
    pub(crate) granularity: Constant<usize>,
}

/// By device.
#[derive(Debug, Default)]
pub(crate) struct Constant<T>(Mutex<BTreeMap<CUdevice, T>>);

impl<T: Copy> Constant<T> {
    /// What is known, or else what `ask` is told. Of two threads that come first at once both ask.
    pub(crate) fn get(&self, device: CUdevice, ask: impl FnOnce() -> Result<T>) -> Result<T> {
        let known = || lock(&self.0);
        if let Some(value) = known().get(&device) {
            return Ok(*value);
        }
        let value = ask()?;
        known().insert(device, value);
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn what_was_told_is_not_asked_again_and_a_failure_is_not_kept() {
        let constant = Constant::default();
        assert!(constant.get(1, || Err(Error::Forked)).is_err());
        assert_eq!(constant.get(1, || Ok(7)).unwrap(), 7);
        assert_eq!(constant.get(1, || Err(Error::Forked)).unwrap(), 7);
        assert_eq!(constant.get(2, || Ok(8)).unwrap(), 8);
    }
}

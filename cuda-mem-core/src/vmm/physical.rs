//! Memory without an address.
//!
//! # Safety
//!
//! Relies on the driver giving each handle out once, on the contract of [`PhysicalMemory::from_raw`] for those of others, and on
//! the driver opening a descriptor of its own for each export, as `cuMemExportToShareableHandle` documents.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::ffi::c_int;
use std::fmt;
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, OwnedFd};

use cuda_mem_sys::{
    CUdevice_attribute, CUmemAllocationHandleType, CUmemAllocationProp_v1, CUmemAllocationType,
    CUmemGenericAllocationHandle_v1, CUmemLocation, CUmemLocationType, CUresult,
};

use super::granularity;
use crate::capture::Relaxed;
use crate::device::Device;
use crate::driver::{Driver, refuse_forked};
use crate::error::{Error, Refused, Result, WithBytes, call};
use crate::fork;

/// What memory can do besides. The default is nothing.
///
/// ```
/// use cuda_mem_core::Driver;
/// use cuda_mem_core::vmm::CreateOptions;
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let options = CreateOptions::supported_by(driver.device(0)?)?;
/// assert!(options.shareable && options.gpu_direct_rdma);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CreateOptions {
    /// Whether other processes may be given the memory, as a POSIX file descriptor.
    pub shareable: bool,
    /// Whether network adapters may reach it directly (`gpuDirectRDMACapable`).
    pub gpu_direct_rdma: bool,
}

impl CreateOptions {
    /// All that a device says its memory can do.
    ///
    /// Wraps [`cuDeviceGetAttribute`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html): it is worth asking
    /// once.
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`], [`Error::Forked`].
    pub fn supported_by(device: Device) -> Result<Self> {
        Ok(Self {
            shareable: device.supports(
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
            )?,
            gpu_direct_rdma: device
                .supports(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)?,
        })
    }

    pub(super) fn properties(self, device: Device) -> CUmemAllocationProp_v1 {
        let mut properties = CUmemAllocationProp_v1 {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            location: CUmemLocation {
                type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: device.as_raw(),
            },
            ..CUmemAllocationProp_v1::default()
        };
        if self.shareable {
            properties.requestedHandleTypes =
                CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        }
        properties.allocFlags.gpuDirectRDMACapable = self.gpu_direct_rdma.into();
        properties
    }
}

/// A device's memory, by its handle. It has no address until it is [mapped](super::AddressRange::map).
///
/// What is mapped when this is dropped stays until it is unmapped. The [module](super) has an example.
pub struct PhysicalMemory {
    driver: Driver,
    raw: CUmemGenericAllocationHandle_v1,
    bytes: usize,
}

impl PhysicalMemory {
    /// New memory of a device. What is in it is undefined.
    ///
    /// Wraps [`cuMemCreate`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html). Needs no context.
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::NotGranular`] for a size that is 0 or no multiple of the [`granularity`]; [`Error::Driver`]: code 2 for more than
    /// the device has left; [`Error::Forked`].
    pub fn create(device: Device, bytes: usize, options: &CreateOptions) -> Result<Self> {
        refuse_forked()?;
        let driver = device.driver();
        let properties = options.properties(device);
        let mut raw = 0;
        // SAFETY: one handle to write; the properties are read during the call; no flags exist.
        let created = unsafe { call!(driver, cuMemCreate(&mut raw, bytes, &properties, 0)) };
        // Asked only now: a size that is right costs one call.
        if let Err(Error::Driver(error)) = &created
            && error.code() == CUresult::CUDA_ERROR_INVALID_VALUE
        {
            let granularity = granularity(device)?;
            if bytes == 0 || !bytes.is_multiple_of(granularity) {
                return Err(Error::NotGranular { what: "the size", value: bytes, granularity });
            }
        }
        created.with_bytes(bytes)?;
        Ok(Self { driver, raw, bytes })
    }

    /// The memory behind a handle that [`PhysicalMemory::into_raw`] gave, or other code.
    ///
    /// # Safety
    ///
    /// `raw` is a handle of this driver to `bytes` bytes that nobody else will release.
    #[must_use]
    pub unsafe fn from_raw(driver: Driver, raw: u64, bytes: usize) -> Self {
        Self { driver, raw, bytes }
    }

    /// The handle, to be released by whoever has it now. For books that keep many: [`PhysicalMemory::from_raw`] takes it back
    /// without any call.
    #[must_use]
    pub fn into_raw(self) -> u64 {
        ManuallyDrop::new(self).raw
    }

    /// The driver it belongs to.
    #[must_use]
    pub fn driver(&self) -> Driver {
        self.driver
    }

    /// The driver's handle, a `CUmemGenericAllocationHandle_v1`. It is valid while this value lives.
    #[must_use]
    pub fn as_raw(&self) -> u64 {
        self.raw
    }

    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A descriptor of the memory for other processes. Each call makes a new one, which keeps the memory as a handle does.
    ///
    /// Wraps [`cuMemExportToShareableHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html).
    ///
    /// ```
    /// use cuda_mem_core::Driver;
    /// use cuda_mem_core::vmm::{self, CreateOptions, PhysicalMemory};
    ///
    /// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
    /// let device = driver.device(0)?;
    /// let options = CreateOptions::supported_by(device)?;
    /// let memory = PhysicalMemory::create(device, vmm::granularity(device)?, &options)?;
    /// let descriptor = memory.export_posix_fd()?; // to be sent over a Unix socket
    /// # drop(descriptor);
    /// # Ok::<(), cuda_mem_core::Error>(())
    /// ```
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]: code 1 if the memory was not made [shareable](CreateOptions::shareable); [`Error::Forked`].
    pub fn export_posix_fd(&self) -> Result<OwnedFd> {
        const DESCRIPTOR: CUmemAllocationHandleType =
            CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let _relaxed = Relaxed::enter(self.driver)?;
        let mut descriptor: c_int = -1;
        let out = (&raw mut descriptor).cast();
        // SAFETY: for this handle type the driver writes one int; a live handle; no flags exist.
        unsafe { call!(self.driver, cuMemExportToShareableHandle(out, self.raw, DESCRIPTOR, 0)) }?;
        // SAFETY: a descriptor that the driver just opened for us and nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// Releases the handle, and tells whether the driver did. The memory goes back when it is mapped nowhere any more, in no
    /// process.
    ///
    /// Wraps [`cuMemRelease`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html). Waits for nothing.
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// The memory comes back with the error.
    pub fn close(self) -> Result<(), Refused<Self>> {
        if let Err(error) = self.release() {
            return Err(Refused::new(error, self));
        }
        // Released: not once more by the drop.
        let _ = ManuallyDrop::new(self);
        Ok(())
    }

    fn release(&self) -> Result<()> {
        refuse_forked()?;
        // SAFETY: a handle that this value owns, released once: after a success nobody calls again.
        unsafe { call!(self.driver, cuMemRelease(self.raw)) }
    }
}

impl Drop for PhysicalMemory {
    fn drop(&mut self) {
        if !fork::forked() {
            self.driver.release(|| self.release());
        }
    }
}

impl fmt::Debug for PhysicalMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PhysicalMemory")
            .field("raw", &format_args!("{:#x}", self.raw))
            .field("bytes", &self.bytes)
            .finish()
    }
}

//! Memory without an address.
//!
//! # Safety
//!
//! Relies on the driver giving each handle out once, and on the contract of [`PhysicalMemory::from_raw`] for those of others.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::mem::ManuallyDrop;

use cuda_mem_sys::{CUdevice_attribute, CUmemAllocationProp_v1, CUmemGenericAllocationHandle_v1, CUresult};

use super::{AllocationType, HandleTypes, MemoryLocation, expect_granular, granularity};
use crate::driver::{Device, Driver, fork, refuse_forked};
use crate::error::{Error, Refused, Result, WithBytes, call};
use crate::host::numa;

/// What memory can do besides. The default is nothing. [`ShareableMemory`](super::ShareableMemory) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CreateOptions {
    /// Whether other processes may be given the memory, as a POSIX file descriptor.
    pub shareable: bool,
    /// Whether processes of this and other hosts may be given the memory, as a [`FabricHandle`](super::FabricHandle). It takes a
    /// host that is set up for it, which no attribute of the device tells.
    pub fabric: bool,
    /// Whether network adapters may reach it directly (`gpuDirectRDMACapable`).
    pub gpu_direct_rdma: bool,
    /// The node of the host's memory that it lies on instead of the device, which reaches it where it is mapped for it.
    pub node: Option<i32>,
}

impl CreateOptions {
    /// All that a device says its memory can do, but for fabric handles.
    ///
    /// Wraps [`cuDeviceGetAttribute`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html): it is worth asking
    /// once.
    pub fn supported_by(device: Device) -> Result<Self> {
        Ok(Self {
            shareable: device.supports(
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
            )?,
            gpu_direct_rdma: device
                .supports(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)?,
            fabric: false,
            node: None,
        })
    }

    pub(super) fn properties(self, device: Device) -> CUmemAllocationProp_v1 {
        let mut properties = CUmemAllocationProp_v1 {
            type_: AllocationType::Pinned.as_raw(),
            location: MemoryLocation::of(device, self.node).as_raw(),
            ..CUmemAllocationProp_v1::default()
        };
        let mut types = HandleTypes::empty();
        types.set(HandleTypes::POSIX_FD, self.shareable);
        types.set(HandleTypes::FABRIC, self.fabric);
        properties.requestedHandleTypes.0 = types.bits();
        properties.allocFlags.gpuDirectRDMACapable = self.gpu_direct_rdma.into();
        properties
    }
}

/// Memory of a device or of a node of the host, by its handle. It has no address until it is [mapped](super::AddressRange::map).
///
/// What is mapped when this is dropped stays until it is unmapped. The [module](super) has an example.
pub struct PhysicalMemory {
    driver: Driver,
    raw: CUmemGenericAllocationHandle_v1,
    bytes: usize,
}

impl PhysicalMemory {
    /// New memory of a device, or of the [node](CreateOptions::node) that is named. What is in it is undefined.
    ///
    /// Wraps [`cuMemCreate`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html). Needs no context.
    ///
    /// # Errors
    ///
    /// [`Error::NotGranular`] for a size that is 0 or no multiple of the [`granularity`]; [`Error::Unsupported`] if it is to have fabric
    /// handles and they are not there (code 800 or 801); [`Error::NoSuchNumaNode`]; [`Error::Driver`]: code 2 for more than there is.
    pub fn create(device: Device, bytes: usize, options: &CreateOptions) -> Result<Self> {
        refuse_forked()?;
        let driver = device.driver();
        let properties = options.properties(device);
        let mut raw = 0;
        // SAFETY: one handle to write; the properties are read during the call; no flags exist.
        let mut created = unsafe { call!(driver, cuMemCreate(&mut raw, bytes, &properties, 0)) };
        // Asked only now: a size that is right costs one call.
        if let Err(Error::Driver(error)) = &created
            && error.code() == CUresult::CUDA_ERROR_INVALID_VALUE
        {
            expect_granular(bytes, granularity(device)?)?;
            options.node.map_or(Ok(()), |node| numa::expect(node.cast_unsigned()))?;
        }
        if options.fabric {
            created = created.map_err(|error| without_fabric(device, error));
        }
        created.with_bytes(bytes)?;
        Ok(Self { driver, raw, bytes })
    }

    /// The memory behind a handle that [`PhysicalMemory::into_raw`] gave, or other code.
    ///
    /// # Safety
    ///
    /// `raw` is a handle of this driver to `bytes` bytes that no other code will release.
    #[must_use]
    pub unsafe fn from_raw(driver: Driver, raw: u64, bytes: usize) -> Self {
        Self { driver, raw, bytes }
    }

    /// The handle, which the caller has to release. For allocators that keep many: [`PhysicalMemory::from_raw`] takes it back
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

    /// Releases the handle, and tells whether the driver did. The memory goes back when no process maps it any more.
    ///
    /// Wraps [`cuMemRelease`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html). Waits for nothing.
    /// The memory comes back with the error.
    pub fn close(self) -> Result<(), Refused<Self>> {
        Refused::unless_released(self, Self::release)
    }

    /// Owns a handle that the driver just gave.
    pub(super) fn imported(driver: Driver, raw: CUmemGenericAllocationHandle_v1, bytes: usize) -> Self {
        Self { driver, raw, bytes }
    }

    fn release(&self) -> Result<()> {
        refuse_forked()?;
        // SAFETY: a handle that this value owns, released once: after a success `close` forgets it, a drop repeats only a failure.
        unsafe { call!(self.driver, cuMemRelease(self.raw)) }
    }
}

/// Says what a refusal to make or take fabric handles means.
pub(super) fn without_fabric(device: Device, error: Error) -> Error {
    let absent =
        matches!(error.code(), Some(CUresult::CUDA_ERROR_NOT_PERMITTED | CUresult::CUDA_ERROR_NOT_SUPPORTED));
    if !absent {
        return error;
    }
    match device.name() {
        Ok(device) => Error::Unsupported { device, what: "fabric handles: this process has no IMEX channel" },
        Err(error) => error,
    }
}

impl Drop for PhysicalMemory {
    fn drop(&mut self) {
        if !fork::forked() {
            self.driver.release(|| self.release());
        }
    }
}

impl_debug!(PhysicalMemory, |it| raw: format_args!("{:#x}", it.raw), bytes: it.bytes);

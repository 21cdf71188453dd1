//! Virtual memory management: addresses and physical memory apart from each other, one function a call. What the pool crate
//! grows its device memory with.
//!
//! [`PhysicalMemory`] has bytes and no address, an [`AddressRange`] addresses and no bytes. Memory that is mapped into a range,
//! whole, is used at its addresses by the devices that [`AddressRange::set_access`] lets in. It may be mapped at several
//! addresses at once: all of them are the same bytes, as work sees them that is ordered one behind the other.
//!
//! ```
//! use cuda_mem_core::vmm::{self, Access, AddressRange, CreateOptions, PhysicalMemory};
//! use cuda_mem_core::{DeviceBuffer, Driver, Stream, copy};
//!
//! let device = Driver::over(cuda_mem_sim::table())?.device(0)?; // in a program: Driver::system()?
//! let stream = Stream::new(&device.primary_context()?)?;
//! let page = vmm::granularity(device)?;
//!
//! let range = AddressRange::reserve(device, 64 * page, 0)?;
//! let memory = PhysicalMemory::create(device, page, &CreateOptions::supported_by(device)?)?;
//! range.map(0, &memory)?;
//! range.map(9 * page, &memory)?;
//! range.set_access(0, page, &[device], Access::ReadWrite)?;
//! range.set_access(9 * page, page, &[device], Access::Read)?;
//!
//! let (source, target) = (DeviceBuffer::from_slice(&stream, b"hello")?, DeviceBuffer::<u8>::uninit(&stream, 5)?);
//! let (one, two) = (range.address(), range.address() + 9 * page as u64);
//! // SAFETY: five bytes of a mapping, and of a buffer of the same stream.
//! unsafe { copy::memcpy_async(&stream, one, source.on_read(&stream)?.address(), 5) }?;
//! // SAFETY: as above.
//! unsafe { copy::memcpy_async(&stream, target.on(&stream)?.address(), two, 5) }?;
//! assert_eq!(target.to_vec(&stream)?, b"hello");
//!
//! for offset in [0, 9 * page] {
//!     // SAFETY: the stream was waited for, and nobody uses these addresses any more.
//!     unsafe { range.unmap(offset, page) }?;
//! }
//! range.close()?;
//! memory.close()?;
//! # Ok::<(), cuda_mem_core::Error>(())
//! ```
//!
//! # Cost
//!
//! None of the calls needs a context or disturbs a capture, in whichever mode and thread (both seen on hardware), so each is one
//! driver call and nothing around it. The driver's time goes with the number of handles, not with their bytes: 1 µs to map one,
//! 20 to 36 to give access, 13 to 17 to unmap, whether a call covers one or many of them (seen on an H200). A process has at most
//! 524,072 mappings at a time there; the next is code 2.
//!
//! # Safety
//!
//! Relies on what is mapped keeping its memory when the handle is released, and on a handle staying valid until then, as
//! `cuMemRelease` documents.

#![allow(unsafe_code, reason = "calls driver functions")]

mod physical;
mod range;
mod share;

use cuda_mem_sys::{
    CUmemAccess_flags, CUmemAccessDesc_v1, CUmemAllocationGranularity_flags, CUmemAllocationType,
    CUmemLocation, CUmemLocationType,
};

use crate::driver::{Device, Driver, refuse_forked};
use crate::error::{Error, Result, call};

pub use physical::{CreateOptions, PhysicalMemory};
pub use range::AddressRange;
pub use share::{FabricHandle, HandleTypes, MemoryProperties, ShareableMemory};

/// What a device may do at mapped addresses. [`AddressRange::set_access`] takes it.
/// The [module](self) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Access {
    /// Nothing, as after the mapping (`CU_MEM_ACCESS_FLAGS_PROT_NONE`).
    None,
    /// Read (`CU_MEM_ACCESS_FLAGS_PROT_READ`).
    Read,
    /// Read and write (`CU_MEM_ACCESS_FLAGS_PROT_READWRITE`).
    ReadWrite,
}

impl Access {
    fn as_raw(self) -> CUmemAccess_flags {
        match self {
            Self::None => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
            Self::Read => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
            Self::ReadWrite => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        }
    }
}

/// What `devices` may do, as the driver is told.
pub(crate) fn access_of(
    driver: Driver,
    devices: &[Device],
    access: Access,
) -> Result<Vec<CUmemAccessDesc_v1>> {
    let entry = |device: &Device| {
        driver.expect_same(device.driver(), "the device")?;
        let location = MemoryLocation::Device(device.as_raw()).as_raw();
        Ok(CUmemAccessDesc_v1 { location, flags: access.as_raw() })
    };
    devices.iter().map(entry).collect()
}

/// What sizes, offsets and addresses of a device's memory are multiples of here, in bytes.
///
/// Wraps [`cuMemGetAllocationGranularity`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html), with the minimum,
/// once for each device.
pub fn granularity(device: Device) -> Result<usize> {
    refuse_forked()?;
    device.driver().constants().granularity.get(device.as_raw(), || {
        let properties = CreateOptions::default().properties(device);
        let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let mut granularity = 0;
        // SAFETY: one size to write; the properties are read during the call.
        unsafe {
            call!(device.driver(), cuMemGetAllocationGranularity(&mut granularity, &properties, minimum))
        }?;
        Ok(granularity)
    })
}

/// Refuses a size that is 0 or not of whole pages.
fn expect_granular(bytes: usize, granularity: usize) -> Result<()> {
    if bytes == 0 || !bytes.is_multiple_of(granularity) {
        return Err(Error::NotGranular { what: "the size", value: bytes, granularity });
    }
    Ok(())
}

/// Where memory lies. [`MemoryPool`](crate::raw_pool::MemoryPool) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryLocation {
    /// No place of its own, for managed memory (`CU_MEM_LOCATION_TYPE_NONE`).
    None,
    /// A device, by the driver's number.
    Device(i32),
    /// Host memory wherever the system puts it (`CU_MEM_LOCATION_TYPE_HOST`). Pools take it from CUDA 13.0 on.
    Host,
    /// One node of the host's memory (`CU_MEM_LOCATION_TYPE_HOST_NUMA`). Pools take it from CUDA 12.6 on.
    HostNuma(i32),
}

impl MemoryLocation {
    /// A device's, or a node's if one is named.
    fn of(device: Device, node: Option<i32>) -> Self {
        node.map_or(Self::Device(device.as_raw()), Self::HostNuma)
    }

    /// What the driver says; none for places that are not known here.
    pub(crate) fn from_raw(raw: CUmemLocation) -> Option<Self> {
        match raw.type_ {
            CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => Some(Self::Device(raw.id)),
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST => Some(Self::Host),
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA => Some(Self::HostNuma(raw.id)),
            _ => None,
        }
    }

    pub(crate) fn as_raw(self) -> CUmemLocation {
        let (kind, id) = match self {
            Self::None => (CUmemLocationType::CU_MEM_LOCATION_TYPE_NONE, 0),
            Self::Device(ordinal) => (CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, ordinal),
            Self::Host => (CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, -1),
            Self::HostNuma(node) => (CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, node),
        };
        CUmemLocation { type_: kind, id }
    }
}

/// What kind of memory a pool has. [`MemoryPool`](crate::raw_pool::MemoryPool) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum AllocationType {
    /// Memory that stays where it is: a device's, or pinned host memory.
    #[default]
    Pinned,
    /// Memory that moves to where it is used. Pools take it from CUDA 13.0 on.
    Managed,
}

impl AllocationType {
    pub(crate) fn as_raw(self) -> CUmemAllocationType {
        match self {
            Self::Pinned => CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            Self::Managed => CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED,
        }
    }
}

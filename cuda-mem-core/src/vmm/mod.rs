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
//! let device = Driver::over(cuda_mem_sim::table())?.device(0)?; // with a GPU: Driver::system()?
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

mod location;
mod physical;
mod range;
mod share;
mod shareable;

use cuda_mem_sys::{CUmemAccess_flags, CUmemAllocationGranularity_flags};

use crate::driver::{Device, refuse_forked};
use crate::error::{Result, call};

pub use location::{AllocationType, MemoryLocation};
pub use physical::{CreateOptions, PhysicalMemory};
pub use range::AddressRange;
pub use share::{FabricHandle, HandleTypes, MemoryProperties};
pub use shareable::ShareableMemory;

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

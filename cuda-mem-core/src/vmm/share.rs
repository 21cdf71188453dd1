//! Memory of one process in another: descriptors and fabric handles, and memory that is exportable by its type.
//!
//! # Safety
//!
//! Relies on the driver opening a descriptor of its own for each export, as `cuMemExportToShareableHandle` documents, on it
//! refusing a descriptor that is no memory (seen on hardware), on it mapping a handle at its whole size only (seen on hardware), and on it
//! writing 64 bytes for a fabric handle, as the function documents.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use bitflags::bitflags;
use cuda_mem_sys::{CUmemAllocationHandleType, CUmemAllocationProp_v1, CUresult};

use super::physical::without_fabric;
use super::{AddressRange, CreateOptions, MemoryLocation, PhysicalMemory, expect_granular, granularity};
use crate::driver::{Device, Relaxed, opaque, refuse_forked};
use crate::error::{Error, Refused, Result, call};

const DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const FABRIC: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;

bitflags! {
    /// The handles that memory can be exported as. [`PhysicalMemory::properties`] tells them, and has an
    /// example.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct HandleTypes: u32 {
        /// POSIX file descriptors, for processes of this host.
        const POSIX_FD = DESCRIPTOR.0;
        /// Fabric handles, for processes of any host that shares the fabric.
        const FABRIC = FABRIC.0;
    }
}

/// What the driver says of memory. [`PhysicalMemory::properties`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryProperties {
    /// Where it lies; none for a kind of place that is not known here.
    pub location: Option<MemoryLocation>,
    /// What it can be exported as.
    pub handle_types: HandleTypes,
    /// Whether network adapters may reach it directly.
    pub gpu_direct_rdma: bool,
}

opaque! {
    /// Names memory for processes that share the fabric: 64 bytes that may travel over any channel.
    /// [`ShareableMemory::export_fabric`](super::ShareableMemory::export_fabric) makes it.
    FabricHandle
}

impl PhysicalMemory {
    /// A descriptor of the memory for other processes. Each call makes a new one, which keeps the memory as a handle does.
    ///
    /// Wraps [`cuMemExportToShareableHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html).
    /// [`ShareableMemory`](super::ShareableMemory) has an example.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]: code 1 if the memory was not made [shareable](super::CreateOptions::shareable), which the type of
    /// [`ShareableMemory`](super::ShareableMemory) rules out.
    pub fn export_posix_fd(&self) -> Result<OwnedFd> {
        let _relaxed = Relaxed::enter(self.driver())?;
        let mut descriptor: c_int = -1;
        let out = (&raw mut descriptor).cast();
        // SAFETY: for this handle type the driver writes one int; a live handle; no flags exist.
        unsafe { call!(self.driver(), cuMemExportToShareableHandle(out, self.as_raw(), DESCRIPTOR, 0)) }?;
        // SAFETY: a descriptor that the driver just opened for us and nobody else owns.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// What the driver says of the memory.
    ///
    /// Wraps [`cuMemGetAllocationPropertiesFromHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html).
    pub fn properties(&self) -> Result<MemoryProperties> {
        refuse_forked()?;
        let mut raw = CUmemAllocationProp_v1::default();
        // SAFETY: one structure to write; a live handle.
        unsafe { call!(self.driver(), cuMemGetAllocationPropertiesFromHandle(&mut raw, self.as_raw())) }?;
        Ok(MemoryProperties {
            location: MemoryLocation::from_raw(raw.location),
            handle_types: HandleTypes::from_bits_retain(raw.requestedHandleTypes.0),
            gpu_direct_rdma: raw.allocFlags.gpuDirectRDMACapable != 0,
        })
    }

    /// The memory behind a descriptor of another process, which said that it has `bytes` bytes of this device.
    ///
    /// Both are checked: the place by what the driver says of it, the size by a mapping for a moment, because the driver maps a
    /// handle as a whole and tells no size. The descriptor stays the caller's and may be closed afterwards.
    ///
    /// Wraps [`cuMemImportFromShareableHandle`, `cuMemGetAllocationPropertiesFromHandle`, `cuMemMap` and
    /// `cuMemUnmap`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html). Needs no context.
    ///
    /// ```
    /// use std::os::fd::AsFd;
    ///
    /// use cuda_mem_core::vmm::{self, CreateOptions, PhysicalMemory};
    /// use cuda_mem_core::{Driver, Error};
    ///
    /// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
    /// let device = driver.device(0)?;
    /// let page = vmm::granularity(device)?;
    /// let memory = PhysicalMemory::create(device, 2 * page, &CreateOptions::supported_by(device)?)?;
    /// let descriptor = memory.export_posix_fd()?;
    ///
    /// // In the other process, which received the descriptor and the size (here the same one).
    /// let theirs = PhysicalMemory::import_posix_fd(device, descriptor.as_fd(), 2 * page)?;
    /// assert_eq!(theirs.bytes(), 2 * page);
    /// let wrong = PhysicalMemory::import_posix_fd(device, descriptor.as_fd(), page);
    /// assert!(matches!(wrong, Err(Error::NotWhole { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotWhole`], [`Error::NotAsDeclared`], [`Error::NotGranular`]; [`Error::Driver`]: code 999 if the descriptor is no memory.
    /// Nothing is imported then.
    pub fn import_posix_fd(device: Device, descriptor: BorrowedFd<'_>, bytes: usize) -> Result<Self> {
        expect_granular(bytes, granularity(device)?)?;
        Self::import_unchecked(device, None, descriptor, bytes)?.expect_whole(device)
    }

    /// As [`PhysicalMemory::import_posix_fd`], or of a node of the host, for callers who map it and so find out whether it has `bytes` bytes.
    pub(crate) fn import_unchecked(
        device: Device,
        node: Option<i32>,
        descriptor: BorrowedFd<'_>,
        bytes: usize,
    ) -> Result<Self> {
        let number = usize::try_from(descriptor.as_raw_fd()).unwrap_or(usize::MAX);
        // The driver takes the number of the descriptor in place of a pointer.
        let handle = ptr::without_provenance_mut(number);
        // SAFETY: an open descriptor, as this kind of handle is given.
        unsafe { import(device, node, handle, DESCRIPTOR, bytes) }
    }

    /// As [`PhysicalMemory::import_posix_fd`], by a fabric handle.
    ///
    /// # Errors
    ///
    /// As there; [`Error::Unsupported`] where there are no fabric handles, and [`Error::Driver`] for bytes that are none.
    pub fn import_fabric(device: Device, handle: &FabricHandle, bytes: usize) -> Result<Self> {
        expect_granular(bytes, granularity(device)?)?;
        let mut raw = handle.bytes;
        // SAFETY: 64 bytes that live until the call returns, as this kind of handle is given.
        let imported = unsafe { import(device, None, raw.as_mut_ptr().cast(), FABRIC, bytes) };
        imported.map_err(|error| without_fabric(device, error))?.expect_whole(device)
    }

    /// Maps the memory in a range, from an offset on where nothing is mapped: [`Error::NotWhole`] if it has another size.
    pub(crate) fn map_whole(&self, range: &AddressRange, offset: usize) -> Result<()> {
        let bytes = self.bytes();
        range.map(offset, self).map_err(|error| match error.code() {
            Some(CUresult::CUDA_ERROR_NOT_SUPPORTED | CUresult::CUDA_ERROR_INVALID_VALUE) => {
                Error::NotWhole { bytes }
            }
            _ => error,
        })
    }

    /// Memory is as large as was said if it can be mapped so.
    fn expect_whole(self, device: Device) -> Result<Self> {
        let range = AddressRange::reserve(device, self.bytes(), 0)?;
        self.map_whole(&range, 0)?;
        device.driver().attempt(|| {
            // SAFETY: the one mapping of these addresses, which nobody else knows.
            unsafe { range.unmap(0, self.bytes()) }
        })?;
        range.close()?;
        Ok(self)
    }
}

/// # Safety
///
/// `handle` is what the driver takes for this kind of handle.
unsafe fn import(
    device: Device,
    node: Option<i32>,
    handle: *mut c_void,
    kind: CUmemAllocationHandleType,
    bytes: usize,
) -> Result<PhysicalMemory> {
    let driver = device.driver();
    let _relaxed = Relaxed::enter(driver)?;
    let mut raw = 0;
    // SAFETY: one handle to write; the caller's promise.
    unsafe { call!(driver, cuMemImportFromShareableHandle(&mut raw, handle, kind)) }?;
    // From here on it is released if anything is wrong.
    let memory = PhysicalMemory::imported(driver, raw, bytes);
    let kind = |place: MemoryLocation| place.as_raw().type_.0.cast_signed();
    let (what, declared, found) = match (MemoryLocation::of(device, node), memory.properties()?.location) {
        (place, Some(found)) if place == found => return Ok(memory),
        (MemoryLocation::Device(place), Some(MemoryLocation::Device(found))) => ("the device", place, found),
        (MemoryLocation::HostNuma(place), Some(MemoryLocation::HostNuma(found))) => {
            ("the node", place, found)
        }
        // A place of another kind has no number among those that were declared.
        (place, found) => ("the kind of place (CUmemLocationType)", kind(place), found.map_or(0, kind)),
    };
    let (declared, found) = (declared.cast_unsigned().into(), found.cast_unsigned().into());
    Err(Error::NotAsDeclared { what, declared, found })
}

/// Memory that was made to be given to other processes.
///
/// ```
/// use cuda_mem_core::vmm::{self, CreateOptions, PhysicalMemory, ShareableMemory};
/// use cuda_mem_core::{Driver, Error};
///
/// let device = Driver::over(cuda_mem_sim::table())?.device(0)?; // in a program: Driver::system()?
/// let page = vmm::granularity(device)?;
/// let memory = ShareableMemory::create(device, page, &CreateOptions::supported_by(device)?)?;
/// let descriptor = memory.export_posix_fd()?; // to be sent over a Unix socket
/// # drop(descriptor);
///
/// let private = PhysicalMemory::create(device, page, &CreateOptions::default())?;
/// let refused = ShareableMemory::new(private).unwrap_err();
/// assert!(matches!(refused.error, Error::NotShareable { .. }));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug)]
pub struct ShareableMemory {
    memory: PhysicalMemory,
    types: HandleTypes,
}

impl ShareableMemory {
    /// New memory of a device that can be exported: [`PhysicalMemory::create`] with [`CreateOptions::shareable`] set.
    /// Errors: as [`PhysicalMemory::create`].
    pub fn create(device: Device, bytes: usize, options: &CreateOptions) -> Result<Self> {
        let options = CreateOptions { shareable: true, ..*options };
        let mut types = HandleTypes::POSIX_FD;
        types.set(HandleTypes::FABRIC, options.fabric);
        Ok(Self { memory: PhysicalMemory::create(device, bytes, &options)?, types })
    }

    /// Memory that the driver says can be exported in any way. It does not say so of imported memory: what is to be passed on is
    /// the descriptor that came.
    ///
    /// # Errors
    ///
    /// The memory comes back with the error: [`Error::NotShareable`].
    pub fn new(memory: PhysicalMemory) -> Result<Self, Refused<PhysicalMemory>> {
        match memory.properties() {
            Ok(properties) if !properties.handle_types.is_empty() => {
                Ok(Self { memory, types: properties.handle_types })
            }
            Ok(_) => Err(Refused::new(Error::NotShareable { what: "a handle of any kind" }, memory)),
            Err(error) => Err(Refused::new(error, memory)),
        }
    }

    /// What it can be exported as.
    #[must_use]
    pub fn handle_types(&self) -> HandleTypes {
        self.types
    }

    /// A descriptor of the memory: [`PhysicalMemory::export_posix_fd`].
    ///
    /// # Errors
    ///
    /// [`Error::NotShareable`] if it was made for fabric handles alone.
    pub fn export_posix_fd(&self) -> Result<OwnedFd> {
        self.expect(HandleTypes::POSIX_FD, "a POSIX file descriptor")?;
        self.memory.export_posix_fd()
    }

    /// A fabric handle of the memory.
    ///
    /// Wraps [`cuMemExportToShareableHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__VA.html) with
    /// `CU_MEM_HANDLE_TYPE_FABRIC`.
    ///
    /// # Errors
    ///
    /// [`Error::NotShareable`] if it was not made for fabric handles.
    pub fn export_fabric(&self) -> Result<FabricHandle> {
        self.expect(HandleTypes::FABRIC, "a fabric handle")?;
        let _relaxed = Relaxed::enter(self.memory.driver())?;
        let mut bytes = [0u8; 64];
        let out = bytes.as_mut_ptr().cast();
        // SAFETY: for this handle type the driver writes 64 bytes; a live handle; no flags exist.
        unsafe {
            call!(self.memory.driver(), cuMemExportToShareableHandle(out, self.memory.as_raw(), FABRIC, 0))
        }?;
        Ok(FabricHandle::from_bytes(bytes))
    }

    fn expect(&self, kind: HandleTypes, what: &'static str) -> Result<()> {
        if self.types.contains(kind) { Ok(()) } else { Err(Error::NotShareable { what }) }
    }

    /// The memory, to be mapped.
    #[must_use]
    pub fn memory(&self) -> &PhysicalMemory {
        &self.memory
    }

    /// The memory alone.
    #[must_use]
    pub fn into_memory(self) -> PhysicalMemory {
        self.memory
    }
}

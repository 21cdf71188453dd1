//! Memory that is exportable by its type.
//!
//! # Safety
//!
//! Relies on the driver writing 64 bytes for a fabric handle, as `cuMemExportToShareableHandle` documents.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::os::fd::OwnedFd;

use super::share::FABRIC;
use super::{CreateOptions, FabricHandle, HandleTypes, PhysicalMemory};
use crate::driver::{Device, Relaxed};
use crate::error::{Error, Refused, Result, call};

/// Memory that was made to be given to other processes.
///
/// ```
/// use cuda_mem_core::vmm::{self, CreateOptions, PhysicalMemory, ShareableMemory};
/// use cuda_mem_core::{Driver, Error};
///
/// let device = Driver::over(cuda_mem_sim::table())?.device(0)?; // with a GPU: Driver::system()?
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

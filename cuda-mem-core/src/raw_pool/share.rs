//! Pools in other processes: descriptors of pools, and names of what was allocated from them.
//!
//! # Safety
//!
//! Relies on the driver opening a descriptor of its own for each export, and on it refusing a descriptor that is no pool's, as
//! its documentation states.

#![allow(unsafe_code, reason = "calls driver functions")]

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use cuda_mem_sys::{CUdeviceptr, CUmemAllocationHandleType, CUmemPoolPtrExportData_v1, CUmemoryPool};

use super::{MemoryPool, Part, owned};
use crate::driver::{Driver, Handle, Relaxed, opaque};
use crate::error::{Error, Result, call};

const DESCRIPTOR: CUmemAllocationHandleType =
    CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

opaque! {
    /// What another process needs, besides the pool, to find an allocation: 64 bytes that may travel over any channel.
    /// [`ImportedBlock`](super::ImportedBlock) has an example.
    PointerExport
}

impl MemoryPool {
    /// A descriptor of the pool for other processes, which is closed in programs that are started (close-on-exec). Each call makes a new one.
    ///
    /// Wraps [`cuMemPoolExportToShareableHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]: code 1 if the pool was not made shareable, or is imported; [`Error::Io`] without room for a descriptor.
    pub fn export(&self) -> Result<OwnedFd> {
        let _relaxed = Relaxed::enter(self.driver)?;
        let mut descriptor: std::ffi::c_int = -1;
        // SAFETY: for this handle type the driver writes one int; a live pool; no flags exist.
        unsafe {
            call!(
                self.driver,
                cuMemPoolExportToShareableHandle((&raw mut descriptor).cast(), self.raw.raw(), DESCRIPTOR, 0)
            )
        }?;
        // SAFETY: a descriptor that the driver just opened for us and nobody else owns.
        let exported = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // The copy is closed in programs that are started, and the driver's is not (seen on hardware).
        exported.try_clone().map_err(|error| Error::Io { call: "dup", source: error.into() })
    }

    /// The pool behind a descriptor of another process. Nothing can be allocated from it, and its attributes and its size are
    /// its own process's to ask for and to set. Who may reach the memory does not travel with it.
    ///
    /// Wraps [`cuMemPoolImportFromShareableHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
    /// The descriptor stays the caller's and may be closed afterwards.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]: code 999 if the descriptor is no pool's.
    pub fn import(driver: Driver, descriptor: BorrowedFd<'_>) -> Result<Self> {
        let _relaxed = Relaxed::enter(driver)?;
        let mut raw: CUmemoryPool = ptr::null_mut();
        let number = usize::try_from(descriptor.as_raw_fd()).unwrap_or(usize::MAX);
        // The driver takes the number of the descriptor in place of a pointer.
        let handle = ptr::without_provenance_mut(number);
        owned::imported(driver, || {
            // SAFETY: one handle to write; an open descriptor; no flags exist.
            unsafe { call!(driver, cuMemPoolImportFromShareableHandle(&mut raw, handle, DESCRIPTOR, 0)) }?;
            Ok(raw.addr())
        })?;
        Ok(Self { driver, raw: Handle::new(raw), part: Part::Owner })
    }

    /// What another process needs to find the allocation that starts at `address`. Its pool is exported before
    /// ([`MemoryPool::export`]).
    ///
    /// Wraps [`cuMemPoolExportPointer`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]: code 1 if none of an exported pool of this process starts there.
    ///
    /// # Safety
    ///
    /// A process that gets the bytes and the pool reads and writes the memory without this process knowing: from now on no slice of
    /// it is taken here, and it is freed only after the other's free.
    pub unsafe fn export_pointer(driver: Driver, address: CUdeviceptr) -> Result<PointerExport> {
        let _relaxed = Relaxed::enter(driver)?;
        let mut data = CUmemPoolPtrExportData_v1 { reserved: [0; 64] };
        // SAFETY: 64 bytes to write; the driver checks the address.
        unsafe { call!(driver, cuMemPoolExportPointer(&mut data, address)) }?;
        Ok(PointerExport { bytes: data.reserved })
    }

    /// The address here of an allocation of the process that this pool was imported from. It is freed with
    /// [`free`](super::free), before the exporter's own free is done. [`ImportedBlock`](super::ImportedBlock) does so by itself.
    ///
    /// Wraps [`cuMemPoolImportPointer`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html). Not ordered
    /// behind the allocation: that takes an event.
    ///
    /// # Errors
    ///
    /// [`Error::Driver`]: code 1 if the bytes are no allocation's of this pool, 208 for host memory that was imported.
    ///
    /// # Safety
    ///
    /// An allocation is imported once at a time in a process: on some drivers a second import succeeds, and the first free
    /// then takes the memory from both. The bytes come from the process that exported the pool.
    pub unsafe fn import_pointer(&self, export: &PointerExport) -> Result<CUdeviceptr> {
        let _relaxed = Relaxed::enter(self.driver)?;
        let mut data = CUmemPoolPtrExportData_v1 { reserved: export.bytes };
        let mut address = 0;
        // SAFETY: one address to write, 64 bytes to read; a live pool; the caller's promise.
        unsafe { call!(self.driver, cuMemPoolImportPointer(&mut address, self.raw.raw(), &mut data)) }?;
        Ok(address)
    }
}

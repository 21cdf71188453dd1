//! A pool's descriptor with its UUID.
//!
//! # Safety
//!
//! Relies on `fcntl` with `F_DUPFD_CLOEXEC` returning a new descriptor or an error, whatever number it is given.

#![allow(unsafe_code, reason = "duplicates descriptors that are given as numbers")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use uuid::Uuid;

use crate::error::{Error, Result};

/// The descriptor of an IPC-enabled pool, closed when it is dropped, and the pool's UUID.
///
/// ```
/// use std::os::fd::AsFd;
///
/// use cuda_mem_core::Driver;
/// use cuda_mem_pool::{DeviceMemoryResource, DeviceMemoryResourceOptions, IpcAllocationHandle};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let options = DeviceMemoryResourceOptions::default().with_ipc_enabled(true);
/// let resource = DeviceMemoryResource::new(&context, &options)?;
/// let handle = resource.allocation_handle()?;
///
/// // In the other process, which received both parts (here the same one).
/// let received = IpcAllocationHandle::new(handle.as_fd().try_clone_to_owned()?, handle.uuid());
/// let mapped = DeviceMemoryResource::from_allocation_handle(&context, &received)?;
/// assert!(mapped.is_mapped());
/// assert_eq!(mapped.uuid(), resource.uuid());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct IpcAllocationHandle {
    descriptor: OwnedFd,
    uuid: Uuid,
}

impl IpcAllocationHandle {
    /// From a descriptor that another process sent, with the UUID that came with it.
    #[must_use]
    pub fn new(descriptor: OwnedFd, uuid: Uuid) -> Self {
        Self { descriptor, uuid }
    }

    /// The UUID of the pool, the same in every process that knows it.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }
}

impl AsFd for IpcAllocationHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl AsRawFd for IpcAllocationHandle {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

/// What a pool can be imported from. A raw descriptor is duplicated: its owner closes it.
///
/// ```
/// use std::os::fd::AsFd;
///
/// use cuda_mem_core::Driver;
/// use cuda_mem_pool::{AllocationHandleSource, DeviceMemoryResource, DeviceMemoryResourceOptions};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let options = DeviceMemoryResourceOptions::default().with_ipc_enabled(true);
/// let resource = DeviceMemoryResource::new(&context, &options)?;
/// let source = AllocationHandleSource::from(resource.allocation_handle()?.as_fd());
/// let mapped = DeviceMemoryResource::from_allocation_handle(&context, source)?;
/// assert_eq!(mapped.uuid(), None); // a bare descriptor does not carry it
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum AllocationHandleSource<'h> {
    /// A handle, whose UUID the imported resource gets.
    Handle(&'h IpcAllocationHandle),
    /// A descriptor without a UUID.
    Descriptor(BorrowedFd<'h>),
    /// The number of a descriptor without a UUID, from [`AllocationHandleSource::from_raw`].
    #[non_exhaustive]
    Raw(RawFd),
}

impl AllocationHandleSource<'_> {
    /// From the number of a descriptor, as other languages pass it. It is duplicated when it is used, and its owner closes it; a
    /// number that is no open descriptor is [`Error::BadDescriptor`] then.
    ///
    /// # Safety
    ///
    /// The descriptor may be used here: it is the caller's own, or lent to the caller, until it was used.
    #[must_use]
    pub unsafe fn from_raw(number: RawFd) -> Self {
        Self::Raw(number)
    }

    pub(crate) fn uuid(&self) -> Option<Uuid> {
        match self {
            Self::Handle(handle) => Some(handle.uuid),
            _ => None,
        }
    }

    /// A descriptor of our own.
    pub(crate) fn duplicate(&self) -> Result<OwnedFd> {
        let number = match self {
            Self::Handle(handle) => handle.as_raw_fd(),
            Self::Descriptor(descriptor) => descriptor.as_raw_fd(),
            Self::Raw(number) => *number,
        };
        // SAFETY: any number may be asked about; the kernel returns a new descriptor or an error.
        let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
        if copy < 0 {
            let source = Arc::new(std::io::Error::last_os_error());
            return Err(Error::BadDescriptor { descriptor: number, source });
        }
        // SAFETY: a descriptor that was just made and that nobody else knows.
        Ok(unsafe { OwnedFd::from_raw_fd(copy) })
    }
}

impl<'h> From<&'h IpcAllocationHandle> for AllocationHandleSource<'h> {
    fn from(handle: &'h IpcAllocationHandle) -> Self {
        Self::Handle(handle)
    }
}

impl<'h> From<BorrowedFd<'h>> for AllocationHandleSource<'h> {
    fn from(descriptor: BorrowedFd<'h>) -> Self {
        Self::Descriptor(descriptor)
    }
}

//! Shares pools with other processes: their descriptors and UUIDs, and the registry that maps an arriving pool once. The
//! `cuda-mem-ipc` crate carries them there.
//!
//! # Safety
//!
//! Relies on `fcntl` with `F_DUPFD_CLOEXEC` returning a new descriptor or an error, whatever number it is given.

#![allow(unsafe_code, reason = "duplicates descriptors that are given as numbers")]

use std::any::Any;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use uuid::Uuid;

use super::pool::DriverPool;
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
    /// Joins a descriptor that another process sent and the UUID that came with it.
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

/// Names a pool to import. A raw descriptor is duplicated: its owner closes it.
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
    /// Names a pool by the number of a descriptor, as other languages pass it. The import duplicates it, and its owner closes it;
    /// the import of a number that is no open descriptor is [`Error::BadDescriptor`].
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

    /// Duplicates the descriptor.
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

/// A resource that can be found by its UUID.
pub(super) trait Registered: Sized {
    /// What a handle shares with its clones.
    type Inner: Send + Sync + 'static;
    /// The type's name.
    const KIND: &'static str;

    fn from_inner(inner: Arc<Self::Inner>) -> Self;
    fn inner(&self) -> &Arc<Self::Inner>;
    fn pool(&self) -> &DriverPool;
}

/// A registered resource, which the registry does not keep alive.
struct Entry {
    kind: &'static str,
    inner: Weak<dyn Any + Send + Sync>,
}

static RESOURCES: Mutex<Option<HashMap<Uuid, Entry>>> = Mutex::new(None);

/// The resource that is registered under `uuid`; `resource` itself if none is.
pub(super) fn register<R: Registered>(uuid: Uuid, resource: R) -> Result<R> {
    refuse_forked()?;
    let mut resources = lock();
    let map = resources.get_or_insert_default();
    // A process that imports and drops pools for ever must not keep a list of them.
    map.retain(|_, entry| entry.inner.strong_count() > 0);
    if let Some(entry) = map.get(&uuid)
        && let Some(known) = entry.upgrade(uuid)?
    {
        drop(resources);
        return Ok(known);
    }
    resource.pool().take_uuid(uuid)?;
    let inner: Arc<dyn Any + Send + Sync> = resource.inner().clone();
    map.insert(uuid, Entry { kind: R::KIND, inner: Arc::downgrade(&inner) });
    Ok(resource)
}

/// The resource that is registered under `uuid`.
pub(super) fn find<R: Registered>(uuid: Uuid) -> Result<R> {
    refuse_forked()?;
    let resources = lock();
    let entry = resources.as_ref().and_then(|map| map.get(&uuid));
    let found = entry.map_or(Ok(None), |entry| entry.upgrade(uuid))?;
    found.ok_or(Error::NotRegistered { uuid })
}

impl Entry {
    /// The resource, if it is still alive.
    fn upgrade<R: Registered>(&self, uuid: Uuid) -> Result<Option<R>> {
        let Some(inner) = self.inner.upgrade() else { return Ok(None) };
        match inner.downcast() {
            Ok(inner) => Ok(Some(R::from_inner(inner))),
            Err(_) => Err(Error::OtherKind { uuid, found: self.kind, asked: R::KIND }),
        }
    }
}

/// Comes before the lock: a thread of the parent may have held it, and what is behind it is the parent's.
fn refuse_forked() -> Result<()> {
    if cuda_mem_core::forked() { Err(cuda_mem_core::Error::Forked.into()) } else { Ok(()) }
}

fn lock() -> MutexGuard<'static, Option<HashMap<Uuid, Entry>>> {
    RESOURCES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes the members of every resource over a driver pool, for a handle with a field `inner` that has a field `pool`.
macro_rules! pool_members {
    () => {
        /// The attributes of the pool, some of which can be set. Makes no driver call by itself.
        #[must_use]
        pub fn attributes(&self) -> $crate::Attributes<'_> {
            $crate::Attributes::new(&self.inner.pool)
        }

        /// Gives memory back to the system until no more than `bytes_to_keep` bytes are held, or all that is left is in use.
        /// What was freed but not synchronised with counts as in use. IPC-enabled pools may ignore it
        /// ([`ThresholdEffect`](crate::ThresholdEffect)).
        ///
        /// Wraps [`cuMemPoolTrimTo`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
        ///
        /// # Errors
        ///
        /// [`Error::Mapped`](crate::Error::Mapped) for another process's pool, or the driver's.
        pub fn trim_to(&self, bytes_to_keep: usize) -> $crate::Result<$crate::ThresholdEffect> {
            self.inner.pool.owners(self.inner.pool.pool().trim_to(bytes_to_keep))?;
            Ok(self.inner.pool.effect())
        }

        /// The driver's handle of the pool, a `CUmemoryPool`. It is valid while a handle to this resource or memory of it lives.
        #[must_use]
        pub fn handle(&self) -> *mut std::ffi::c_void {
            self.inner.pool.pool().as_raw()
        }

        /// Whether the pool is this resource's own, and is destroyed with it.
        #[must_use]
        pub fn is_handle_owned(&self) -> bool {
            self.inner.pool.pool().is_owned()
        }

        /// Lets go of the pool. If it is owned, it is destroyed when the last other handle and the last allocation are gone; if
        /// it is not, nothing happens to it.
        pub fn close(self) {}
    };
}

/// Writes the members of resources that other processes can have.
macro_rules! ipc_members {
    () => {
        /// Whether the pool is, or comes from, one that other processes may be given.
        #[must_use]
        pub fn is_ipc_enabled(&self) -> bool {
            self.inner.pool.is_ipc_enabled()
        }

        /// Whether it is a mapping of another process's pool, from which nothing can be allocated here.
        #[must_use]
        pub fn is_mapped(&self) -> bool {
            self.inner.pool.is_mapped()
        }

        /// The name of an IPC-enabled pool, the same in every process that knows it. None for others, and for one that was
        /// imported from a bare descriptor and not registered yet.
        #[must_use]
        pub fn uuid(&self) -> Option<$crate::Uuid> {
            self.inner.pool.uuid()
        }

        /// What other processes import the pool from. It is exported once, and stays the resource's.
        ///
        /// Wraps [`cuMemPoolExportToShareableHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
        ///
        /// # Errors
        ///
        /// [`Error::NotIpcEnabled`](crate::Error::NotIpcEnabled), [`Error::Mapped`](crate::Error::Mapped) for another process's
        /// pool, or the driver's.
        pub fn allocation_handle(&self) -> $crate::Result<&$crate::IpcAllocationHandle> {
            self.inner.pool.allocation_handle()
        }

        /// Registers this resource under a UUID, and returns the one to use: one that was registered there before and is still
        /// alive, else this one. The registry keeps nothing alive. Makes no driver call.
        ///
        /// # Errors
        ///
        /// [`Error::NotIpcEnabled`](crate::Error::NotIpcEnabled); [`Error::OtherKind`](crate::Error::OtherKind) if a resource of
        /// another kind is registered there; [`Error::OtherUuid`](crate::Error::OtherUuid) if nothing is, and the pool has another UUID;
        /// [`Error::Core`](crate::Error::Core) in a forked child.
        pub fn register(&self, uuid: $crate::Uuid) -> $crate::Result<Self> {
            if !self.is_ipc_enabled() {
                return Err($crate::Error::NotIpcEnabled);
            }
            $crate::driver_pool::sharing::register(uuid, self.clone())
        }

        /// The resource that is registered under a UUID. Makes no driver call.
        ///
        /// # Errors
        ///
        /// [`Error::NotRegistered`](crate::Error::NotRegistered), [`Error::OtherKind`](crate::Error::OtherKind);
        /// [`Error::Core`](crate::Error::Core) in a forked child.
        pub fn from_registry(uuid: $crate::Uuid) -> $crate::Result<Self> {
            $crate::driver_pool::sharing::find(uuid)
        }
    };
}

/// Two handles are equal if they are handles to the same resource.
macro_rules! same_handle {
    ($resource:ident) => {
        impl PartialEq for $resource {
            /// Whether both are handles to the same resource.
            fn eq(&self, other: &Self) -> bool {
                std::sync::Arc::ptr_eq(&self.inner, &other.inner)
            }
        }

        impl Eq for $resource {}
    };
}

/// Lets a resource be found by its UUID.
macro_rules! registered {
    ($resource:ident, $inner:ident) => {
        impl $crate::driver_pool::sharing::Registered for $resource {
            type Inner = $inner;
            const KIND: &'static str = stringify!($resource);

            fn from_inner(inner: Arc<$inner>) -> Self {
                Self { inner }
            }

            fn inner(&self) -> &Arc<$inner> {
                &self.inner
            }

            fn pool(&self) -> &DriverPool {
                &self.inner.pool
            }
        }
    };
}

pub(super) use {ipc_members, pool_members, registered, same_handle};

//! Owns a pool of the driver for a resource: allocates from it, says who reaches it and what it is to other processes, and reads its attributes.
//!
//! # Safety
//!
//! Relies on the driver giving memory of a pool to one receiver until it is freed, aligned to 512 bytes (seen on hardware) and
//! documented to be aligned to 256.

#![allow(unsafe_code, reason = "frees memory of pools by address")]

use std::alloc::Layout;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use cuda_mem_core::raw_pool::{self, MemoryLocation, MemoryPool, PoolProperties};
use cuda_mem_core::sys::{CUdeviceptr, CUmemPool_attribute as Name, CUresult};
use cuda_mem_core::{Context, Device, MemorySource, Result as CoreResult, Stream};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::resource::{DEFAULT_ALIGNMENT, RawResource, ResourceContext};

/// A driver pool in the hands of a resource. One that is owned is destroyed when the last handle and the last allocation are gone.
pub(crate) struct DriverPool {
    pub(super) pool: MemoryPool,
    pub(super) home: ResourceContext,
    pub(super) kind: &'static str,
    /// Where its memory was asked to lie; none for a pool of somebody else.
    pub(super) location: Option<MemoryLocation>,
    max_size: usize,
    role: Role,
}

/// What a pool is to other processes.
enum Role {
    /// Nothing.
    Private,
    /// They may be given it. The descriptor is exported when it is first asked for.
    Shared { uuid: Uuid, descriptor: OnceLock<OwnedFd> },
    /// It is one of theirs.
    Mapped { uuid: OnceLock<Uuid> },
}

impl DriverPool {
    /// Makes a new pool, which keeps what is freed until it is trimmed.
    pub(crate) fn create(
        context: &Context,
        kind: &'static str,
        properties: &PoolProperties,
    ) -> CoreResult<Self> {
        let pool = MemoryPool::create(context.driver(), properties)?;
        // On a shareable pool too: NVIDIA documents that it ignores the threshold, but drivers of CUDA 13.0 do not.
        pool.set_number(Name::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX)?;
        let role = if properties.shareable {
            Role::Shared { uuid: Uuid::new_v4(), descriptor: OnceLock::new() }
        } else {
            Role::Private
        };
        let mut this = Self::with_role(context, kind, pool, role);
        (this.location, this.max_size) = (Some(properties.location), properties.max_size);
        Ok(this)
    }

    pub(crate) fn borrowed(context: &Context, kind: &'static str, pool: MemoryPool) -> Self {
        Self::with_role(context, kind, pool, Role::Private)
    }

    /// Maps a pool of another process.
    pub(crate) fn import(
        context: &Context,
        kind: &'static str,
        descriptor: impl AsFd,
        uuid: Option<Uuid>,
    ) -> Result<Self> {
        let pool = MemoryPool::import(context.driver(), descriptor.as_fd())?;
        let uuid = uuid.map_or_else(OnceLock::new, OnceLock::from);
        Ok(Self::with_role(context, kind, pool, Role::Mapped { uuid }))
    }

    fn with_role(context: &Context, kind: &'static str, pool: MemoryPool, role: Role) -> Self {
        Self { pool, home: ResourceContext::new(context), kind, location: None, max_size: 0, role }
    }

    pub(crate) fn is_ipc_enabled(&self) -> bool {
        !matches!(self.role, Role::Private)
    }

    pub(crate) fn is_mapped(&self) -> bool {
        matches!(self.role, Role::Mapped { .. })
    }

    pub(crate) fn uuid(&self) -> Option<Uuid> {
        match &self.role {
            Role::Private => None,
            Role::Shared { uuid, .. } => Some(*uuid),
            Role::Mapped { uuid } => uuid.get().copied(),
        }
    }

    /// Gives a mapped pool that came without a UUID the one that it is about to be registered under. One that has another is refused.
    pub(crate) fn take_uuid(&self, asked: Uuid) -> Result<()> {
        let own = match &self.role {
            Role::Private => return Err(Error::NotIpcEnabled),
            Role::Shared { uuid, .. } => *uuid,
            Role::Mapped { uuid } => *uuid.get_or_init(|| asked),
        };
        if own == asked { Ok(()) } else { Err(Error::OtherUuid { own, asked }) }
    }

    pub(crate) fn allocation_handle(&self) -> Result<BorrowedFd<'_>> {
        let Role::Shared { descriptor, .. } = &self.role else {
            return Err(if self.is_mapped() { Error::Mapped } else { Error::NotIpcEnabled });
        };
        if let Some(descriptor) = descriptor.get() {
            return Ok(descriptor.as_fd());
        }
        let exported = self.pool.export()?;
        // Of two threads that come first at once, one descriptor is closed again.
        Ok(descriptor.get_or_init(|| exported).as_fd())
    }

    /// Lets exactly these devices reach the memory. A new pool may have the handle of a destroyed one and, on some drivers, that one's
    /// access. Not called when a pool ends, for its memory's release may still wait for other devices' work.
    pub(crate) fn set_accessible_by(&self, devices: &[Device]) -> CoreResult<()> {
        let now = self.accessible_by()?;
        let coming: Vec<_> = devices.iter().copied().filter(|device| !now.contains(device)).collect();
        let going: Vec<_> = now.into_iter().filter(|device| !devices.contains(device)).collect();
        self.pool.set_access(&coming, true)?;
        self.pool.set_access(&going, false)
    }

    pub(crate) fn accessible_by(&self) -> CoreResult<Vec<Device>> {
        let reached =
            |device| self.pool.is_accessible_from(device).map(|is| is.then_some(device)).transpose();
        self.pool.driver().devices()?.into_iter().filter_map(reached).collect()
    }

    /// Turns "invalid value", the driver's answer where only a pool's own process may ask, into [`Error::Mapped`].
    pub(crate) fn owners<T>(&self, result: CoreResult<T>) -> Result<T> {
        match result {
            Err(error) if self.is_mapped() && error.code() == Some(CUresult::CUDA_ERROR_INVALID_VALUE) => {
                Err(Error::Mapped)
            }
            result => Ok(result?),
        }
    }

    #[cold]
    fn explain(&self, error: cuda_mem_core::Error, requested: usize) -> Error {
        match error {
            cuda_mem_core::Error::Capturing { .. } => Error::Capturing,
            error if error.code() == Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => {
                let used = self.pool.number(Name::CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
                let (used, limit) = (used.unwrap_or(0), self.max_size as u64);
                Error::OutOfMemory { requested, used, limit, source: Some(error) }
            }
            other => Error::Core(other),
        }
    }
}

/// Names the kind of pool that the driver knows nothing of.
pub(super) fn refused(place: &'static str, error: cuda_mem_core::Error) -> Error {
    let codes = [CUresult::CUDA_ERROR_INVALID_VALUE, CUresult::CUDA_ERROR_NOT_SUPPORTED];
    match error {
        cuda_mem_core::Error::Driver(source) if codes.contains(&source.code()) => {
            Error::NoSuchPool { place, source }
        }
        other => other.into(),
    }
}

// SAFETY: memory of a driver pool belongs to its receiver until it is freed.
unsafe impl MemorySource for DriverPool {
    unsafe fn deallocate(&self, address: CUdeviceptr, _layout: Layout, stream: &Stream) -> CoreResult<()> {
        // SAFETY: the caller's promise; what came from here came from a pool.
        unsafe { raw_pool::free(address, stream) }
    }
}

// SAFETY: the driver gives memory of the size to one receiver, aligned to 256 bytes.
unsafe impl RawResource for DriverPool {
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        if self.is_mapped() {
            return Err(Error::Mapped);
        }
        if layout.align() > DEFAULT_ALIGNMENT {
            return Err(Error::Alignment { asked: layout.align(), most: DEFAULT_ALIGNMENT });
        }
        self.pool.allocate(layout.size(), stream).map_err(|error| self.explain(error, layout.size()))
    }
}

crate::impl_debug!(DriverPool, |it|
    pool: it.pool, device: it.home.context().device(), location: it.location, max_size: it.max_size,
    ipc_enabled: it.is_ipc_enabled(), mapped: it.is_mapped()
);

/// Reads and sets the attributes of a pool. Each call asks the driver; sizes are in bytes. Those of another process's pool are
/// [`Error::Mapped`](crate::Error::Mapped).
///
/// NVIDIA documents that a pool that other processes can import ignores trimming and thresholds, and keeps its memory until it is
/// destroyed. Drivers of CUDA 13.0 act on them all the same: count on neither.
///
/// Wraps [`cuMemPoolGetAttribute` and `cuMemPoolSetAttribute`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
///
/// ```
/// use cuda_mem_pool::cuda_mem_core::Driver;
/// use cuda_mem_pool::{DeviceMemoryResource, DeviceMemoryResourceOptions};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let resource = DeviceMemoryResource::new(&context, &DeviceMemoryResourceOptions::default())?;
/// assert_eq!(resource.attributes().release_threshold()?, u64::MAX);
/// resource.attributes().set_release_threshold(1 << 30)?;
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'r> {
    pub(super) pool: &'r DriverPool,
}

macro_rules! flags {
    ($($(#[$doc:meta])* $get:ident, $set:ident, $name:ident;)*) => {$(
        $(#[$doc])*
        pub fn $get(&self) -> Result<bool> {
            self.pool.owners(self.pool.pool.flag(Name::$name))
        }

        #[doc = concat!("Sets [`", stringify!($get), "`](Attributes::", stringify!($get), ").")]
        pub fn $set(&self, value: bool) -> Result<()> {
            self.pool.owners(self.pool.pool.set_flag(Name::$name, value))
        }
    )*};
}

macro_rules! sizes {
    ($($(#[$doc:meta])* $get:ident, $name:ident;)*) => {$(
        $(#[$doc])*
        pub fn $get(&self) -> Result<u64> {
            self.pool.owners(self.pool.pool.number(Name::$name))
        }
    )*};
}

impl Attributes<'_> {
    flags! {
        /// Whether memory freed on one stream is reused on another that waits for an event recorded after the free.
        reuse_follow_event_dependencies, set_reuse_follow_event_dependencies,
            CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;
        /// Whether memory is reused on another stream if its free happens to be done already.
        reuse_allow_opportunistic, set_reuse_allow_opportunistic, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC;
        /// Whether the driver may make a stream wait for another so that memory can be reused.
        reuse_allow_internal_dependencies, set_reuse_allow_internal_dependencies,
            CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES;
    }

    sizes! {
        /// How much unused memory stays with the pool when a stream, an event or a context is synchronised with; what is above
        /// goes back to the system. Pools that are made here keep everything (`u64::MAX`).
        release_threshold, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        /// The bytes that the pool holds.
        reserved_mem_current, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
        /// The most that it held since [`Attributes::reset_reserved_mem_high`].
        reserved_mem_high, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
        /// The bytes that are allocated.
        used_mem_current, CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
        /// The most that was allocated since [`Attributes::reset_used_mem_high`].
        used_mem_high, CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    }

    /// Sets [`release_threshold`](Attributes::release_threshold). IPC-enabled pools may ignore it.
    pub fn set_release_threshold(&self, bytes: u64) -> Result<()> {
        self.set(Name::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, bytes)
    }

    /// Sets [`reserved_mem_high`](Attributes::reserved_mem_high) to what is held now.
    pub fn reset_reserved_mem_high(&self) -> Result<()> {
        self.set(Name::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)
    }

    /// Sets [`used_mem_high`](Attributes::used_mem_high) to what is allocated now.
    pub fn reset_used_mem_high(&self) -> Result<()> {
        self.set(Name::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0)
    }

    fn set(&self, name: Name, value: u64) -> Result<()> {
        self.pool.owners(self.pool.pool.set_number(name, value))
    }
}

/// Writes what every resource over a driver pool has, for a type with a field `pool`, an `Arc` of its [`DriverPool`].
macro_rules! resource {
    ($name:ident, $access:ty, on_host: $on_host:literal) => {
        impl $name {
            const KIND: &'static str = stringify!($name);

            fn over(pool: DriverPool) -> Self {
                Self { pool: Arc::new(pool) }
            }

            /// The attributes of the pool, some of which can be set. Makes no driver call by itself.
            #[must_use]
            pub fn attributes(&self) -> $crate::Attributes<'_> {
                $crate::Attributes { pool: &self.pool }
            }

            /// Gives memory back to the system until no more than `bytes_to_keep` bytes are held, or all that is left is in use.
            /// What was freed but not synchronised with counts as in use. IPC-enabled pools may ignore it
            /// ([`Attributes`](crate::Attributes)).
            ///
            /// Wraps [`cuMemPoolTrimTo`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
            pub fn trim_to(&self, bytes_to_keep: usize) -> $crate::Result<()> {
                self.pool.owners(self.pool.pool.trim_to(bytes_to_keep))
            }

            /// The driver's handle of the pool, a `CUmemoryPool`, valid while a handle to this resource or memory of it lives.
            #[must_use]
            pub fn handle(&self) -> *mut std::ffi::c_void {
                self.pool.pool.as_raw()
            }

            /// Whether the pool is this resource's own, and is destroyed with it.
            #[must_use]
            pub fn is_handle_owned(&self) -> bool {
                self.pool.pool.is_owned()
            }

            /// Whether the host reaches the memory.
            #[must_use]
            pub fn is_host_accessible(&self) -> bool {
                $on_host
            }

            /// Whether the pool is, or comes from, one that other processes may be given.
            #[must_use]
            pub fn is_ipc_enabled(&self) -> bool {
                self.pool.is_ipc_enabled()
            }

            /// Whether it is a mapping of another process's pool, from which nothing can be allocated here.
            #[must_use]
            pub fn is_mapped(&self) -> bool {
                self.pool.is_mapped()
            }

            /// The name of an IPC-enabled pool, the same in every process that knows it. None for others, and for one that was
            /// imported without it and not registered yet.
            #[must_use]
            pub fn uuid(&self) -> Option<$crate::Uuid> {
                self.pool.uuid()
            }

            /// The descriptor that other processes import the pool from, with its [`uuid`](Self::uuid). It is exported once, and stays
            /// the resource's.
            ///
            /// Wraps [`cuMemPoolExportToShareableHandle`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
            ///
            /// # Errors
            ///
            /// [`Error::NotIpcEnabled`](crate::Error::NotIpcEnabled), [`Error::Mapped`](crate::Error::Mapped) for another process's
            /// pool, or the driver's.
            pub fn allocation_handle(&self) -> $crate::Result<std::os::fd::BorrowedFd<'_>> {
                self.pool.allocation_handle()
            }

            /// Registers this resource under a UUID, and returns the one to use: one that was registered there before and is still
            /// alive, else this one. The registry keeps nothing alive. Makes no driver call.
            ///
            /// # Errors
            ///
            /// [`Error::NotIpcEnabled`](crate::Error::NotIpcEnabled); [`Error::OtherKind`](crate::Error::OtherKind) if a resource of
            /// another kind is registered there; [`Error::OtherUuid`](crate::Error::OtherUuid) if nothing is, and the pool has another UUID.
            pub fn register(&self, uuid: $crate::Uuid) -> $crate::Result<Self> {
                Ok(Self { pool: $crate::driver_pool::sharing::register(uuid, &self.pool)? })
            }

            /// The resource that is registered under a UUID. Makes no driver call.
            ///
            /// # Errors
            ///
            /// [`Error::NotRegistered`](crate::Error::NotRegistered), [`Error::OtherKind`](crate::Error::OtherKind).
            pub fn from_registry(uuid: $crate::Uuid) -> $crate::Result<Self> {
                Ok(Self { pool: $crate::driver_pool::sharing::find(uuid, Self::KIND)? })
            }

            /// Lets go of the pool. If it is owned, it is destroyed when the last other handle and the last allocation are gone.
            pub fn close(self) {}
        }

        // SAFETY: the pool is of this resource's kind, whose `# Safety` section says who reaches its memory.
        unsafe impl MemoryResource for $name {
            type Access = $access;

            fn raw(&self) -> Arc<dyn RawResource> {
                Arc::clone(&self.pool) as Arc<dyn RawResource>
            }

            fn resource_context(&self) -> &ResourceContext {
                &self.pool.home
            }
        }

        $crate::resource::equal_handles!($name, pool);
    };
}

pub(super) use resource;

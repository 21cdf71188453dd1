//! What the resources over driver pools have in common.
//!
//! # Safety
//!
//! Relies on the driver giving memory of a pool to one receiver until it is freed, aligned to 512 bytes (seen on hardware) and
//! documented to be aligned to 256.

#![allow(unsafe_code, reason = "frees memory of pools by address")]

use std::alloc::Layout;
use std::fmt;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use cuda_mem_core::raw_pool::{self, AllocationType, MemoryLocation, MemoryPool, PoolProperties};
use cuda_mem_core::sys::{CUdeviceptr, CUmemPool_attribute, CUresult};
use cuda_mem_core::{Context, Device, Driver, MemorySource, Stream};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::ipc::{AllocationHandleSource, IpcAllocationHandle};
use crate::resource::{DEFAULT_ALIGNMENT, RawResource, ResourceContext};

/// A driver pool in the hands of a resource. It is destroyed, if it is owned, when the last handle and the last allocation
/// are gone.
pub(crate) struct DriverPool {
    pool: MemoryPool,
    home: ResourceContext,
    max_size: usize,
    role: Role,
}

/// What a pool is to other processes.
enum Role {
    /// Nothing.
    Private,
    /// They may be given it. The handle is exported when it is first asked for.
    Shared { uuid: Uuid, handle: OnceLock<IpcAllocationHandle> },
    /// It is one of theirs.
    Mapped { uuid: OnceLock<Uuid> },
}

impl DriverPool {
    /// A new pool, which keeps what is freed until it is trimmed.
    pub(crate) fn create(
        context: &Context,
        properties: &PoolProperties,
    ) -> Result<Self, cuda_mem_core::Error> {
        let pool = MemoryPool::create(context.driver(), properties)?;
        // On a shareable pool too: NVIDIA documents that it ignores the threshold, but drivers of CUDA 13.0 do not.
        pool.set_number(CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX)?;
        let role = if properties.shareable {
            Role::Shared { uuid: Uuid::new_v4(), handle: OnceLock::new() }
        } else {
            Role::Private
        };
        let this = Self { pool, home: ResourceContext::new(context), max_size: properties.max_size, role };
        if let (AllocationType::Pinned, MemoryLocation::Device(_)) =
            (properties.allocation_type, properties.location)
        {
            this.let_in_alone(context.device())?;
        }
        Ok(this)
    }

    /// A pool of somebody else.
    pub(crate) fn borrowed(context: &Context, pool: MemoryPool) -> Self {
        Self { pool, home: ResourceContext::new(context), max_size: 0, role: Role::Private }
    }

    /// A pool of another process, whose memory lies on `owner`, or on no device.
    pub(crate) fn import(
        context: &Context,
        source: AllocationHandleSource<'_>,
        owner: Option<Device>,
    ) -> Result<Self> {
        let descriptor = source.duplicate()?;
        let pool = MemoryPool::import(context.driver(), descriptor.as_fd())?;
        let uuid = source.uuid().map_or_else(OnceLock::new, OnceLock::from);
        let this =
            Self { pool, home: ResourceContext::new(context), max_size: 0, role: Role::Mapped { uuid } };
        if let Some(owner) = owner {
            this.let_in_alone(owner)?;
        }
        Ok(this)
    }

    /// Lets no other device than the memory's own reach a new pool, which may have the handle of a destroyed one and, on some
    /// drivers, whom that let in. Not when a pool ends: work of others, which its memory's release waits for, may still run then.
    fn let_in_alone(&self, owner: Device) -> Result<(), cuda_mem_core::Error> {
        let mut others = Vec::new();
        for device in self.driver().devices()? {
            if device != owner && self.pool.is_accessible_from(device)? {
                others.push(device);
            }
        }
        self.pool.set_access(&others, false)
    }

    pub(crate) fn pool(&self) -> &MemoryPool {
        &self.pool
    }

    pub(crate) fn resource_context(&self) -> &ResourceContext {
        &self.home
    }

    pub(crate) fn driver(&self) -> Driver {
        self.pool.driver()
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

    pub(crate) fn allocation_handle(&self) -> Result<&IpcAllocationHandle> {
        let Role::Shared { uuid, handle } = &self.role else {
            return Err(if self.is_mapped() { Error::Mapped } else { Error::NotIpcEnabled });
        };
        if let Some(handle) = handle.get() {
            return Ok(handle);
        }
        let exported = IpcAllocationHandle::new(self.pool.export()?, *uuid);
        // Of two threads that come first at once, one descriptor is closed again.
        Ok(handle.get_or_init(|| exported))
    }

    /// Lets every device of the driver reach the memory that can, and does not yet.
    pub(crate) fn grant_all(&self) -> Result<(), cuda_mem_core::Error> {
        let mut missing = Vec::new();
        for device in self.driver().devices()? {
            if !self.pool.is_accessible_from(device)? {
                missing.push(device);
            }
        }
        self.pool.set_access(&missing, true)
    }

    /// The devices that reach the memory.
    pub(crate) fn accessible_by(&self) -> Result<Vec<Device>> {
        let mut devices = Vec::new();
        for device in self.driver().devices()? {
            if self.pool.is_accessible_from(device)? {
                devices.push(device);
            }
        }
        Ok(devices)
    }

    #[cold]
    fn explain(&self, error: cuda_mem_core::Error, requested: usize) -> Error {
        match error {
            cuda_mem_core::Error::Capturing { .. } => Error::Capturing,
            error if error.code() == Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => {
                let used = self.pool.number(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
                let (used, limit) = (used.unwrap_or(0), self.max_size as u64);
                Error::OutOfMemory { requested, used, limit, source: Some(error) }
            }
            other => Error::Core(other),
        }
    }
}

// SAFETY: memory of a driver pool belongs to its receiver until it is freed.
unsafe impl MemorySource for DriverPool {
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        _layout: Layout,
        stream: &Stream,
    ) -> cuda_mem_core::Result<()> {
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

impl fmt::Debug for DriverPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverPool")
            .field("pool", &self.pool)
            .field("max_size", &self.max_size)
            .field("ipc_enabled", &self.is_ipc_enabled())
            .field("mapped", &self.is_mapped())
            .finish_non_exhaustive()
    }
}

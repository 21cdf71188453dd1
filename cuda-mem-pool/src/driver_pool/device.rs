//! Device memory from a pool of the driver.
//!
//! # Safety
//!
//! Says that devices reach the memory; pools of a device have no other.

#![allow(unsafe_code, reason = "is a resource, whose type says who reaches its memory")]

use std::fmt;
use std::sync::Arc;

use cuda_mem_core::raw_pool::{AllocationType, MemoryLocation, MemoryPool, PoolProperties};
use cuda_mem_core::sys::CUmemPool_attribute;
use cuda_mem_core::{Context, Device};

use super::pinned::refused;
use super::pool::DriverPool;
use super::share::{ipc_members, pool_members, registered, same_handle};
use crate::error::{Error, Result};
use crate::ipc::AllocationHandleSource;
use crate::resource::{DeviceAccessible, MemoryResource, RawResource, ResourceContext};

/// How a [`DeviceMemoryResource`] of its own is made.
///
/// ```
/// use cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::{DeviceMemoryResource, DeviceMemoryResourceOptions, Error, MemoryResource};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let options = DeviceMemoryResourceOptions::default().with_max_size(64 << 20);
/// let resource = DeviceMemoryResource::new(&context, &options)?;
/// let refused = resource.allocate(128 << 20, &stream);
/// assert!(matches!(refused, Err(Error::OutOfMemory { limit: 0x400_0000, .. })));
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceMemoryResourceOptions {
    /// Whether other processes may be given the pool.
    pub ipc_enabled: bool,
    /// The most bytes the pool may hold; 0 for no limit. The driver rounds it up.
    pub max_size: usize,
}

impl DeviceMemoryResourceOptions {
    /// Sets [`ipc_enabled`](Self::ipc_enabled).
    #[must_use]
    pub fn with_ipc_enabled(self, ipc_enabled: bool) -> Self {
        Self { ipc_enabled, ..self }
    }

    /// Sets [`max_size`](Self::max_size), in bytes.
    #[must_use]
    pub fn with_max_size(self, max_size: usize) -> Self {
        Self { max_size, ..self }
    }
}

/// Device memory from a stream-ordered pool of the driver.
///
/// ```
/// use cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::{DeviceMemoryResource, DeviceMemoryResourceOptions, MemoryResource};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let options = DeviceMemoryResourceOptions::default().with_max_size(1 << 30);
/// let resource = DeviceMemoryResource::new(&context, &options)?;
/// let block = resource.allocate(4, &stream)?;
/// block.buffer().copy_from_slice(&stream, &[1, 2, 3, 4])?;
/// assert_eq!(block.buffer().to_vec(&stream)?, [1, 2, 3, 4]);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Clone)]
pub struct DeviceMemoryResource {
    inner: Arc<DeviceInner>,
}

pub(crate) struct DeviceInner {
    pool: Arc<DriverPool>,
}

impl DeviceMemoryResource {
    /// With options, a pool of its own on the device of `context`, which keeps what is freed; without,
    /// the device's current pool, or its default one if none was made current. That one stays its owner's; if its release
    /// threshold is 0, as it is unless somebody set it, it is raised, so that freed memory does not go back to the system at
    /// each synchronisation.
    ///
    /// Wraps [`cuMemPoolCreate`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html) or
    /// [`cuDeviceGetMemPool`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html).
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPool`], and the driver's.
    pub fn new<'o>(
        context: &Context,
        options: impl Into<Option<&'o DeviceMemoryResourceOptions>>,
    ) -> Result<Self> {
        let Some(options) = options.into() else {
            let pool = MemoryPool::current_of_device(context.device())?;
            let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            if pool.number(threshold)? == 0 {
                pool.set_number(threshold, u64::MAX)?;
            }
            return Ok(Self::over(DriverPool::borrowed(context, pool)));
        };
        let properties = PoolProperties {
            allocation_type: AllocationType::Pinned,
            location: MemoryLocation::Device(context.device().as_raw()),
            shareable: options.ipc_enabled,
            max_size: options.max_size,
        };
        let pool = DriverPool::create(context, &properties);
        Ok(Self::over(pool.map_err(|error| refused("of this device's memory", error))?))
    }

    /// The pool of another process, from its handle or a descriptor of it, for the device of `context`. Nothing can be allocated
    /// from it here.
    ///
    /// A bare descriptor stays the caller's, who closes it; it is duplicated for the time it is needed. Which devices reach the
    /// memory does not travel with a pool: the device of `context` is let in.
    ///
    /// Wraps [`cuMemPoolImportFromShareableHandle` and `cuMemPoolSetAccess`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::BadDescriptor`], and the driver's.
    pub fn from_allocation_handle<'h>(
        context: &Context,
        handle: impl Into<AllocationHandleSource<'h>>,
    ) -> Result<Self> {
        let pool = DriverPool::import(context, handle.into(), Some(context.device()))?;
        if !pool.pool().is_accessible_from(context.device())? {
            pool.pool().set_access(&[context.device()], true)?;
        }
        Ok(Self::over(pool))
    }

    fn over(pool: DriverPool) -> Self {
        Self { inner: Arc::new(DeviceInner { pool: Arc::new(pool) }) }
    }

    /// The device that the memory lies on.
    #[must_use]
    pub fn device(&self) -> Device {
        self.resource_context().context().device()
    }

    /// The driver's number of that device.
    #[must_use]
    pub fn device_id(&self) -> i32 {
        self.device().as_raw()
    }

    /// Always true.
    #[must_use]
    pub fn is_device_accessible(&self) -> bool {
        true
    }

    /// Always false.
    #[must_use]
    pub fn is_host_accessible(&self) -> bool {
        false
    }

    /// The other devices that reach the memory, as the driver tells.
    ///
    /// Wraps [`cuMemPoolGetAccess`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html), once a device.
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// The driver's.
    pub fn peer_accessible_by(&self) -> Result<Vec<Device>> {
        let mut devices = self.inner.pool.accessible_by()?;
        devices.retain(|device| *device != self.device());
        Ok(devices)
    }

    /// Lets exactly these other devices reach the memory, what is allocated and what will be. The memory's own device always
    /// does. One driver call for those that come in and one for those that go out, however many there are; none if nothing
    /// changes.
    ///
    /// Work of a device that goes out must be over: it would fault.
    ///
    /// Wraps [`cuMemPoolSetAccess`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::NoPeerAccess`] for a device that cannot, before anything is changed; and the driver's.
    pub fn set_peer_accessible_by(&self, devices: &[Device]) -> Result<()> {
        let owner = self.device();
        for device in devices {
            if *device != owner && !device.can_access_peer(owner)? {
                return Err(Error::NoPeerAccess { device: *device, owner });
            }
        }
        let now = self.peer_accessible_by()?;
        let is_new = |device: &Device| *device != owner && !now.contains(device);
        let coming = devices.iter().copied().filter(is_new).collect::<Vec<_>>();
        let going = now.iter().copied().filter(|device| !devices.contains(device)).collect::<Vec<_>>();
        self.inner.pool.pool().set_access(&coming, true)?;
        Ok(self.inner.pool.pool().set_access(&going, false)?)
    }

    pool_members!();
    ipc_members!();
}

// SAFETY: the pool is one of a device's memory.
unsafe impl MemoryResource for DeviceMemoryResource {
    type Access = DeviceAccessible;

    fn raw(&self) -> Arc<dyn RawResource> {
        Arc::clone(&self.inner.pool) as Arc<dyn RawResource>
    }

    fn resource_context(&self) -> &ResourceContext {
        self.inner.pool.resource_context()
    }
}

same_handle!(DeviceMemoryResource);
registered!(DeviceMemoryResource, DeviceInner, Device);

impl fmt::Debug for DeviceMemoryResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemoryResource")
            .field("device", &self.device())
            .field("pool", &self.inner.pool)
            .finish()
    }
}

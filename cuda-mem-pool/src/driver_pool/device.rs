//! Device memory from a pool of the driver.
//!
//! # Safety
//!
//! Says that devices reach the memory, and the host does not.

#![allow(unsafe_code, reason = "is a resource, whose type says who reaches its memory")]

use std::os::fd::AsFd;
use std::sync::Arc;

use cuda_mem_core::raw_pool::{AllocationType, MemoryLocation, MemoryPool, PoolProperties};
use cuda_mem_core::{Context, Device};
use uuid::Uuid;

use super::pool::{DriverPool, refused, resource};
use crate::error::{Error, Result};
use crate::primitive::setters;
use crate::resource::{DeviceAccessible, MemoryResource, RawResource, ResourceContext};

/// How a [`DeviceMemoryResource`] of its own is made. [`DeviceMemoryResource`] has an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceMemoryResourceOptions {
    /// Whether other processes may be given the pool.
    pub ipc_enabled: bool,
    /// The most bytes the pool may hold; 0 for no limit. The driver rounds it up.
    pub max_size: usize,
}

impl DeviceMemoryResourceOptions {
    setters! {
        with_ipc_enabled(ipc_enabled: bool) => ipc_enabled;
        with_max_size(max_size: usize) => max_size;
    }
}

/// Device memory from a stream-ordered pool of the driver.
///
/// ```
/// use cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::{DeviceMemoryResource, DeviceMemoryResourceOptions, Error, MemoryResource};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let options = DeviceMemoryResourceOptions::default().with_max_size(64 << 20);
/// let resource = DeviceMemoryResource::new(&context, &options)?;
/// let block = resource.allocate(4, &stream)?;
/// block.copy_from_slice(&stream, &[1, 2, 3, 4])?;
/// assert_eq!(block.to_vec(&stream)?, [1, 2, 3, 4]);
/// let refused = resource.allocate(128 << 20, &stream);
/// assert!(matches!(refused, Err(Error::OutOfMemory { limit: 0x400_0000, .. })));
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct DeviceMemoryResource {
    pool: Arc<DriverPool>,
}

resource!(DeviceMemoryResource, DeviceAccessible, on_host: false);

impl DeviceMemoryResource {
    /// With options, makes a pool of its own on the device of `context`, which keeps what is freed. Without, uses the device's
    /// current pool, or its default one if none was made current, and changes nothing about it.
    ///
    /// The release threshold of a default pool is 0 bytes unless the program set it: freed memory goes back to the system at each
    /// synchronisation. [`set_release_threshold`](crate::Attributes::set_release_threshold) keeps it, for the whole process.
    ///
    /// Wraps [`cuMemPoolCreate`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html) or
    /// [`cuDeviceGetMemPool`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html).
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPool`]; `ForeignPool` in [`Error::Core`] if another library's pool is current; and the driver's.
    pub fn new<'o>(
        context: &Context,
        options: impl Into<Option<&'o DeviceMemoryResourceOptions>>,
    ) -> Result<Self> {
        let Some(options) = options.into() else {
            let pool = MemoryPool::current_of_device(context.device())?;
            return Ok(Self::over(DriverPool::borrowed(context, Self::KIND, pool)));
        };
        let properties = PoolProperties {
            allocation_type: AllocationType::Pinned,
            location: MemoryLocation::Device(context.device().as_raw()),
            shareable: options.ipc_enabled,
            max_size: options.max_size,
        };
        let pool = DriverPool::create(context, Self::KIND, &properties);
        let pool = pool.map_err(|error| refused("of this device's memory", error))?;
        pool.set_accessible_by(&[context.device()])?;
        Ok(Self::over(pool))
    }

    /// Imports the pool of another process, from a descriptor of it, for the device of `context`. Nothing can be
    /// allocated from it here. The descriptor stays the caller's, who names a number by
    /// [`BorrowedFd::borrow_raw`](std::os::fd::BorrowedFd::borrow_raw).
    ///
    /// Access does not travel with a pool: the device of `context` is granted it.
    ///
    /// Wraps [`cuMemPoolImportFromShareableHandle` and `cuMemPoolSetAccess`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
    pub fn from_allocation_handle(
        context: &Context,
        handle: impl AsFd,
        uuid: impl Into<Option<Uuid>>,
    ) -> Result<Self> {
        let pool = DriverPool::import(context, Self::KIND, handle, uuid.into())?;
        pool.set_accessible_by(&[context.device()])?;
        Ok(Self::over(pool))
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

    /// The other devices that reach the memory, as the driver tells.
    ///
    /// Wraps [`cuMemPoolGetAccess`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html), once a device.
    pub fn peer_accessible_by(&self) -> Result<Vec<Device>> {
        let mut devices = self.pool.accessible_by()?;
        devices.retain(|device| *device != self.device());
        Ok(devices)
    }

    /// Grants exactly these other devices access to the pool's memory, present and future. Makes one driver call for all devices that
    /// gain access and one for all that lose it, whose work must be over: it would fault.
    ///
    /// Wraps [`cuMemPoolSetAccess`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
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
        Ok(self.pool.set_accessible_by(&[devices, &[owner]].concat())?)
    }
}

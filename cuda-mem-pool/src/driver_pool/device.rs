//! Device memory and managed memory from pools of the driver.
//!
//! # Safety
//!
//! Says who reaches the memory. Pools of a device have memory that its devices reach. Managed memory is readable and writable by
//! the host whenever no device uses it; devices that do not allow it meanwhile too are refused.

#![allow(unsafe_code, reason = "is a resource, whose type says who reaches its memory")]

use std::os::fd::AsFd;
use std::sync::Arc;

use cuda_mem_core::raw_pool::{AllocationType, MemoryLocation, MemoryPool, PoolProperties};
use cuda_mem_core::sys::CUdevice_attribute;
use cuda_mem_core::{Context, Device};
use uuid::Uuid;

use super::pinned::{expect_numa_id, explain_numa, refused};
use super::pool::{DriverPool, resource};
use super::sharing::ipc_members;
use crate::error::{Error, Result};
use crate::primitive::setters;
use crate::resource::{DeviceAccessible, HostDeviceAccessible, MemoryResource, RawResource, ResourceContext};

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
    /// The release threshold of a default pool is 0 bytes unless somebody set it: freed memory goes back to the system at each
    /// synchronisation. [`set_release_threshold`](crate::Attributes::set_release_threshold) keeps it, for the whole process.
    ///
    /// Wraps [`cuMemPoolCreate`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html) or
    /// [`cuDeviceGetMemPool`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html).
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
            return Ok(Self::over(DriverPool::borrowed(context, Self::KIND, pool)));
        };
        let properties = PoolProperties {
            allocation_type: AllocationType::Pinned,
            location: MemoryLocation::Device(context.device().as_raw()),
            shareable: options.ipc_enabled,
            max_size: options.max_size,
        };
        let pool = DriverPool::create(context, Self::KIND, &properties);
        Ok(Self::over(pool.map_err(|error| refused("of this device's memory", error))?))
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
        let device = context.device();
        let pool = DriverPool::import(context, Self::KIND, handle, uuid.into(), Some(device))?;
        if !pool.pool.is_accessible_from(device)? {
            pool.pool.set_access(&[device], true)?;
        }
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
        let now = self.peer_accessible_by()?;
        let is_new = |device: &Device| *device != owner && !now.contains(device);
        let coming = devices.iter().copied().filter(is_new).collect::<Vec<_>>();
        let going = now.iter().copied().filter(|device| !devices.contains(device)).collect::<Vec<_>>();
        self.pool.pool.set_access(&coming, true)?;
        Ok(self.pool.pool.set_access(&going, false)?)
    }

    ipc_members!();
}

/// The first driver with pools of managed memory.
const MANAGED_POOLS: i32 = 13000;

/// Managed memory from a stream-ordered pool of the driver: it moves to where it is used.
///
/// ```
/// use cuda_mem_pool::cuda_mem_core::raw_pool::MemoryLocation;
/// use cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::{ManagedMemoryResource, MemoryResource};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let resource = ManagedMemoryResource::new(&context, MemoryLocation::Device(0))?;
/// let mut block = resource.allocate(4096, &stream)?;
/// block.as_mut_slice()?.fill(1);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct ManagedMemoryResource {
    pool: Arc<DriverPool>,
}

resource!(ManagedMemoryResource, HostDeviceAccessible, on_host: true);

impl ManagedMemoryResource {
    /// With a preferred location, makes a pool of its own, which keeps what is freed; [`MemoryLocation::None`] is no preference. Without,
    /// uses the current pool of managed memory, or the default one if none was made current, and changes nothing about it: see
    /// [`DeviceMemoryResource::new`] for its threshold.
    ///
    /// Wraps [`cuMemPoolCreate` and `cuMemGetMemPool`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
    ///
    /// # Errors
    ///
    /// [`Error::NeedsDriver`] before CUDA 13.0; [`Error::Unsupported`] if a device cannot use managed memory while the host
    /// does; [`Error::NegativeNumaId`], [`Error::NoSuchNumaNode`], [`Error::NoSuchPool`], and the driver's.
    pub fn new(context: &Context, preferred_location: impl Into<Option<MemoryLocation>>) -> Result<Self> {
        let driver = context.driver();
        let has = driver.version();
        if has < MANAGED_POOLS {
            let (what, instead) = ("a pool of managed memory", "use ManagedBuffer");
            return Err(Error::NeedsDriver { what, needs: MANAGED_POOLS, has, instead });
        }
        for device in driver.devices()? {
            if !device.supports(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)? {
                return Err(Error::Unsupported {
                    device,
                    what: "managed memory that the host uses meanwhile",
                });
            }
        }
        let Some(location) = preferred_location.into() else {
            let pool = MemoryPool::current(driver, MemoryLocation::None, AllocationType::Managed)?;
            return Ok(Self::over(DriverPool::borrowed(context, Self::KIND, pool)));
        };
        if let MemoryLocation::HostNuma(node) = location {
            expect_numa_id(node)?;
        }
        let allocation_type = AllocationType::Managed;
        // The driver takes no limit for managed memory.
        let properties = PoolProperties { allocation_type, location, shareable: false, max_size: 0 };
        let pool = DriverPool::create(context, Self::KIND, &properties).map_err(|error| match location {
            MemoryLocation::HostNuma(node) => explain_numa(driver, node, error),
            _ => refused("of managed memory in this place", error),
        })?;
        Ok(Self::over(pool))
    }

    /// Where the memory stays until it is used elsewhere; `None` for no preference.
    #[must_use]
    pub fn preferred_location(&self) -> Option<MemoryLocation> {
        self.pool.location.filter(|location| *location != MemoryLocation::None)
    }

    /// The number of the device that is the preferred location; -1 if none is.
    #[must_use]
    pub fn device_id(&self) -> i32 {
        if let Some(MemoryLocation::Device(ordinal)) = self.pool.location { ordinal } else { -1 }
    }
}

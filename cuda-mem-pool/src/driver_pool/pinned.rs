//! Pinned host memory from a pool of the driver.
//!
//! # Safety
//!
//! Says that the host reaches the memory: relies on memory of host pools lying where the driver says in the host's address space.
//! Memory of the driver has come from no allocation that the compiler knows: whatever is there counts as initialised. A pool that was
//! imported as one may be any, and gives no memory here.

#![allow(unsafe_code, reason = "is a resource, whose type says who reaches its memory")]

use std::os::fd::AsFd;
use std::sync::Arc;

use cuda_mem_core::raw_pool::{AllocationType, MemoryLocation, MemoryPool, PoolProperties};
use cuda_mem_core::sys::{CUdevice_attribute, CUresult};
use cuda_mem_core::{Context, Device, Driver};
use uuid::Uuid;

use super::pool::{DriverPool, refused, resource};
use crate::error::{Error, Result};
use crate::primitive::setters;
use crate::resource::{HostDeviceAccessible, MemoryResource, RawResource, ResourceContext};

/// The first driver with pools of host memory that is on no node in particular, and with a current pool a location.
const HOST_POOLS: i32 = 13000;

/// More nodes than machines with GPUs have.
const NODES: i32 = 64;

/// How a [`PinnedMemoryResource`] of its own is made. [`PinnedMemoryResource`] has an example.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PinnedMemoryResourceOptions {
    /// Whether other processes may be given the pool. Without `numa_id` it then lies on the node next to the device.
    pub ipc_enabled: bool,
    /// The most bytes the pool may hold; 0 for no limit. The driver rounds it up.
    pub max_size: usize,
    /// The NUMA node that the memory lies on; none leaves it to the system (or to the device, with `ipc_enabled`).
    pub numa_id: Option<i32>,
}

impl PinnedMemoryResourceOptions {
    setters! {
        with_ipc_enabled(ipc_enabled: bool) => ipc_enabled;
        with_max_size(max_size: usize) => max_size;
        with_numa_id(numa_id: impl Into<Option<i32>>) => numa_id.into();
    }

    /// Sets [`numa_id`](Self::numa_id) to the node next to a device.
    ///
    /// Wraps [`cuDeviceGetAttribute`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__DEVICE.html) with
    /// `CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID`.
    ///
    /// # Errors
    ///
    /// [`Error::NoNumaNode`] if the device does not tell.
    pub fn near(self, device: Device) -> Result<Self> {
        Ok(self.with_numa_id(node_of(device)?))
    }
}

/// Pinned host memory from a stream-ordered pool of the driver, which host and devices reach.
///
/// A pool of its own keeps what is freed, so that the next allocation takes microseconds: see
/// [`Attributes::release_threshold`](crate::Attributes::release_threshold) and [`trim_to`](Self::trim_to). All devices of the driver are
/// granted access, which host pools give to none by themselves.
///
/// ```
/// use cuda_mem_pool::cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::{Error, MemoryResource, PinnedMemoryResource, PinnedMemoryResourceOptions};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // in a program: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let options = PinnedMemoryResourceOptions::default().near(context.device())?;
/// let resource = PinnedMemoryResource::new(&context, &options)?;
/// let mut block = resource.allocate(4096, None)?;
/// block.as_mut_slice()?[0] = 7;
/// assert_eq!(resource.numa_id(), 0);
/// assert!(resource.is_device_accessible()?);
/// let refused = PinnedMemoryResource::new(&context, &options.with_numa_id(7));
/// assert!(matches!(refused, Err(Error::NoSuchNumaNode { numa_id: 7, nodes }) if nodes == [0]));
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct PinnedMemoryResource {
    pool: Arc<DriverPool>,
}

resource!(PinnedMemoryResource, HostDeviceAccessible, on_host: true);

impl PinnedMemoryResource {
    /// With options, a pool of its own; without, the pool that is current for host memory, or the default one if none was made
    /// current: that one stays its owner's, and is only made reachable from the devices.
    ///
    /// `context` is where the internal stream runs, and its device the one that an IPC-enabled pool without a node lies next to.
    ///
    /// Wraps [`cuMemPoolCreate`, `cuMemGetMemPool` and `cuMemPoolSetAccess`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
    ///
    /// # Errors
    ///
    /// [`Error::NeedsDriver`] before CUDA 13.0 without options or without a node, [`Error::NegativeNumaId`],
    /// [`Error::NoSuchNumaNode`], [`Error::NoNumaNode`], [`Error::NoSuchPool`], [`Error::Core`] (`ForeignPool`: another library's).
    pub fn new<'o>(
        context: &Context,
        options: impl Into<Option<&'o PinnedMemoryResourceOptions>>,
    ) -> Result<Self> {
        let driver = context.driver();
        let Some(options) = options.into() else {
            expect_host_pools(driver, "the current pool of host memory", "pass options with a numa_id")?;
            let pool = MemoryPool::current(driver, MemoryLocation::Host, AllocationType::Pinned)?;
            return Self::reachable(DriverPool::borrowed(context, Self::KIND, pool));
        };
        let numa_id = match options.numa_id {
            Some(numa_id) if numa_id < 0 => return Err(Error::NegativeNumaId { numa_id }),
            Some(numa_id) => Some(numa_id),
            None if options.ipc_enabled => Some(node_of(context.device())?),
            None => {
                expect_host_pools(driver, "a pool of host memory on no node in particular", "set numa_id")?;
                None
            }
        };
        let properties = PoolProperties {
            allocation_type: AllocationType::Pinned,
            location: numa_id.map_or(MemoryLocation::Host, MemoryLocation::HostNuma),
            shareable: options.ipc_enabled,
            max_size: options.max_size,
        };
        let pool = DriverPool::create(context, Self::KIND, &properties).map_err(|error| match numa_id {
            Some(numa_id) => explain_numa(driver, numa_id, error),
            None => refused("of host memory", error),
        })?;
        Self::reachable(pool)
    }

    /// As [`PinnedMemoryResource::new`], on the device whose context is current in the calling thread. If none is, it works in
    /// the primary context of device 0.
    ///
    /// Adds [`cuDevicePrimaryCtxRetain`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__PRIMARY__CTX.html) to it.
    ///
    /// # Errors
    ///
    /// As there; [`Error::NoCurrentContext`] for an IPC-enabled pool without a node if no context is current.
    pub fn on_current_device<'o>(
        driver: Driver,
        options: impl Into<Option<&'o PinnedMemoryResourceOptions>>,
    ) -> Result<Self> {
        let options = options.into();
        let device = match driver.current_device()? {
            Some(device) => device,
            None if options.is_some_and(|options| options.ipc_enabled && options.numa_id.is_none()) => {
                return Err(Error::NoCurrentContext { what: "an IPC-enabled pinned pool" });
            }
            None => driver.device(0)?,
        };
        Self::new(&device.primary_context()?, options)
    }

    /// Imports the pool of another process, from a descriptor of it. Nothing can be allocated from it here; the
    /// devices of this process are granted access. The descriptor stays the caller's, who names a number by
    /// [`BorrowedFd::borrow_raw`](std::os::fd::BorrowedFd::borrow_raw).
    ///
    /// Drop its last buffer and the pool before anything waits for that buffer's stream: on hardware, a wait between the last free and the end
    /// of an imported pool left addresses where nothing can be mapped any more (code 208). `docs/ipc.md` says more.
    ///
    /// Wraps [`cuMemPoolImportFromShareableHandle` and `cuMemPoolSetAccess`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
    pub fn from_allocation_handle(
        context: &Context,
        handle: impl AsFd,
        uuid: impl Into<Option<Uuid>>,
    ) -> Result<Self> {
        Self::reachable(DriverPool::import(context, Self::KIND, handle, uuid.into())?)
    }

    fn reachable(pool: DriverPool) -> Result<Self> {
        pool.set_accessible_by(&pool.pool.driver().devices()?)?;
        Ok(Self::over(pool))
    }

    /// Always -1: host memory is on no device.
    #[must_use]
    pub fn device_id(&self) -> i32 {
        -1
    }

    /// The NUMA node that the memory was asked to lie on; -1 if the system chooses, and for another process's pool.
    #[must_use]
    pub fn numa_id(&self) -> i32 {
        if let Some(MemoryLocation::HostNuma(node)) = self.pool.location { node } else { -1 }
    }

    /// Whether every device of the driver reaches the memory, as the driver tells.
    ///
    /// Wraps [`cuMemPoolGetAccess`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html), once a device.
    pub fn is_device_accessible(&self) -> Result<bool> {
        Ok(self.pool.accessible_by()?.len() == self.pool.pool.driver().device_count()?)
    }
}

fn expect_host_pools(driver: Driver, what: &'static str, instead: &'static str) -> Result<()> {
    let (needs, has) = (HOST_POOLS, driver.version());
    if has < needs { Err(Error::NeedsDriver { what, needs, has, instead }) } else { Ok(()) }
}

fn node_of(device: Device) -> Result<i32> {
    match device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID) {
        Ok(node) if node >= 0 => Ok(node),
        // Drivers that do not know the attribute, and systems without nodes.
        Err(error) if error.code() != Some(CUresult::CUDA_ERROR_INVALID_VALUE) => Err(error.into()),
        _ => Err(Error::NoNumaNode { device }),
    }
}

/// Why the driver makes no pool on a node, after it said that the value is invalid.
#[cold]
fn explain_numa(driver: Driver, numa_id: i32, error: cuda_mem_core::Error) -> Error {
    if error.code() != Some(CUresult::CUDA_ERROR_INVALID_VALUE) {
        return error.into();
    }
    // Asked of the driver and not of the system: a container, or a driver, may know fewer.
    let takes = |node: &i32| {
        let properties = PoolProperties {
            allocation_type: AllocationType::Pinned,
            location: MemoryLocation::HostNuma(*node),
            shareable: false,
            max_size: 0,
        };
        MemoryPool::create(driver, &properties).is_ok()
    };
    let nodes = (0..NODES).filter(takes).collect::<Vec<_>>();
    if nodes.is_empty() {
        return refused("on NUMA nodes of the host (CUDA 12.6 and newer have them)", error);
    }
    if nodes.contains(&numa_id) { error.into() } else { Error::NoSuchNumaNode { numa_id, nodes } }
}

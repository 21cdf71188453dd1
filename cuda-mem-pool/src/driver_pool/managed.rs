//! Managed memory from a pool of the driver.
//!
//! # Safety
//!
//! Says that the host reaches the memory: relies on managed memory being readable and writable by the host whenever no device uses
//! it, and with devices that allow it meanwhile too; others are refused.

#![allow(unsafe_code, reason = "is a resource, whose type says who reaches its memory")]

use std::fmt;
use std::sync::Arc;

use cuda_mem_core::Context;
use cuda_mem_core::raw_pool::{AllocationType, MemoryLocation, MemoryPool, PoolProperties};
use cuda_mem_core::sys::{CUdevice_attribute, CUmemPool_attribute};

use super::numa;
use super::pinned::refused;
use super::pool::DriverPool;
use super::share::{pool_members, same_handle};
use crate::error::{Error, Result};
use crate::resource::{HostDeviceAccessible, MemoryResource, RawResource, ResourceContext};

/// The first driver with pools of managed memory.
const MANAGED_POOLS: i32 = 13000;

/// How a [`ManagedMemoryResource`] of its own is made.
///
/// ```
/// use cuda_mem_core::{Driver, raw_pool::MemoryLocation};
/// use cuda_mem_pool::{ManagedMemoryResource, ManagedMemoryResourceOptions};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let options = ManagedMemoryResourceOptions::default().with_preferred_location(MemoryLocation::Device(0));
/// assert_eq!(ManagedMemoryResource::new(&context, &options)?.device_id(), 0);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManagedMemoryResourceOptions {
    /// Where the memory is kept as long as nothing draws it elsewhere: a device, the host, or a node of it.
    pub preferred_location: Option<MemoryLocation>,
}

impl ManagedMemoryResourceOptions {
    /// Sets [`preferred_location`](Self::preferred_location).
    #[must_use]
    pub fn with_preferred_location(self, location: impl Into<Option<MemoryLocation>>) -> Self {
        Self { preferred_location: location.into() }
    }
}

/// Managed memory from a stream-ordered pool of the driver: it moves to where it is used.
///
/// ```
/// use cuda_mem_core::{Driver, Stream};
/// use cuda_mem_pool::{ManagedMemoryResource, ManagedMemoryResourceOptions, MemoryResource};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let stream = Stream::new(&context)?;
/// let resource = ManagedMemoryResource::new(&context, &ManagedMemoryResourceOptions::default())?;
/// let mut block = resource.allocate(4096, &stream)?;
/// block.as_mut_slice()?.fill(1);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Clone)]
pub struct ManagedMemoryResource {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Arc<DriverPool>,
    preferred_location: Option<MemoryLocation>,
}

impl ManagedMemoryResource {
    /// With options, a pool of its own, which keeps what is freed; without, the current pool of managed memory, or the default
    /// one if none was made current. That one stays its owner's; a release threshold of 0 is raised.
    ///
    /// Wraps [`cuMemPoolCreate` and `cuMemGetMemPool`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::NeedsDriver`] before CUDA 13.0; [`Error::Unsupported`] if a device cannot use managed memory while the host
    /// does; [`Error::NegativeNumaId`], [`Error::NoSuchNumaNode`], [`Error::NoSuchPool`], and the driver's.
    pub fn new<'o>(
        context: &Context,
        options: impl Into<Option<&'o ManagedMemoryResourceOptions>>,
    ) -> Result<Self> {
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
        let Some(options) = options.into() else {
            let pool = MemoryPool::current(driver, MemoryLocation::None, AllocationType::Managed)?;
            let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
            if pool.number(threshold)? == 0 {
                pool.set_number(threshold, u64::MAX)?;
            }
            return Ok(Self::over(DriverPool::borrowed(context, pool), None));
        };
        if let Some(MemoryLocation::HostNuma(node)) = options.preferred_location {
            numa::expect_number(node)?;
        }
        let properties = PoolProperties {
            allocation_type: AllocationType::Managed,
            location: options.preferred_location.unwrap_or(MemoryLocation::None),
            shareable: false,
            // The driver takes no limit for managed memory.
            max_size: 0,
        };
        let pool =
            DriverPool::create(context, &properties).map_err(|error| match options.preferred_location {
                Some(MemoryLocation::HostNuma(node)) => numa::explain(driver, node, error),
                _ => refused("of managed memory in this place", error),
            })?;
        Ok(Self::over(pool, options.preferred_location))
    }

    fn over(pool: DriverPool, preferred_location: Option<MemoryLocation>) -> Self {
        Self { inner: Arc::new(Inner { pool: Arc::new(pool), preferred_location }) }
    }

    /// Where the memory is kept as long as nothing draws it elsewhere; none if nowhere in particular.
    #[must_use]
    pub fn preferred_location(&self) -> Option<MemoryLocation> {
        self.inner.preferred_location
    }

    /// The number of the device that is the preferred location; -1 if none is.
    #[must_use]
    pub fn device_id(&self) -> i32 {
        match self.inner.preferred_location {
            Some(MemoryLocation::Device(ordinal)) => ordinal,
            _ => -1,
        }
    }

    /// Always true.
    #[must_use]
    pub fn is_device_accessible(&self) -> bool {
        true
    }

    /// Always true.
    #[must_use]
    pub fn is_host_accessible(&self) -> bool {
        true
    }

    pool_members!();
}

// SAFETY: the pool is one of managed memory, on devices that all allow the host to use it meanwhile.
unsafe impl MemoryResource for ManagedMemoryResource {
    type Access = HostDeviceAccessible;

    fn raw(&self) -> Arc<dyn RawResource> {
        Arc::clone(&self.inner.pool) as Arc<dyn RawResource>
    }

    fn resource_context(&self) -> &ResourceContext {
        self.inner.pool.resource_context()
    }
}

same_handle!(ManagedMemoryResource);

impl fmt::Debug for ManagedMemoryResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagedMemoryResource")
            .field("pool", &self.inner.pool)
            .field("preferred_location", &self.inner.preferred_location)
            .finish()
    }
}

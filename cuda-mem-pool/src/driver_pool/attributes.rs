//! The attributes of a driver pool, as they are when they are asked for.

use cuda_mem_core::sys::{CUmemPool_attribute as Name, CUresult};

use super::pool::DriverPool;
use crate::error::{Error, Result};

/// Whether trimming and thresholds have an effect.
///
/// ```
/// use cuda_mem_core::Driver;
/// use cuda_mem_pool::{DeviceMemoryResource, DeviceMemoryResourceOptions, ThresholdEffect};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let private = DeviceMemoryResourceOptions::default();
/// let shared = private.with_ipc_enabled(true);
/// assert_eq!(DeviceMemoryResource::new(&context, &private)?.trim_to(0)?, ThresholdEffect::Applied);
/// assert_eq!(DeviceMemoryResource::new(&context, &shared)?.trim_to(0)?, ThresholdEffect::MayBeIgnored);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "on an IPC-enabled pool it may be ignored"]
pub enum ThresholdEffect {
    /// They have.
    Applied,
    /// NVIDIA documents that a pool which other processes may be given ignores them and keeps its memory until it is destroyed.
    /// Drivers of CUDA 13.0 were seen to act on them all the same; do not count on either.
    MayBeIgnored,
}

/// The attributes of a pool. Each call asks the driver; sizes are in bytes.
///
/// Wraps [`cuMemPoolGetAttribute` and `cuMemPoolSetAttribute`](https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html).
/// May be used while streams capture. The attributes of a mapping of another process's pool are that process's:
/// [`Error::Mapped`](crate::Error::Mapped). Every other error is the driver's.
///
/// ```
/// use cuda_mem_core::Driver;
/// use cuda_mem_pool::{DeviceMemoryResource, DeviceMemoryResourceOptions, ThresholdEffect};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let context = driver.device(0)?.primary_context()?;
/// let resource = DeviceMemoryResource::new(&context, &DeviceMemoryResourceOptions::default())?;
/// assert_eq!(resource.attributes().release_threshold()?, u64::MAX);
/// assert_eq!(resource.attributes().set_release_threshold(1 << 30)?, ThresholdEffect::Applied);
/// # Ok::<(), cuda_mem_pool::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'r> {
    pool: &'r DriverPool,
}

macro_rules! flags {
    ($($(#[$doc:meta])* $get:ident, $set:ident, $name:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Capture
        ///
        /// May be called while streams capture.
        ///
        /// # Errors
        ///
        /// [`Error::Mapped`] for another process's pool, or the driver's.
        pub fn $get(&self) -> Result<bool> {
            self.pool.owners(self.pool.pool().flag(Name::$name))
        }

        #[doc = concat!("Sets [`", stringify!($get), "`](Attributes::", stringify!($get), ").")]
        ///
        /// # Capture
        ///
        /// May be called while streams capture.
        ///
        /// # Errors
        ///
        /// [`Error::Mapped`] for another process's pool, or the driver's.
        pub fn $set(&self, value: bool) -> Result<()> {
            self.pool.owners(self.pool.pool().set_flag(Name::$name, value))
        }
    )*};
}

macro_rules! sizes {
    ($($(#[$doc:meta])* $get:ident, $name:ident;)*) => {$(
        $(#[$doc])*
        ///
        /// # Capture
        ///
        /// May be called while streams capture.
        ///
        /// # Errors
        ///
        /// [`Error::Mapped`] for another process's pool, or the driver's.
        pub fn $get(&self) -> Result<u64> {
            self.pool.owners(self.pool.pool().number(Name::$name))
        }
    )*};
}

impl<'r> Attributes<'r> {
    pub(crate) fn new(pool: &'r DriverPool) -> Self {
        Self { pool }
    }

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
        /// What the pool holds.
        reserved_mem_current, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
        /// The most that it held since [`Attributes::reset_reserved_mem_high`].
        reserved_mem_high, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
        /// What is allocated.
        used_mem_current, CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
        /// The most that was allocated since [`Attributes::reset_used_mem_high`].
        used_mem_high, CU_MEMPOOL_ATTR_USED_MEM_HIGH;
    }

    /// Sets [`release_threshold`](Attributes::release_threshold). IPC-enabled pools may ignore it.
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::Mapped`] for another process's pool, or the driver's.
    pub fn set_release_threshold(&self, bytes: u64) -> Result<ThresholdEffect> {
        self.pool.owners(self.pool.pool().set_number(Name::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, bytes))?;
        Ok(self.pool.effect())
    }

    /// Sets [`reserved_mem_high`](Attributes::reserved_mem_high) to what is held now.
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::Mapped`] for another process's pool, or the driver's.
    pub fn reset_reserved_mem_high(&self) -> Result<()> {
        self.pool.owners(self.pool.pool().set_number(Name::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0))
    }

    /// Sets [`used_mem_high`](Attributes::used_mem_high) to what is allocated now.
    ///
    /// # Capture
    ///
    /// May be called while streams capture.
    ///
    /// # Errors
    ///
    /// [`Error::Mapped`] for another process's pool, or the driver's.
    pub fn reset_used_mem_high(&self) -> Result<()> {
        self.pool.owners(self.pool.pool().set_number(Name::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0))
    }
}

impl DriverPool {
    /// The result of what only the process may ask that a pool belongs to: the driver calls it an invalid value elsewhere.
    pub(super) fn owners<T>(&self, result: cuda_mem_core::Result<T>) -> Result<T> {
        match result {
            Err(error) if self.is_mapped() && error.code() == Some(CUresult::CUDA_ERROR_INVALID_VALUE) => {
                Err(Error::Mapped)
            }
            result => Ok(result?),
        }
    }

    /// What trimming and thresholds do to this pool.
    pub(super) fn effect(&self) -> ThresholdEffect {
        if self.is_ipc_enabled() { ThresholdEffect::MayBeIgnored } else { ThresholdEffect::Applied }
    }
}

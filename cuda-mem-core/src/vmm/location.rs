//! Where memory lies.

use cuda_mem_sys::{CUmemAllocationType, CUmemLocation, CUmemLocationType};

/// Where memory lies.
///
/// ```
/// use cuda_mem_core::Driver;
/// use cuda_mem_core::raw_pool::{AllocationType, MemoryLocation, MemoryPool};
///
/// let driver = Driver::over(cuda_mem_sim::table())?; // with a GPU: Driver::system()?
/// let device = driver.device(0)?;
/// let here = MemoryLocation::Device(device.as_raw());
/// let pool = MemoryPool::current(driver, here, AllocationType::Pinned)?;
/// assert_eq!(pool, MemoryPool::current_of_device(device)?);
/// # Ok::<(), cuda_mem_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryLocation {
    /// No place of its own, for managed memory (`CU_MEM_LOCATION_TYPE_NONE`).
    None,
    /// A device, by the driver's number.
    Device(i32),
    /// Host memory wherever the system puts it (`CU_MEM_LOCATION_TYPE_HOST`). Pools take it from CUDA 13.0 on.
    Host,
    /// One node of the host's memory (`CU_MEM_LOCATION_TYPE_HOST_NUMA`). Pools take it from CUDA 12.6 on.
    HostNuma(i32),
}

impl MemoryLocation {
    /// What the driver says; none for places that are not known here.
    pub(crate) fn from_raw(raw: CUmemLocation) -> Option<Self> {
        match raw.type_ {
            CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => Some(Self::Device(raw.id)),
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST => Some(Self::Host),
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA => Some(Self::HostNuma(raw.id)),
            _ => None,
        }
    }

    pub(crate) fn as_raw(self) -> CUmemLocation {
        let (kind, id) = match self {
            Self::None => (CUmemLocationType::CU_MEM_LOCATION_TYPE_NONE, 0),
            Self::Device(ordinal) => (CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, ordinal),
            Self::Host => (CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, -1),
            Self::HostNuma(node) => (CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, node),
        };
        CUmemLocation { type_: kind, id }
    }
}

/// What kind of memory a pool has. [`MemoryPool`](crate::raw_pool::MemoryPool) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum AllocationType {
    /// Memory that stays where it is: a device's, or pinned host memory.
    #[default]
    Pinned,
    /// Memory that moves to where it is used. Pools take it from CUDA 13.0 on.
    Managed,
}

impl AllocationType {
    pub(crate) fn as_raw(self) -> CUmemAllocationType {
        match self {
            Self::Pinned => CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            Self::Managed => CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED,
        }
    }
}

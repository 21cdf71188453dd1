//! NUMA nodes, as pools know them.

use cuda_mem_core::raw_pool::{AllocationType, MemoryLocation, MemoryPool, PoolProperties};
use cuda_mem_core::sys::{CUdevice_attribute, CUresult};
use cuda_mem_core::{Device, Driver};

use crate::error::{Error, Result};

/// More nodes than machines with GPUs have.
const NODES: i32 = 64;

/// The host node next to a device.
pub(super) fn node_of(device: Device) -> Result<i32> {
    match device.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID) {
        Ok(node) if node >= 0 => Ok(node),
        // Drivers that do not know the attribute, and systems without nodes.
        Ok(_) => Err(Error::NoNumaNode { device }),
        Err(error) if error.code() == Some(CUresult::CUDA_ERROR_INVALID_VALUE) => {
            Err(Error::NoNumaNode { device })
        }
        Err(error) => Err(error.into()),
    }
}

/// Refuses numbers that cannot be a node's.
pub(super) fn expect_number(numa_id: i32) -> Result<()> {
    if numa_id < 0 { Err(Error::NegativeNumaId { numa_id }) } else { Ok(()) }
}

/// Why the driver makes no pool on a node, after it said that the value is invalid.
#[cold]
pub(super) fn explain(driver: Driver, numa_id: i32, error: cuda_mem_core::Error) -> Error {
    let cuda_mem_core::Error::Driver(source) = error else { return error.into() };
    if source.code() != CUresult::CUDA_ERROR_INVALID_VALUE {
        return cuda_mem_core::Error::from(source).into();
    }
    let nodes = nodes(driver);
    if nodes.is_empty() {
        return Error::NoSuchPool {
            place: "on NUMA nodes of the host (CUDA 12.6 and newer have them)",
            source,
        };
    }
    if nodes.contains(&numa_id) {
        return cuda_mem_core::Error::from(source).into();
    }
    Error::NoSuchNumaNode { numa_id, nodes }
}

/// The nodes that the driver makes pools on. Asked of the driver and not of the system: a container, or a driver, may know
/// fewer.
fn nodes(driver: Driver) -> Vec<i32> {
    let takes = |node: &i32| {
        let properties = PoolProperties {
            allocation_type: AllocationType::Pinned,
            location: MemoryLocation::HostNuma(*node),
            shareable: false,
            max_size: 0,
        };
        MemoryPool::create(driver, &properties).is_ok()
    };
    (0..NODES).filter(takes).collect()
}

//! Memory pools and stream-ordered allocation.

mod attributes;
mod blocks;
mod life;
mod share;

pub(crate) use attributes::*;
pub(crate) use blocks::*;
pub(crate) use life::*;
pub(crate) use share::*;

use cuda_mem_sys::{CUmemLocation, CUmemLocationType, CUmemoryPool, CUresult};

use crate::call::Call;
use crate::memory::pools::PoolId;
use crate::memory::vmm::Location;
use crate::runtime::op::Outcome;

/// The CUDA version that brought pools of host memory wherever the system puts it.
const HOST_POOLS: i32 = 13000;

/// The CUDA version that brought pools of one node of host memory.
const NODE_POOLS: i32 = 12060;

/// The number behind a pool's handle.
fn id_of(pool: CUmemoryPool) -> PoolId {
    PoolId(pool.expose_provenance() as u64)
}

/// The handle of a pool.
fn handle_of(id: PoolId) -> CUmemoryPool {
    std::ptr::without_provenance_mut(id.0 as usize)
}

/// A location that exists and that pools can lie at: error 1 otherwise.
fn location_of(call: &Call<'_>, location: CUmemLocation) -> Outcome<Location> {
    let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
    let version = call.driver.config.driver_version;
    match location.type_ {
        CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => {
            call.device(location.id).map(Location::Device).map_err(|_| invalid)
        }
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST if version >= HOST_POOLS => Ok(Location::Host),
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA
            if version >= NODE_POOLS && (0..call.memory().setup().nodes).contains(&location.id) =>
        {
            Ok(Location::Node(location.id))
        }
        _ => Err(invalid),
    }
}

//! Attributes of pools, and who may reach their memory.

use std::ffi::c_void;

use cuda_mem_sys::{
    CUmemAccess_flags, CUmemAccessDesc_v1, CUmemLocation, CUmemLocationType,
    CUmemPool_attribute as Attribute, CUmemoryPool, CUresult,
};

use super::id_of;
use crate::api::vmm::{flags_of, rights};
use crate::call::Call;
use crate::memory::vmm::Location;
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

pub(crate) fn cuMemPoolGetAttribute(
    call: &Call<'_>,
    pool: CUmemoryPool,
    attribute: Attribute,
    value: *mut c_void,
) -> Outcome<()> {
    call.not_capturing()?;
    let (policy, reserved, used) = {
        let mut state = call.memory().lock();
        let pool = state.own_pool(id_of(pool))?;
        (pool.policy, pool.reserved, pool.used)
    };
    let flag = match attribute {
        Attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => policy.follow_event_dependencies,
        Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => policy.allow_opportunistic,
        Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => policy.allow_internal_dependencies,
        _ => {
            let size = match attribute {
                Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => policy.release_threshold,
                Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => reserved.current,
                Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => reserved.high,
                Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT => used.current,
                Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH => used.high,
                _ => return Err(INVALID_VALUE),
            };
            return call.put(value.cast::<u64>(), size);
        }
    };
    call.put(value.cast::<i32>(), flag.into())
}

pub(crate) fn cuMemPoolSetAttribute(
    call: &Call<'_>,
    pool: CUmemoryPool,
    attribute: Attribute,
    value: *mut c_void,
) -> Outcome<()> {
    call.not_capturing()?;
    let flag = || call.get(value.cast::<i32>()).map(|flag| flag != 0);
    let size = || call.get(value.cast::<u64>());
    let mut state = call.memory().lock();
    let pool = state.own_pool(id_of(pool))?;
    match attribute {
        Attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => {
            pool.policy.follow_event_dependencies = flag()?;
        }
        Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => pool.policy.allow_opportunistic = flag()?,
        Attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
            pool.policy.allow_internal_dependencies = flag()?;
        }
        Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => pool.policy.release_threshold = size()?,
        // Highest values can only be begun anew.
        Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH if size()? == 0 => pool.reserved.reset(),
        Attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH if size()? == 0 => pool.used.reset(),
        _ => return Err(INVALID_VALUE),
    }
    Ok(())
}

pub(crate) fn cuMemPoolSetAccess(
    call: &Call<'_>,
    pool: CUmemoryPool,
    map: *const CUmemAccessDesc_v1,
    count: usize,
) -> Outcome<()> {
    call.not_capturing()?;
    let id = id_of(pool);
    let location = call.memory().lock().pool(id)?.location;
    if count == 0 {
        return Err(INVALID_VALUE);
    }
    for wanted in call.get_all(map, count)? {
        if wanted.location.type_ != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(INVALID_VALUE);
        }
        let device = call.device(wanted.location.id)?;
        let (read, write) = rights(wanted.flags)?;
        if let Location::Device(own) = location
            && own == device
        {
            // A device keeps access to its own pool.
            match (read, write) {
                (_, true) => {}
                (true, false) => return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
                (false, false) => return Err(CUresult::CUDA_ERROR_INVALID_DEVICE),
            }
        } else if let Location::Device(own) = location
            && !call.driver.config.peers.reach(device, own)
        {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        call.memory().lock().set_pool_access(id, device, read, write)?;
    }
    Ok(())
}

pub(crate) fn cuMemPoolGetAccess(
    call: &Call<'_>,
    flags: *mut CUmemAccess_flags,
    pool: CUmemoryPool,
    location: *mut CUmemLocation,
) -> Outcome<()> {
    call.not_capturing()?;
    let location = call.get(location)?;
    let access = call.memory().lock().pool(id_of(pool))?.access;
    call.put(flags, flags_of(call, access, location)?)
}

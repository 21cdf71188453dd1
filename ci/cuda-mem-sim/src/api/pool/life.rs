//! Pools themselves: creation, destruction, and which one is used where.

use cuda_mem_sys::{
    CUdevice, CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation, CUmemLocationType,
    CUmemPoolProps_v1, CUmemoryPool, CUresult,
};

use super::{handle_of, id_of, location_of};
use crate::call::Call;
use crate::memory::host::USER_ADDRESSES;
use crate::memory::pool_file::PoolFile;
use crate::memory::pool_state::first_access;
use crate::memory::pools::{Pool, SEGMENT};
use crate::memory::vmm::Location;
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// The CUDA version that brought pools of managed memory.
const MANAGED_POOLS: i32 = 13000;

/// Whether a type of allocation is managed; error 1 for types that pools do not have.
fn is_managed(kind: CUmemAllocationType) -> Outcome<bool> {
    match kind {
        CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED => Ok(false),
        CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED => Ok(true),
        _ => Err(INVALID_VALUE),
    }
}

/// The place of the driver's own pool. Unlike for a new pool, "the node of the calling thread" is known and refused.
fn place_of_own(call: &Call<'_>, location: CUmemLocation, managed: bool) -> Outcome<Location> {
    if location.type_ == CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    place_of(call, location, managed)
}

/// The place of a pool. Managed pools need none.
fn place_of(call: &Call<'_>, location: CUmemLocation, managed: bool) -> Outcome<Location> {
    if managed && location.type_ == CUmemLocationType::CU_MEM_LOCATION_TYPE_NONE {
        return Ok(Location::Host);
    }
    location_of(call, location)
}

pub(crate) fn cuMemPoolCreate(
    call: &Call<'_>,
    pool_out: *mut CUmemoryPool,
    properties: *const CUmemPoolProps_v1,
) -> Outcome<()> {
    call.not_capturing()?;
    let properties = call.get(properties)?;
    if pool_out.is_null() || properties.reserved.iter().any(|&byte| byte != 0) {
        return Err(INVALID_VALUE);
    }
    let managed = is_managed(properties.allocType)?;
    if managed && (call.driver.config.driver_version < MANAGED_POOLS || properties.maxSize != 0) {
        return Err(INVALID_VALUE);
    }
    let location = place_of(call, properties.location, managed)?;
    let wanted = properties.handleTypes.0;
    let fd = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
    let fabric = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC.0;
    if wanted & !(fd | fabric) != 0 || (wanted != 0 && (location == Location::Host || managed)) {
        return Err(INVALID_VALUE);
    }
    let exportable = wanted & fd != 0;
    if properties.maxSize as u64 > call.memory().setup().room_at(location).min(USER_ADDRESSES) {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    let mut pool = Pool::new(location, first_access(location, managed));
    pool.managed = managed;
    pool.exportable = exportable;
    if exportable && call.driver.config.has_data {
        let file = PoolFile::create(location);
        pool.file = Some(file.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?);
    }
    // A limit holds for segments.
    pool.max_size = (properties.maxSize as u64).next_multiple_of(SEGMENT);
    pool.made_by = Some(call.site());
    let id = call.memory().lock().add_pool(pool);
    call.put(pool_out, handle_of(id))
}

pub(crate) fn cuMemPoolDestroy(call: &Call<'_>, pool: CUmemoryPool) -> Outcome<()> {
    call.not_capturing()?;
    call.memory().lock().destroy_pool(id_of(pool))
}

pub(crate) fn cuMemPoolTrimTo(call: &Call<'_>, pool: CUmemoryPool, keep: usize) -> Outcome<()> {
    call.not_capturing()?;
    let mut state = call.memory().lock();
    state.own_pool(id_of(pool))?;
    state.shrink_pool(id_of(pool), keep as u64);
    Ok(())
}

pub(crate) fn cuDeviceGetDefaultMemPool(
    call: &Call<'_>,
    pool_out: *mut CUmemoryPool,
    device: CUdevice,
) -> Outcome<()> {
    let location = Location::Device(call.device(device)?);
    let id = call.memory().lock().default_pool(location, false);
    call.put(pool_out, handle_of(id))
}

pub(crate) fn cuDeviceGetMemPool(
    call: &Call<'_>,
    pool_out: *mut CUmemoryPool,
    device: CUdevice,
) -> Outcome<()> {
    let location = Location::Device(call.device(device)?);
    let id = call.memory().lock().current_pool(location, false);
    call.put(pool_out, handle_of(id))
}

pub(crate) fn cuDeviceSetMemPool(call: &Call<'_>, device: CUdevice, pool: CUmemoryPool) -> Outcome<()> {
    let location = Location::Device(call.device(device)?);
    set_current(call, location, false, pool)
}

pub(crate) fn cuMemGetDefaultMemPool(
    call: &Call<'_>,
    pool_out: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
) -> Outcome<()> {
    let managed = is_managed(kind)?;
    let location = place_of_own(call, call.get(location)?, managed)?;
    let id = call.memory().lock().default_pool(location, managed);
    call.put(pool_out, handle_of(id))
}

pub(crate) fn cuMemGetMemPool(
    call: &Call<'_>,
    pool_out: *mut CUmemoryPool,
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
) -> Outcome<()> {
    let managed = is_managed(kind)?;
    let location = place_of_own(call, call.get(location)?, managed)?;
    let id = call.memory().lock().current_pool(location, managed);
    call.put(pool_out, handle_of(id))
}

pub(crate) fn cuMemSetMemPool(
    call: &Call<'_>,
    location: *mut CUmemLocation,
    kind: CUmemAllocationType,
    pool: CUmemoryPool,
) -> Outcome<()> {
    let managed = is_managed(kind)?;
    let location = place_of_own(call, call.get(location)?, managed)?;
    set_current(call, location, managed, pool)
}

/// A pool can only stand in for one that lies where it lies itself, and those of other processes for none.
fn set_current(call: &Call<'_>, location: Location, managed: bool, pool: CUmemoryPool) -> Outcome<()> {
    call.not_capturing()?;
    let mut state = call.memory().lock();
    let found = state.pool(id_of(pool))?;
    if found.location != location || found.managed != managed || found.is_imported() {
        return Err(INVALID_VALUE);
    }
    state.current_pools.insert((location, managed), id_of(pool));
    Ok(())
}

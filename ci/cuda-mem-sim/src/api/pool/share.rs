//! Pools and their blocks in other processes: arguments are checked, the rest is not modelled yet.

use std::ffi::c_void;

use cuda_mem_sys::{
    CUdeviceptr, CUmemAllocationHandleType, CUmemPoolPtrExportData_v1, CUmemoryPool, CUresult,
};

use super::id_of;
use crate::call::Call;
use crate::memory::blocks::Kind;
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;

fn is_descriptor(kind: CUmemAllocationHandleType) -> bool {
    kind == CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
}

pub(crate) fn cuMemPoolExportToShareableHandle(
    call: &Call<'_>,
    handle: *mut c_void,
    pool: CUmemoryPool,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> Outcome<()> {
    let exportable = call.memory().lock().pool(id_of(pool))?.exportable;
    if handle.is_null() || flags != 0 || !is_descriptor(kind) || !exportable {
        return Err(INVALID_VALUE);
    }
    Err(NOT_SUPPORTED)
}

pub(crate) fn cuMemPoolImportFromShareableHandle(
    _call: &Call<'_>,
    pool: *mut CUmemoryPool,
    _handle: *mut c_void,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> Outcome<()> {
    if pool.is_null() || flags != 0 || !is_descriptor(kind) {
        return Err(INVALID_VALUE);
    }
    Err(NOT_SUPPORTED)
}

pub(crate) fn cuMemPoolExportPointer(
    call: &Call<'_>,
    data: *mut CUmemPoolPtrExportData_v1,
    dptr: CUdeviceptr,
) -> Outcome<()> {
    let state = call.memory().lock();
    let block = state.known(dptr).ok_or(INVALID_VALUE)?;
    let Kind::Pooled(pool) = block.kind else { return Err(INVALID_VALUE) };
    if data.is_null() || !state.pools.get(&pool).is_some_and(|pool| pool.exportable) {
        return Err(INVALID_VALUE);
    }
    Err(NOT_SUPPORTED)
}

pub(crate) fn cuMemPoolImportPointer(
    call: &Call<'_>,
    dptr: *mut CUdeviceptr,
    pool: CUmemoryPool,
    data: *mut CUmemPoolPtrExportData_v1,
) -> Outcome<()> {
    call.memory().lock().pool(id_of(pool))?;
    if dptr.is_null() || data.is_null() {
        return Err(INVALID_VALUE);
    }
    Err(NOT_SUPPORTED)
}

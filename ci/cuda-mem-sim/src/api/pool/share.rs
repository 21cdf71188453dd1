//! Pools and their blocks in other processes.

use std::ffi::c_void;
use std::os::fd::IntoRawFd;

use cuda_mem_sys::{
    CUdeviceptr, CUmemAllocationHandleType, CUmemPoolPtrExportData_v1, CUmemoryPool, CUresult,
};

use super::{handle_of, id_of};
use crate::call::Call;
use crate::memory::misuse::Act;
use crate::memory::pool_file::Parcel;
use crate::memory::wire;
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

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
    call.not_capturing()?;
    if handle.is_null() || flags != 0 || !is_descriptor(kind) {
        return Err(INVALID_VALUE);
    }
    let file = call.memory().lock().export_pool(id_of(pool))?.into_raw_fd();
    // SAFETY: a new descriptor, of which this changes the flags alone: it is not close-on-exec (ci/driver-answers.tsv).
    unsafe { libc::fcntl(file, libc::F_SETFD, 0) };
    call.put(handle.cast::<i32>(), file)
}

/// The descriptor stays the caller's, who closes it when it likes.
pub(crate) fn cuMemPoolImportFromShareableHandle(
    call: &Call<'_>,
    pool: *mut CUmemoryPool,
    handle: *mut c_void,
    kind: CUmemAllocationHandleType,
    flags: u64,
) -> Outcome<()> {
    call.not_capturing()?;
    if pool.is_null() || flags != 0 || !is_descriptor(kind) {
        return Err(INVALID_VALUE);
    }
    let id = call.memory().lock().import_pool(call.descriptor(handle)?, call.site())?;
    call.put(pool, handle_of(id))
}

pub(crate) fn cuMemPoolExportPointer(
    call: &Call<'_>,
    data: *mut CUmemPoolPtrExportData_v1,
    dptr: CUdeviceptr,
) -> Outcome<()> {
    call.not_capturing()?;
    if data.is_null() {
        return Err(INVALID_VALUE);
    }
    let words = call.memory().lock().export_pool_block(dptr)?.to_words();
    call.put(data, CUmemPoolPtrExportData_v1 { reserved: wire::to_bytes(words) })
}

pub(crate) fn cuMemPoolImportPointer(
    call: &Call<'_>,
    dptr: *mut CUdeviceptr,
    pool: CUmemoryPool,
    data: *mut CUmemPoolPtrExportData_v1,
) -> Outcome<()> {
    call.not_capturing()?;
    let travelled = call.get(data)?;
    if dptr.is_null() {
        return Err(INVALID_VALUE);
    }
    let parcel = Parcel::from_words(wire::to_words(travelled.reserved)).ok_or(INVALID_VALUE)?;
    // Host memory has no device; no context needs to be current.
    let device = call.current().map_or(0, |context| context.device);
    let by = Act::by_host(call);
    let start = call.memory().lock().import_pool_block(id_of(pool), parcel, device, by)?;
    call.put(dptr, start)
}

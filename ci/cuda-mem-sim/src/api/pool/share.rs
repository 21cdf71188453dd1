//! Pools and their blocks in other processes.
//!
//! # Safety
//!
//! The one descriptor that a caller names by number is borrowed for the duration of the call, and never closed.

use std::ffi::{c_uchar, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd};

use cuda_mem_sys::{
    CUdeviceptr, CUmemAllocationHandleType, CUmemPoolPtrExportData_v1, CUmemoryPool, CUresult,
};

use super::{handle_of, id_of};
use crate::call::Call;
use crate::memory::misuse::Act;
use crate::memory::pool_file::Parcel;
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
    let file = call.memory().lock().export_pool(id_of(pool))?;
    call.put(handle.cast::<i32>(), file.into_raw_fd())
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
    let number = i32::try_from(handle.addr()).ok().filter(|&number| number >= 0);
    let number = number.ok_or(CUresult::CUDA_ERROR_UNKNOWN)?;
    // SAFETY: not -1. The caller promised an open descriptor for the duration of the call; for any other number the
    // system calls below fail, and nothing here closes it.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    let id = call.memory().lock().import_pool(file, call.site())?;
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
    let mut travelling = CUmemPoolPtrExportData_v1::default();
    let bytes = words.iter().flat_map(|word| word.to_le_bytes());
    travelling.reserved.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte as c_uchar);
    call.put(data, travelling)
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
    let mut words = [0_u64; 8];
    for (word, bytes) in words.iter_mut().zip(travelled.reserved.chunks_exact(8)) {
        *word = bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
    }
    let parcel = Parcel::from_words(words).ok_or(INVALID_VALUE)?;
    // Host memory has no device; no context needs to be current.
    let device = call.current().map_or(0, |context| context.device);
    let by = Act::by_host(call);
    let start = call.memory().lock().import_pool_block(id_of(pool), parcel, device, by)?;
    call.put(dptr, start)
}

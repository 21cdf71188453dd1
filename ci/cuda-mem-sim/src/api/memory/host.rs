//! Host memory that devices may reach: allocated by the driver, or registered in place.

use std::ffi::c_void;
use std::ptr;

use cuda_mem_sys::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_WRITECOMBINED,
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_IOMEMORY, CU_MEMHOSTREGISTER_PORTABLE,
    CU_MEMHOSTREGISTER_READ_ONLY, CUdeviceptr, CUresult,
};

use super::device::{block_in, context_if_any, wait_for_users};
use crate::call::Call;
use crate::memory::blocks::{Access, Devices, Kind};
use crate::memory::misuse::Act;
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

const ALLOC_FLAGS: u32 = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;

const REGISTER_FLAGS: u32 = CU_MEMHOSTREGISTER_PORTABLE
    | CU_MEMHOSTREGISTER_DEVICEMAP
    | CU_MEMHOSTREGISTER_IOMEMORY
    | CU_MEMHOSTREGISTER_READ_ONLY;

pub(crate) fn cuMemHostAlloc(call: &Call<'_>, pp: *mut *mut c_void, bytes: usize, flags: u32) -> Outcome<()> {
    let context = call.current()?;
    call.not_capturing()?;
    if pp.is_null() || flags & !ALLOC_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    if bytes == 0 {
        return call.put(pp, ptr::null_mut());
    }
    let kind = Kind::Host(flags | CU_MEMHOSTALLOC_DEVICEMAP);
    let block = block_in(call, &context, kind, 0, bytes, Access::EVERYBODY);
    let start = call.memory().lock().allocate(block)?;
    call.put(pp, ptr::with_exposed_provenance_mut(start as usize))
}

pub(crate) fn cuMemAllocHost(call: &Call<'_>, pp: *mut *mut c_void, bytes: usize) -> Outcome<()> {
    cuMemHostAlloc(call, pp, bytes, 0)
}

/// Frees at once, after waiting for the context, as for device memory.
pub(crate) fn cuMemFreeHost(call: &Call<'_>, p: *mut c_void) -> Outcome<()> {
    let context = context_if_any(call)?;
    call.not_capturing()?;
    if p.is_null() {
        return Ok(());
    }
    let start = p.addr() as u64;
    let act = Act::by_host(call);
    wait_for_users(call, start, context)?;
    call.memory().lock().free(start, &act, |kind| matches!(kind, Kind::Host(_)))
}

pub(crate) fn cuMemHostGetDevicePointer(
    call: &Call<'_>,
    pdptr: *mut CUdeviceptr,
    p: *mut c_void,
    flags: u32,
) -> Outcome<()> {
    call.current()?;
    let at = p.addr() as u64;
    let is_host = call.memory().lock().known(at).is_some_and(|block| block.is_host());
    if flags != 0 || !is_host {
        return Err(INVALID_VALUE);
    }
    // One address means one thing on the host and on every device.
    call.put(pdptr, at)
}

pub(crate) fn cuMemHostGetFlags(call: &Call<'_>, flags: *mut u32, p: *mut c_void) -> Outcome<()> {
    call.current()?;
    let kind = call.memory().lock().known(p.addr() as u64).map(|block| block.kind);
    match kind {
        Some(Kind::Host(given)) => call.put(flags, given),
        Some(Kind::Registered(given)) => {
            // Registered memory is mapped for devices whether that was asked for or not, and its other flags are not told.
            let told = given & CU_MEMHOSTREGISTER_PORTABLE;
            call.put(flags, told | CU_MEMHOSTREGISTER_DEVICEMAP)
        }
        _ => Err(INVALID_VALUE),
    }
}

pub(crate) fn cuMemHostRegister(call: &Call<'_>, p: *mut c_void, bytes: usize, flags: u32) -> Outcome<()> {
    let context = call.current()?;
    call.not_capturing()?;
    // The memory of a program is never that of a device, which the flag for such memory would claim.
    if flags & !REGISTER_FLAGS != 0 || flags & CU_MEMHOSTREGISTER_IOMEMORY != 0 {
        return Err(INVALID_VALUE);
    }
    let mut access = Access::EVERYBODY;
    if flags & CU_MEMHOSTREGISTER_READ_ONLY != 0 {
        access.write = Devices::NONE;
    }
    let start = p.expose_provenance() as u64;
    call.memory().register(block_in(call, &context, Kind::Registered(flags), start, bytes, access))
}

/// Waits as frees do.
pub(crate) fn cuMemHostUnregister(call: &Call<'_>, p: *mut c_void) -> Outcome<()> {
    let context = context_if_any(call)?;
    call.not_capturing()?;
    let start = p.addr() as u64;
    let act = Act::by_host(call);
    wait_for_users(call, start, context)?;
    call.memory().lock().unregister(start, &act)
}

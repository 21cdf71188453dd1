//! Host memory that devices may reach: allocated by the driver, or registered in place.

use std::ffi::c_void;
use std::ptr;

use cuda_mem_sys::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_WRITECOMBINED,
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_IOMEMORY, CU_MEMHOSTREGISTER_PORTABLE,
    CU_MEMHOSTREGISTER_READ_ONLY, CUdeviceptr, CUresult,
};

use crate::call::Call;
use crate::memory::blocks::{Access, Kind};
use crate::memory::device::Request;
use crate::memory::host::Registration;
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
    if pp.is_null() || bytes == 0 || flags & !ALLOC_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    let born = Act::by_host(call);
    let start = call.memory().lock().allocate(Request {
        len: bytes as u64,
        kind: Kind::Host(flags),
        device: context.device,
        context: context.handle,
        access: Access::EVERYBODY,
        born,
    })?;
    call.put(pp, ptr::with_exposed_provenance_mut(start as usize))
}

pub(crate) fn cuMemAllocHost(call: &Call<'_>, pp: *mut *mut c_void, bytes: usize) -> Outcome<()> {
    cuMemHostAlloc(call, pp, bytes, 0)
}

/// Frees at once, after waiting for the context, as for device memory.
pub(crate) fn cuMemFreeHost(call: &Call<'_>, p: *mut c_void) -> Outcome<()> {
    let context = call.current()?;
    call.not_capturing()?;
    let start = p.expose_provenance() as u64;
    let act = Act::by_host(call);
    if call.memory().lock().known(start).is_some() {
        call.wait_for_context(&context)?;
    }
    call.memory().lock().free(start, &act, |kind| matches!(kind, Kind::Host(_)))
}

pub(crate) fn cuMemHostGetDevicePointer(
    call: &Call<'_>,
    pdptr: *mut CUdeviceptr,
    p: *mut c_void,
    flags: u32,
) -> Outcome<()> {
    call.current()?;
    let at = p.expose_provenance() as u64;
    let is_host = call.memory().lock().known(at).is_some_and(|block| block.is_host());
    if flags != 0 || !is_host {
        return Err(INVALID_VALUE);
    }
    // One address means one thing on the host and on every device.
    call.put(pdptr, at)
}

pub(crate) fn cuMemHostGetFlags(call: &Call<'_>, flags: *mut u32, p: *mut c_void) -> Outcome<()> {
    call.current()?;
    let kind = call.memory().lock().known(p.expose_provenance() as u64).map(|block| block.kind);
    match kind {
        Some(Kind::Host(given) | Kind::Registered(given)) => call.put(flags, given),
        _ => Err(INVALID_VALUE),
    }
}

pub(crate) fn cuMemHostRegister(call: &Call<'_>, p: *mut c_void, bytes: usize, flags: u32) -> Outcome<()> {
    let context = call.current()?;
    call.not_capturing()?;
    if flags & !REGISTER_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    let born = Act::by_host(call);
    call.memory().register(Registration {
        start: p.expose_provenance() as u64,
        len: bytes as u64,
        flags,
        device: context.device,
        context: context.handle,
        born,
    })
}

/// Returns at once: the driver does not promise to wait for work that still uses the pages.
pub(crate) fn cuMemHostUnregister(call: &Call<'_>, p: *mut c_void) -> Outcome<()> {
    call.current()?;
    call.not_capturing()?;
    let act = Act::by_host(call);
    if p.is_null() {
        return Err(INVALID_VALUE);
    }
    call.memory().lock().unregister(p.expose_provenance() as u64, &act)
}

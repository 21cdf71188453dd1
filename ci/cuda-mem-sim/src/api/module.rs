//! Modules.

use std::ffi::{c_char, c_void};
use std::ptr;

use cuda_mem_sys::{CUdeviceptr, CUfunction, CUmodule, CUresult};

use crate::call::Call;
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Takes PTX text only: there is no device code to be run.
pub(crate) fn cuModuleLoadData(call: &Call<'_>, module: *mut CUmodule, image: *const c_void) -> Outcome<()> {
    let context = call.current()?;
    if module.is_null() {
        return Err(INVALID_VALUE);
    }
    let text = call.text(image.cast())?.to_str().map_err(|_| CUresult::CUDA_ERROR_INVALID_IMAGE)?;
    let handle = call.driver.runtime.load_module(call, context, text)?;
    call.put(module, ptr::without_provenance_mut(handle))
}

pub(crate) fn cuModuleUnload(call: &Call<'_>, module: CUmodule) -> Outcome<()> {
    call.current()?;
    ends_captures(call);
    call.driver.runtime.unload_module(module.addr())
}

/// Unloading is unsafe beside a capture, and the capture says so when it ends; the call itself succeeds.
fn ends_captures(call: &Call<'_>) {
    let _ = call.not_capturing();
}

pub(crate) fn cuModuleGetFunction(
    call: &Call<'_>,
    function: *mut CUfunction,
    module: CUmodule,
    name: *const c_char,
) -> Outcome<()> {
    call.current()?;
    if function.is_null() {
        return Err(INVALID_VALUE);
    }
    let name = call.text(name)?.to_str().map_err(|_| CUresult::CUDA_ERROR_NOT_FOUND)?;
    let handle = call.driver.runtime.function(module.addr(), name)?;
    call.put(function, ptr::without_provenance_mut(handle))
}

/// No module has global variables here.
pub(crate) fn cuModuleGetGlobal(
    call: &Call<'_>,
    _pointer: *mut CUdeviceptr,
    _bytes: *mut usize,
    module: CUmodule,
    name: *const c_char,
) -> Outcome<()> {
    call.current()?;
    call.driver.runtime.has_module(module.addr())?;
    call.text(name)?;
    Err(CUresult::CUDA_ERROR_NOT_FOUND)
}

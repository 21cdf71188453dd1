//! Initialisation, version, texts of errors, and the look-up of functions.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use cuda_mem_sys::{CUdriverProcAddress_flags, CUdriverProcAddressQueryResult, CUresult, FUNCTIONS};

use super::errors;
use crate::call::Call;
use crate::dispatch::{Door, NEWER, entries, row};
use crate::runtime::op::Outcome;

const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// The flags of `cuGetProcAddress`: the legacy and the per-thread default stream, of which the second wins.
const ALL_FLAGS: u64 = 3;

pub(crate) fn cuInit(call: &Call<'_>, flags: c_uint) -> Outcome<()> {
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    if call.driver.config.devices.is_empty() {
        return Err(CUresult::CUDA_ERROR_NO_DEVICE);
    }
    call.driver.initialise();
    Ok(())
}

pub(crate) fn cuDriverGetVersion(call: &Call<'_>, version: *mut c_int) -> Outcome<()> {
    call.put(version, call.driver.config.driver_version)
}

pub(crate) fn cuGetErrorName(call: &Call<'_>, error: CUresult, text: *mut *const c_char) -> Outcome<()> {
    let known = errors::known(error);
    call.put(text, known.map_or(ptr::null(), |known| known.name.as_ptr()))?;
    known.map(drop).ok_or(INVALID_VALUE)
}

pub(crate) fn cuGetErrorString(call: &Call<'_>, error: CUresult, text: *mut *const c_char) -> Outcome<()> {
    let known = errors::known(error);
    call.put(text, known.map_or(ptr::null(), |known| known.text.as_ptr()))?;
    known.map(drop).ok_or(INVALID_VALUE)
}

/// Answers for the functions that the bindings have, at the ABI that they have, and for those that the simulator has
/// besides; for what else a real driver has, the answer is that there is no such function.
pub(crate) fn cuGetProcAddress(
    call: &Call<'_>,
    symbol: *const c_char,
    address: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut CUdriverProcAddressQueryResult,
) -> Outcome<()> {
    let name = call.text(symbol)?;
    let per_thread: u64 = CUdriverProcAddress_flags::CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM.0.into();
    let config = &call.driver.config;
    if address.is_null() || flags > ALL_FLAGS || version > config.driver_version {
        return Err(INVALID_VALUE);
    }
    let door = Door { slot: call.driver.slot, per_thread: flags & per_thread != 0 };
    let wanted = name.to_str().unwrap_or_default();
    let bound = FUNCTIONS.iter().find(|function| function.name == name);
    let bound = bound.map(|function| (wanted, function.version));
    let newer = NEWER.iter().filter(|newer| newer.0 == wanted).map(|&(_, since, listed)| (listed, since));
    // A driver does not know functions that are newer than itself. A negative version asks for the newest.
    let mut known = newer.chain(bound).filter(|&(_, since)| since <= config.driver_version);
    let function =
        known.clone().find(|&(_, since)| version < 0 || since <= version).or_else(|| known.next_back());
    let lookup_itself = || {
        let itself = entries::lookup::V2.get(door.slot).filter(|_| wanted == "cuGetProcAddress");
        itself.map(|&function| (function as *const c_void, 12000))
    };
    let found =
        function.and_then(|(listed, since)| Some((row(listed)?.address(door), since))).or_else(lookup_itself);
    let is_missing = config.missing.contains(wanted);
    let (result, found) = match found {
        None => (CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, ptr::null()),
        // Of one that is missing the library has the export all the same, which nobody looks for then.
        Some((_, since)) if is_missing || (version >= 0 && since > version) => {
            (CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, ptr::null())
        }
        Some((found, _)) => (CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS, found),
    };
    call.put(address, found.cast_mut())?;
    if !status.is_null() {
        // Who asks for the reason gets it there, and not as an error.
        return call.put(status, result);
    }
    if found.is_null() { Err(CUresult::CUDA_ERROR_NOT_FOUND) } else { Ok(()) }
}

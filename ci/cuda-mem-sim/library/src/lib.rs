//! The simulated driver as a shared library: the functions of `libcuda.so.1` under their real names.
//!
//! `CUDA_MEM_DRIVER=…/libcuda_mem_sim.so` puts it in the place of the system's driver, for programs that load theirs
//! through `cuda-mem-sys`; `CUDA_MEM_SIM` configures it.

#![allow(non_snake_case, reason = "the driver's own names")]

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ushort, c_void};

use cuda_mem_sys::*;
use sim::dispatch::entries::{lookup, memory, newer, runtime};

/// Exports the functions of one of the simulator's lists.
macro_rules! export {
    ($module:ident: $($family:ident {
        $($name:ident as $export:ident($($argument:ident: $type:ty),*) = $pfn:ident;)*
    })*) => {$($(
        #[unsafe(no_mangle)]
        #[allow(missing_docs, clippy::missing_safety_doc, reason = "the driver's manual documents it")]
        pub unsafe extern "C" fn $export($($argument: $type),*) -> CUresult {
            // SAFETY: the caller's promise, which is the one that the driver's manual asks for.
            unsafe { $module::entry::$name::<0, false>($($argument),*) }
        }
    )*)*};
}

macro_rules! export_runtime { ($($list:tt)*) => { export! { runtime: $($list)* } }; }
macro_rules! export_newer { ($($list:tt)*) => { export! { newer: $($list)* } }; }
macro_rules! export_memory { ($($list:tt)*) => { export! { memory: $($list)* } }; }

sim::runtime_entries! { export_runtime }
sim::memory_entries! { export_memory }
sim::newer_entries! { export_newer }

/// `cuGetProcAddress` since CUDA 12.0.
///
/// # Safety
///
/// As the driver's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut CUdriverProcAddressQueryResult,
) -> CUresult {
    // SAFETY: the caller's promise, which is the one that the driver's manual asks for.
    unsafe { lookup::cuGetProcAddress_v2::<0>(symbol, pfn, version, flags, status) }
}

/// `cuGetProcAddress` of CUDA 11.
///
/// # Safety
///
/// As the driver's manual says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CUresult {
    // SAFETY: the caller's promise, which is the one that the driver's manual asks for.
    unsafe { lookup::cuGetProcAddress::<0>(symbol, pfn, version, flags) }
}

//! The entry points themselves, written out from the two lists.

#![allow(non_snake_case, reason = "the functions' own names")]
#![allow(clippy::too_many_arguments, reason = "the driver's own signatures")]

/// Calls the function of `api` that models an entry point, if one does.
macro_rules! model {
    (unmodelled $name:ident $call:ident ($($arg:ident),*)) => {{
        let _ = ($call, $($arg),*);
        Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
    }};
    ($family:ident $name:ident $call:ident ($($arg:ident),*)) => {
        crate::api::$family::$name($call, $($arg),*)
    };
}

/// The addresses of an entry point for all slots.
macro_rules! for_all_slots {
    ($name:ident, $per_thread:literal) => {
        for_all_slots!($name, $per_thread, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($name:ident, $per_thread:literal, $($slot:literal)*) => {
        [$(entry::$name::<$slot, $per_thread> as *const c_void),*]
    };
}

macro_rules! entry_points {
    ($($family:ident {
        $($name:ident as $export:ident($($arg:ident: $type:ty),*) = $pfn:ident;)*
    })*) => {
        use std::ffi::*;
        use cuda_mem_sys::*;
        use crate::dispatch::enter::{Door, enter, show};
        use crate::dispatch::Row;

        /// What all variants of an entry point share.
        mod shared {
            use super::*;
            $($(
                pub(super) fn $name(door: Door $(, $arg: $type)*) -> CUresult {
                    enter(
                        door,
                        stringify!($name),
                        &|_text| { $(show(_text, stringify!($arg), &$arg);)* },
                        &|call| model!($family $name call ($($arg),*)),
                    )
                }
            )*)*
        }

        /// The C functions.
        pub mod entry {
            use super::*;
            $($(
                #[allow(missing_docs, clippy::missing_safety_doc, reason = "the driver's manual documents it")]
                pub unsafe extern "C" fn $name<const SLOT: usize, const PER_THREAD: bool>(
                    $($arg: $type),*
                ) -> CUresult {
                    shared::$name(Door { slot: SLOT, per_thread: PER_THREAD } $(, $arg)*)
                }
                const _: $pfn = $name::<0, false>;
            )*)*
        }

        /// Where they are.
        pub(crate) static ROWS: &[Row] = &[$($(
            Row {
                name: stringify!($name),
                export: stringify!($export),
                legacy: for_all_slots!($name, false),
                per_thread: for_all_slots!($name, true),
            },
        )*)*];
    };
}

/// Contexts, streams, events, graphs and modules.
pub mod runtime {
    crate::runtime_entries! { entry_points }
}

/// Memory.
pub mod memory {
    crate::memory_entries! { entry_points }
}

/// What the bindings do not have.
pub mod newer {
    type CtxCreate = unsafe extern "C" fn(*mut CUcontext, *mut c_void, c_uint, CUdevice) -> CUresult;
    type StreamGetCaptureInfo = unsafe extern "C" fn(
        CUstream,
        *mut CUstreamCaptureStatus,
        *mut u64,
        *mut CUgraph,
        *mut *const CUgraphNode,
        *mut *const c_void,
        *mut usize,
    ) -> CUresult;
    type StreamUpdateCaptureDependencies =
        unsafe extern "C" fn(CUstream, *mut CUgraphNode, *const c_void, usize, c_uint) -> CUresult;
    type GraphNodeGetDependencies =
        unsafe extern "C" fn(CUgraphNode, *mut CUgraphNode, *mut u64, *mut usize) -> CUresult;
    type GraphInstantiateWithParams =
        unsafe extern "C" fn(*mut CUgraphExec, CUgraph, *mut c_void) -> CUresult;
    type GraphDebugDotPrint = unsafe extern "C" fn(CUgraph, *const c_char, c_uint) -> CUresult;
    type DeviceGraphMemAttribute = unsafe extern "C" fn(CUdevice, c_uint, *mut c_void) -> CUresult;
    type DeviceGraphMemTrim = unsafe extern "C" fn(CUdevice) -> CUresult;

    crate::newer_entries! { entry_points }
}

/// The two that look up all the others.
pub mod lookup {
    use std::ffi::{c_char, c_int, c_void};

    use cuda_mem_sys::{CUdriverProcAddressQueryResult, CUresult, PFN_cuGetProcAddress_v12000};

    use crate::dispatch::enter::{Door, enter, show};

    /// `cuGetProcAddress` since CUDA 12.0.
    ///
    /// # Safety
    ///
    /// As the driver's manual says.
    pub unsafe extern "C" fn cuGetProcAddress_v2<const SLOT: usize>(
        symbol: *const c_char,
        pfn: *mut *mut c_void,
        version: c_int,
        flags: u64,
        status: *mut CUdriverProcAddressQueryResult,
    ) -> CUresult {
        shared(SLOT, symbol, pfn, version, flags, status)
    }
    const _: PFN_cuGetProcAddress_v12000 = cuGetProcAddress_v2::<0>;

    /// `cuGetProcAddress` of CUDA 11, which cannot tell why it found nothing.
    ///
    /// # Safety
    ///
    /// As the driver's manual says.
    pub unsafe extern "C" fn cuGetProcAddress<const SLOT: usize>(
        symbol: *const c_char,
        pfn: *mut *mut c_void,
        version: c_int,
        flags: u64,
    ) -> CUresult {
        shared(SLOT, symbol, pfn, version, flags, std::ptr::null_mut())
    }

    fn shared(
        slot: usize,
        symbol: *const c_char,
        pfn: *mut *mut c_void,
        version: c_int,
        flags: u64,
        status: *mut CUdriverProcAddressQueryResult,
    ) -> CUresult {
        enter(
            Door { slot, per_thread: false },
            "cuGetProcAddress",
            &|text| {
                show(text, "symbol", &symbol);
                show(text, "version", &version);
                show(text, "flags", &flags);
            },
            &|call| crate::api::init::cuGetProcAddress(call, symbol, pfn, version, flags, status),
        )
    }

    /// The addresses of `cuGetProcAddress_v2` for all slots.
    pub(crate) static V2: [PFN_cuGetProcAddress_v12000; crate::dispatch::SLOTS] = [
        cuGetProcAddress_v2::<0>,
        cuGetProcAddress_v2::<1>,
        cuGetProcAddress_v2::<2>,
        cuGetProcAddress_v2::<3>,
        cuGetProcAddress_v2::<4>,
        cuGetProcAddress_v2::<5>,
        cuGetProcAddress_v2::<6>,
        cuGetProcAddress_v2::<7>,
        cuGetProcAddress_v2::<8>,
        cuGetProcAddress_v2::<9>,
        cuGetProcAddress_v2::<10>,
        cuGetProcAddress_v2::<11>,
        cuGetProcAddress_v2::<12>,
        cuGetProcAddress_v2::<13>,
        cuGetProcAddress_v2::<14>,
        cuGetProcAddress_v2::<15>,
    ];
}

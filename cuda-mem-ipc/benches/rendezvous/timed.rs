//! A driver that knows how long the calls took that memory is made and mapped with.
//!
//! # Safety
//!
//! Relies on the driver's exports having the types that NVIDIA's header gives them.

use std::error::Error;
use std::ffi::{CStr, c_int, c_uchar, c_ulonglong, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::time::Instant;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::{
    CUdeviceptr, CUmemAccessDesc_v1, CUmemAllocationHandleType, CUmemAllocationProp_v1,
    CUmemGenericAllocationHandle_v1, CUresult, CUstream, Table,
};
use cuda_mem_sim::Sim;

/// What calls are for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Part {
    Create,
    Export,
    Import,
    /// Addresses and what lies there.
    Map,
    Access,
    /// Signal pads, and the wait for them; a read's wait too.
    Clear,
    /// Host memory for the words of signals.
    Register,
}

const PARTS: usize = 7;

static SPENT: [AtomicU64; PARTS] = [const { AtomicU64::new(0) }; PARTS];

/// Microseconds in calls of each part, since it was last asked.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Spent([f64; PARTS]);

impl Spent {
    pub(crate) fn take() -> Self {
        // Nanoseconds of one run are far fewer than a number has room for.
        Self(SPENT.each_ref().map(|part| part.swap(0, Ordering::Relaxed) as f64 / 1e3))
    }

    pub(crate) fn on(&self, part: Part) -> f64 {
        self.0[part as usize]
    }

    pub(crate) fn all(&self) -> f64 {
        self.0.iter().sum()
    }
}

fn timed(part: Part, call: impl FnOnce() -> CUresult) -> CUresult {
    let start = Instant::now();
    let code = call();
    // As above.
    SPENT[part as usize].fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    code
}

/// Writes the functions, and the list of them.
macro_rules! functions {
    ($($part:ident: $name:ident($($word:ident: $type:ty),*) as $export:literal;)*) => {
        #[allow(non_camel_case_types, clippy::upper_case_acronyms, reason = "the functions' own names")]
        enum Place { $($name,)* Count }

        static REAL: [AtomicPtr<c_void>; Place::Count as usize] =
            [const { AtomicPtr::new(ptr::null_mut()) }; Place::Count as usize];

        $(
            #[allow(non_snake_case, reason = "the function's own name")]
            unsafe extern "C" fn $name($($word: $type),*) -> CUresult {
                let real = REAL[Place::$name as usize].load(Ordering::Acquire);
                // SAFETY: the driver's address for this export, which `lookup` has put there before it gave this function away.
                let real = unsafe { transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> CUresult>(real) };
                // SAFETY: the caller's words, handed on.
                timed(Part::$part, || unsafe { real($($word),*) })
            }
        )*

        /// What stands for an export of the driver, whose own address is `real`.
        fn standing_for(export: &CStr, real: *const c_void) -> *const c_void {
            $(
                if export == $export {
                    REAL[Place::$name as usize].store(real.cast_mut(), Ordering::Release);
                    let there = !real.is_null();
                    return if there { $name as *const c_void } else { ptr::null() };
                }
            )*
            real
        }
    };
}

functions! {
    Create: create(
        handle: *mut CUmemGenericAllocationHandle_v1,
        bytes: usize,
        properties: *const CUmemAllocationProp_v1,
        flags: c_ulonglong
    ) as c"cuMemCreate";
    Export: export(
        descriptor: *mut c_void,
        handle: CUmemGenericAllocationHandle_v1,
        kind: CUmemAllocationHandleType,
        flags: c_ulonglong
    ) as c"cuMemExportToShareableHandle";
    Import: import(
        handle: *mut CUmemGenericAllocationHandle_v1,
        descriptor: *mut c_void,
        kind: CUmemAllocationHandleType
    ) as c"cuMemImportFromShareableHandle";
    Map: reserve(
        address: *mut CUdeviceptr,
        bytes: usize,
        alignment: usize,
        wanted: CUdeviceptr,
        flags: c_ulonglong
    ) as c"cuMemAddressReserve";
    Map: map(
        address: CUdeviceptr,
        bytes: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle_v1,
        flags: c_ulonglong
    ) as c"cuMemMap";
    Access: access(
        address: CUdeviceptr,
        bytes: usize,
        devices: *const CUmemAccessDesc_v1,
        count: usize
    ) as c"cuMemSetAccess";
    Clear: set(address: CUdeviceptr, value: c_uchar, bytes: usize, stream: CUstream) as c"cuMemsetD8Async";
    Clear: synchronize(stream: CUstream) as c"cuStreamSynchronize";
    Register: register(address: *mut c_void, bytes: usize, flags: std::ffi::c_uint) as c"cuMemHostRegister_v2";
}

/// The machine's driver, or a simulated one, by the names of its exports.
pub(crate) fn table(sim: Option<&'static Sim>) -> Result<&'static Table, Box<dyn Error>> {
    let symbol: Box<dyn Fn(&CStr) -> *const c_void + Send + Sync> = match sim {
        Some(sim) => Box::new(move |name: &CStr| sim.symbol(name)),
        None => {
            let library = library()?;
            // SAFETY: a library that is never closed, and a terminated name.
            Box::new(move |name: &CStr| unsafe { libc::dlsym(library as *mut c_void, name.as_ptr()) })
        }
    };
    let lookup = move |export: &CStr| {
        // Everything by its export, or it would not come by here.
        if export == c"cuGetProcAddress_v2" { ptr::null() } else { standing_for(export, symbol(export)) }
    };
    // SAFETY: the driver's own functions, and those above, which have the types of theirs.
    Ok(Box::leak(Box::new(unsafe { Table::from_lookup(lookup) }?)))
}

/// The driver that `Table::system` would load, as a number, which may go to other threads.
fn library() -> Result<usize, Box<dyn Error>> {
    let named = std::env::var("CUDA_MEM_DRIVER").unwrap_or_else(|_| "libcuda.so.1".to_owned());
    let name = std::ffi::CString::new(named.clone())?;
    let flags: c_int = libc::RTLD_LAZY | libc::RTLD_LOCAL;
    // SAFETY: a terminated name; whoever installed the driver vouches for its initialisers.
    let library = unsafe { libc::dlopen(name.as_ptr(), flags) };
    if library.is_null() { Err(format!("{named} could not be loaded").into()) } else { Ok(library as usize) }
}

//! The simulator with operations of streams that do as little as they can: what is left is our own work.
//!
//! Words are written when a stream is waited for, so that a fence is not reached when its buffer comes.
//!
//! # Safety
//!
//! Relies on the functions here having the types of the driver's exports that they stand for, and on words being in registered or page-locked memory, whose
//! device address is the host's, until the streams that write them were waited for or the memory is given back.

use std::cell::Cell;
use std::error::Error;
use std::ffi::{CStr, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::sys::{
    CUcontext, CUdeviceptr, CUresult, CUstream, CUstreamCaptureStatus, Table,
};
use cuda_mem_sim::Sim;

/// What streams were told to write.
static WRITES: Mutex<Vec<(CUdeviceptr, u64)>> = Mutex::new(Vec::new());

/// The simulator as it is.
static WHOLE: OnceLock<&'static Table> = OnceLock::new();

pub(crate) fn table() -> Result<&'static Table, Box<dyn Error>> {
    let sim = Box::leak(Box::new(Sim::builder().build()));
    WHOLE.get_or_init(|| sim.table());
    let lookup = |name: &CStr| match name.to_bytes() {
        // Everything by its name.
        b"cuGetProcAddress_v2" => std::ptr::null(),
        b"cuCtxGetCurrent" => get_current as *const c_void,
        b"cuCtxPushCurrent_v2" => push_current as *const c_void,
        b"cuCtxPopCurrent_v2" => pop_current as *const c_void,
        b"cuStreamIsCapturing" => is_capturing as *const c_void,
        b"cuStreamWriteValue64_v2" => write as *const c_void,
        b"cuStreamWaitValue64_v2" => wait as *const c_void,
        b"cuStreamSynchronize" => synchronize as *const c_void,
        b"cuMemHostUnregister" => unregister as *const c_void,
        b"cuMemFreeHost" => free_host as *const c_void,
        _ => sim.symbol(name),
    };
    // SAFETY: the simulator's functions, and those below, which have the types of their exports.
    let table = unsafe { Table::from_lookup(lookup) }?;
    Ok(Box::leak(Box::new(table)))
}

fn write_all() {
    // Held meanwhile: whoever unregisters waits for what another thread writes.
    let mut writes = WRITES.lock().unwrap_or_else(PoisonError::into_inner);
    for (address, value) in writes.drain(..) {
        let address = std::ptr::with_exposed_provenance_mut::<u64>(address as usize);
        // SAFETY: words in registered memory, whose device address is the host's, and whose end comes here first.
        let word = unsafe { AtomicU64::from_ptr(address) };
        // Another thread may have written a later one meanwhile.
        word.fetch_max(value, Ordering::SeqCst);
    }
}

extern "C" fn synchronize(stream: CUstream) -> CUresult {
    write_all();
    let Some(Ok(whole)) = WHOLE.get().map(|whole| whole.cuStreamSynchronize()) else {
        return CUresult::CUDA_ERROR_UNKNOWN;
    };
    // SAFETY: the caller's stream.
    unsafe { whole(stream) }
}

/// Here and below the driver waits for all streams first.
extern "C" fn unregister(memory: *mut c_void) -> CUresult {
    write_all();
    let Some(Ok(whole)) = WHOLE.get().map(|whole| whole.cuMemHostUnregister()) else {
        return CUresult::CUDA_ERROR_UNKNOWN;
    };
    // SAFETY: the caller's memory.
    unsafe { whole(memory) }
}

extern "C" fn free_host(memory: *mut c_void) -> CUresult {
    write_all();
    let Some(Ok(whole)) = WHOLE.get().map(|whole| whole.cuMemFreeHost()) else {
        return CUresult::CUDA_ERROR_UNKNOWN;
    };
    // SAFETY: the caller's memory.
    unsafe { whole(memory) }
}

extern "C" fn is_capturing(_stream: CUstream, status: *mut CUstreamCaptureStatus) -> CUresult {
    // SAFETY: one status to write.
    unsafe { status.write(CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE) };
    CUresult::CUDA_SUCCESS
}

extern "C" fn write(_stream: CUstream, address: CUdeviceptr, value: u64, _flags: c_uint) -> CUresult {
    WRITES.lock().unwrap_or_else(PoisonError::into_inner).push((address, value));
    CUresult::CUDA_SUCCESS
}

extern "C" fn wait(_stream: CUstream, _address: CUdeviceptr, _value: u64, _flags: c_uint) -> CUresult {
    CUresult::CUDA_SUCCESS
}

extern "C" fn get_current(context: *mut CUcontext) -> CUresult {
    // SAFETY: one handle to write.
    unsafe { context.write(std::ptr::null_mut()) };
    CUresult::CUDA_SUCCESS
}

extern "C" fn push_current(context: CUcontext) -> CUresult {
    thread_local! {
        static IS_CURRENT: Cell<bool> = const { Cell::new(false) };
    }
    // Once for each thread: the bench has one context.
    if IS_CURRENT.replace(true) {
        return CUresult::CUDA_SUCCESS;
    }
    let Some(Ok(set_current)) = WHOLE.get().map(|whole| whole.cuCtxSetCurrent()) else {
        return CUresult::CUDA_ERROR_UNKNOWN;
    };
    // SAFETY: the caller's context.
    unsafe { set_current(context) }
}

extern "C" fn pop_current(context: *mut CUcontext) -> CUresult {
    get_current(context)
}

//! Functions of the program that are called when something happens.
//!
//! # Safety
//!
//! Relies on the functions that C passes: they may be called by any thread until the process ends, and do not unwind.

#![allow(unsafe_code, reason = "calls functions of C")]

use std::ffi::{c_int, c_void};

use super::devices::DEVICES;
use super::error::entry;
use super::pointers::{Data, given};
use super::snapshot::{cuda_mem_torch_trace_entry, with_trace};

/// Is told of a request that failed: the device, the bytes that were asked for, what may be held or what the device has, and what
/// it has free.
pub type cuda_mem_torch_oom_observer =
    Option<unsafe extern "C" fn(data: *mut c_void, device: i64, requested: usize, total: usize, free: usize)>;
/// Frees what it can when there is no memory; whether it freed anything.
pub type cuda_mem_torch_oom_reclaimer =
    Option<unsafe extern "C" fn(data: *mut c_void, requested: usize) -> bool>;
/// Is told of each entry of the history, by the thread whose call made it, before that call returns.
pub type cuda_mem_torch_trace_tracker =
    Option<unsafe extern "C" fn(data: *mut c_void, entry: *const cuda_mem_torch_trace_entry)>;

/// Has `observer` be told of each request that fails for lack of memory, on any device, before its caller is.
///
/// # Safety
///
/// It may be called with `data` by any thread until the process ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_attach_oom_observer(
    observer: cuda_mem_torch_oom_observer,
    data: *mut c_void,
) -> c_int {
    let data = Data::new(data);
    entry(|| {
        let observe = given(observer, "observer")?;
        DEVICES.attach(move |device| {
            let ordinal = i64::from(device.ordinal);
            device.caching.attach_oom_observer(move |report| {
                let (most, free) = (report.limit.unwrap_or(report.total), report.free.unwrap_or(0));
                // SAFETY: the caller's promise.
                unsafe { observe(data.raw(), ordinal, report.requested, most, free) };
            })
        });
        Ok(())
    })
}

/// Has `reclaimer` be called when there is no memory, after all that the library can do by itself; then all is tried once more.
///
/// # Safety
///
/// As [`cuda_mem_torch_attach_oom_observer`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_attach_oom_reclaimer(
    reclaimer: cuda_mem_torch_oom_reclaimer,
    data: *mut c_void,
) -> c_int {
    let data = Data::new(data);
    entry(|| {
        let reclaim = given(reclaimer, "reclaimer")?;
        DEVICES.attach(move |device| {
            // SAFETY: the caller's promise.
            device.caching.attach_oom_reclaimer(move |requested| unsafe { reclaim(data.raw(), requested) })
        });
        Ok(())
    })
}

/// Has `tracker` be told of every entry of the history, also while nothing is recorded. Other threads that allocate wait
/// meanwhile: it must not wait for them, nor take the GIL.
///
/// # Safety
///
/// As [`cuda_mem_torch_attach_oom_observer`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuda_mem_torch_attach_trace_tracker(
    tracker: cuda_mem_torch_trace_tracker,
    data: *mut c_void,
) -> c_int {
    let data = Data::new(data);
    entry(|| {
        let track = given(tracker, "tracker")?;
        DEVICES.attach(move |device| {
            let ordinal = device.ordinal;
            // SAFETY: the caller's promise.
            let tell = move |told| unsafe { track(data.raw(), told) };
            device.caching.history().attach(move |entry| with_trace(ordinal, entry, tell))
        });
        Ok(())
    })
}

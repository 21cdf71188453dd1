//! Functions of the program that are called when something happens.
//!
//! # Safety
//!
//! Relies on the functions that C passes: they may be called by any thread until the process ends, and do not unwind.

#![allow(unsafe_code, reason = "calls functions of C")]

use std::ffi::{c_int, c_void};

use cuda_mem_ipc::cuda_mem_pool::caching::CachingAllocator;

use super::devices::{all, set_up};
use super::error::{Failure, entry};
use super::pointers::Data;
use super::sleep::{self, RegistrantFunction};
use super::snapshot::{cuda_mem_torch_trace_entry, with_trace};

/// Is told of a request that failed: the device, the bytes that were asked for, what may be held or what the device has, and what
/// it has free.
pub type cuda_mem_torch_oom_observer =
    Option<unsafe extern "C" fn(data: *mut c_void, device: i64, requested: usize, total: usize, free: usize)>;
/// Frees what it can when there is no memory; whether it freed anything.
pub type cuda_mem_torch_oom_reclaimer =
    Option<unsafe extern "C" fn(data: *mut c_void, requested: usize) -> bool>;
/// Is told of each entry of the history, by who did what it says, before that returns.
pub type cuda_mem_torch_trace_tracker =
    Option<unsafe extern "C" fn(data: *mut c_void, entry: *const cuda_mem_torch_trace_entry)>;

/// One of them, for all devices.
#[derive(Debug, Clone, Copy)]
pub(super) enum Listeners {
    Observer(unsafe extern "C" fn(*mut c_void, i64, usize, usize, usize), Data),
    Reclaimer(unsafe extern "C" fn(*mut c_void, usize) -> bool, Data),
    Tracker(unsafe extern "C" fn(*mut c_void, *const cuda_mem_torch_trace_entry), Data),
    /// Of changes behind addresses of tags, with its number.
    Registrant(u64, RegistrantFunction, Data),
}

impl Listeners {
    pub(super) fn attach(self, device: c_int, caching: &CachingAllocator) {
        match self {
            Self::Observer(observe, data) => {
                caching.attach_oom_observer(move |report| {
                    let most = report.limit.unwrap_or(report.total);
                    let free = report.free.unwrap_or(0);
                    // SAFETY: what was promised when it was attached.
                    unsafe { observe(data.raw(), i64::from(device), report.requested, most, free) };
                });
            }
            Self::Reclaimer(reclaim, data) => {
                caching.attach_oom_reclaimer(move |requested| {
                    // SAFETY: what was promised when it was attached.
                    unsafe { reclaim(data.raw(), requested) }
                });
            }
            Self::Tracker(track, data) => {
                caching.history().attach(move |entry| {
                    with_trace(device, entry, |told| {
                        // SAFETY: what was promised when it was attached.
                        unsafe { track(data.raw(), told) };
                    });
                });
            }
            Self::Registrant(number, call, data) => sleep::attach(number, call, data, device, caching),
        }
    }
}

pub(super) fn attach(listeners: Option<Listeners>, what: &str) -> Result<(), Failure> {
    let listeners = listeners.ok_or_else(|| Failure::argument(format!("{what} is null")))?;
    set_up(|setup| {
        all().for_each(|device| listeners.attach(device.ordinal, &device.caching));
        setup.listeners.push(listeners);
        Ok(())
    })
}

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
    entry(|| attach(observer.map(|observer| Listeners::Observer(observer, Data::new(data))), "observer"))
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
    entry(|| attach(reclaimer.map(|reclaimer| Listeners::Reclaimer(reclaimer, Data::new(data))), "reclaimer"))
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
    entry(|| attach(tracker.map(|tracker| Listeners::Tracker(tracker, Data::new(data))), "tracker"))
}

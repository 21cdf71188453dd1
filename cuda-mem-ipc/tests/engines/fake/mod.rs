//! Stand-ins for the libraries: the same functions, over memory of the driver under test.
//!
//! As the real ones do, each collective call waits until all ranks are at it: a backend that makes one alone hangs, and one that makes
//! another one than the others is killed.

mod fabric;
#[cfg(feature = "nccl")]
pub(crate) mod nccl;
#[cfg(feature = "nvshmem")]
pub(crate) mod nvshmem;

use std::sync::Mutex;

/// The calls that were made, by this process.
static CALLS: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

/// The function that fails the next time, on this rank alone, when all ranks were at it.
static FAULT: Mutex<Option<&'static str>> = Mutex::new(None);

/// Has the next call of a function fail on this rank alone, after all were at it.
pub(crate) fn fail_alone(call: &'static str) {
    *FAULT.lock().unwrap() = Some(call);
}

fn fails(call: &str) -> bool {
    FAULT.lock().unwrap().take_if(|fault| *fault == call).is_some()
}

fn note(call: &'static str) {
    CALLS.lock().unwrap().push(call);
}

/// The calls since the last time.
pub(crate) fn calls() -> Vec<&'static str> {
    std::mem::take(&mut CALLS.lock().unwrap())
}

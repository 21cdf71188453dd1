//! The lock that the driver holds while it frees or unregisters memory.
//!
//! It waits for the work of a context meanwhile, and what gives devices work or makes streams and memory waits for it, whoever
//! calls: measured, see docs/measurements.md.

use std::sync::{Condvar, Mutex, PoisonError};

/// What waits for a free of another thread, by the start of its name, as far as it was measured.
const BLOCKED: [&str; 9] = [
    "cuEventRecord",
    "cuGraphLaunch",
    "cuLaunchKernel",
    "cuMemAlloc",
    "cuMemHostRegister",
    "cuMemcpy",
    "cuMemset",
    "cuStreamCreate",
    "cuStreamDestroy",
];

/// Allocates in stream order, which is another matter; whether it waits was not measured.
const POOLED: [&str; 2] = ["cuMemAllocAsync", "cuMemAllocFromPoolAsync"];

/// Whether a free waits for work right now.
#[derive(Debug, Default)]
pub(crate) struct Freeing {
    is_held: Mutex<bool>,
    ended: Condvar,
}

/// A free that waits for work. Ends with it.
#[derive(Debug)]
pub(crate) struct Held<'f>(&'f Freeing);

impl Freeing {
    /// Waits for a free that is under way, if this is a function that does.
    pub(crate) fn make_wait(&self, function: &str) {
        if BLOCKED.iter().any(|start| function.starts_with(start)) && !POOLED.contains(&function) {
            drop(self.when_ended());
        }
    }

    /// Holds up others until the result is dropped.
    pub(crate) fn begin(&self) -> Held<'_> {
        *self.when_ended() = true;
        Held(self)
    }

    fn when_ended(&self) -> std::sync::MutexGuard<'_, bool> {
        let held = self.is_held.lock().unwrap_or_else(PoisonError::into_inner);
        self.ended.wait_while(held, |held| *held).unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        *self.0.is_held.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.ended.notify_all();
    }
}

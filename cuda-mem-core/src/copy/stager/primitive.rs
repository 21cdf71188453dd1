//! What the hand-over is made of: the standard library's parts, or loom's in its models.

#[cfg(all(loom, test))]
pub(super) use loom::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering},
};
#[cfg(not(all(loom, test)))]
pub(super) use std::sync::{
    Arc, Condvar, Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering},
};

/// Looks for a while whether something has come to pass, for less than it costs to be put to sleep and woken.
#[cfg(not(all(loom, test)))]
pub(super) fn look(happened: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !happened() && start.elapsed() < super::tuning::LOOK {
        std::hint::spin_loop();
    }
}

/// A model has no clock: whoever looks sees nothing, and goes to sleep.
#[cfg(all(loom, test))]
pub(super) fn look(_happened: impl Fn() -> bool) {}

//! What threads share, from the standard library or, in the models that run with `--cfg loom`, from the model checker.

use cuda_mem_pool::cuda_mem_core as core;

#[cfg(all(loom, test))]
pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};

#[cfg(not(all(loom, test)))]
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Before any lock and any word of memory that is shared: in a forked child all of it is the parent's.
pub(crate) fn refuse_forked() -> core::Result<()> {
    if core::forked() { Err(core::Error::Forked) } else { Ok(()) }
}

/// Locks a mutex, also after a panic elsewhere: nothing here panics while it holds one, and what it guards is right after each statement.
#[allow(unused_qualifications, reason = "in models the names above are the model checker's")]
pub(crate) fn lock<T: ?Sized>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// As [`lock`], for callers that call the driver with the lock held, or drop what does. Such a call may run code of the program: a hook,
/// or the drop of what came with an owner. That code may take the same lock, so it has to run after the unlock, when the reports are
/// dropped. Bind both in one pattern, in this order: Rust drops the last variable first, which is the guard.
#[allow(unused_qualifications, reason = "as above")]
pub(crate) fn lock_over_calls<T: ?Sized>(
    mutex: &std::sync::Mutex<T>,
) -> (core::LateReports, std::sync::MutexGuard<'_, T>) {
    (core::LateReports::new(), lock(mutex))
}

/// As [`lock`], unless another thread has it.
#[allow(unused_qualifications, reason = "as above")]
pub(crate) fn try_lock<T: ?Sized>(mutex: &std::sync::Mutex<T>) -> Option<std::sync::MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(locked) => Some(locked),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

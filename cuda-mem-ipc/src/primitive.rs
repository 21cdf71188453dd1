//! What threads share, from the standard library or, in the models that run with `--cfg loom`, from the model checker.

#[cfg(all(loom, test))]
pub(crate) use loom::sync::{Arc, Condvar, Mutex, MutexGuard};

#[cfg(not(all(loom, test)))]
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Locks a mutex, also after a panic elsewhere: nothing here panics while it holds one, and what is behind each lock is right after every
/// statement.
#[allow(unused_qualifications, reason = "in models the names above are the model checker's")]
pub(crate) fn lock<T: ?Sized>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

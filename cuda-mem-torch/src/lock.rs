//! Locks that stay usable after a panic of the program's functions.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// No record is half changed while the program's code runs, so a panic of it leaves all records whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! Locks that a panic of somebody's function leaves as good as before.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Nothing here is half done when other people's code runs, so a panic of theirs breaks no books.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! A value that one thread at a time may have, and for which nobody waits.
//!
//! # Safety
//!
//! Relies on `taken`: who turns it from false to true is alone with the value until they turn it back.

#![allow(unsafe_code, reason = "shares a value under a flag of its own")]

use crate::primitive::{AtomicBool, Ordering, UnsafeCell};

/// A value behind a flag. Taking it costs one uncontended atomic swap, giving it back one store.
#[derive(Debug)]
pub(crate) struct TryCell<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

/// Gives the value back, also when a panic passes.
struct Taken<'c>(&'c AtomicBool);

impl<T> TryCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Runs `body` on the value, unless somebody has it.
    #[inline]
    pub(crate) fn try_with<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        // Acquire: what the last one did to the value is done.
        if self.taken.swap(true, Ordering::Acquire) {
            return None;
        }
        let _taken = Taken(&self.taken);
        Some(self.value.with_mut(|value| {
            // SAFETY: the flag was false, so nobody has the value, and nobody gets it before `_taken` is dropped.
            body(unsafe { &mut *value })
        }))
    }
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release: what was done to the value is done for the next one.
        self.0.store(false, Ordering::Release);
    }
}

// SAFETY: one thread at a time has the value, and it moves between threads as a whole.
unsafe impl<T: Send> Sync for TryCell<T> {}

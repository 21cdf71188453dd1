//! Who touches something, for the model checker.
//!
//! # Safety
//!
//! The marker has nothing in it, so any number of threads may have it at once: that the checker objects if two touch it at the
//! same time is what it is for.
#![allow(unsafe_code, reason = "the model checker's cell is of one thread")]

#[cfg(all(loom, test))]
use super::UnsafeCell;

/// Stands for what one thread at a time may touch; the model checker says so if it is two. Nothing anywhere else.
#[derive(Debug, Default)]
pub(crate) struct Exclusive(#[cfg(all(loom, test))] UnsafeCell<()>);

impl Exclusive {
    #[inline]
    pub(crate) fn touch(&self) {
        #[cfg(all(loom, test))]
        self.0.with_mut(|_| ());
    }
}

// SAFETY: nothing is in it.
#[cfg(all(loom, test))]
unsafe impl Sync for Exclusive {}

//! The driver does not survive a fork: a child that inherits it can neither use nor free anything of its parent's.
//!
//! # Safety
//!
//! Relies on `pthread_atfork` running its child handler in the child before `fork` returns there, and on that handler
//! doing nothing but an atomic load and an atomic store, which are allowed between `fork` and `exec`.

#![allow(unsafe_code, reason = "registers the fork handler")]

use std::mem::ManuallyDrop;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static REGISTERED: Once = Once::new();
static FORKED: AtomicBool = AtomicBool::new(false);

/// How many drivers were initialised, or are being so right now.
static INITIALISED: AtomicUsize = AtomicUsize::new(0);

/// An initialisation of a driver. From here on a forked child inherits it, and perhaps locks; none of it if this is dropped.
pub(crate) struct Initialising(());

impl Initialising {
    pub(crate) fn begin() -> Self {
        REGISTERED.call_once(|| {
            // SAFETY: the handler is a function without arguments that only loads and stores static atomics.
            let result = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
            // It fails for lack of memory alone; forks then go unnoticed, as in a program without this handler.
            debug_assert_eq!(result, 0);
        });
        INITIALISED.fetch_add(1, Ordering::Relaxed);
        Self(())
    }

    /// The driver is there, and stays for the life of the process.
    pub(crate) fn succeeded(self) {
        let _ = ManuallyDrop::new(self);
    }
}

impl Drop for Initialising {
    fn drop(&mut self) {
        INITIALISED.fetch_sub(1, Ordering::Relaxed);
    }
}

extern "C" fn in_child() {
    // A child that was forked before any driver was there is a fresh process.
    if INITIALISED.load(Ordering::Relaxed) > 0 {
        FORKED.store(true, Ordering::Relaxed);
    }
}

/// Whether this process was forked from one that had initialised a driver: calls are [`Error::Forked`](crate::Error::Forked)
/// here, and drops of what the parent made must do nothing, before any lock is taken.
#[inline]
#[must_use]
pub fn forked() -> bool {
    // Relaxed: the store happened in this very thread, the only one that a forked child starts with.
    FORKED.load(Ordering::Relaxed)
}

//! The driver does not survive a fork: a child that inherits it can neither use nor free anything of its parent's.
//!
//! # Safety
//!
//! Relies on `pthread_atfork` running its child handler in the child before `fork` returns there, and on that handler
//! doing nothing but one atomic store, which is allowed between `fork` and `exec`.

#![allow(unsafe_code, reason = "registers the fork handler")]

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static REGISTERED: Once = Once::new();
static FORKED: AtomicBool = AtomicBool::new(false);

/// Starts to notice forks. Called before the first driver is initialised: a child forked earlier is a fresh process.
pub(crate) fn watch() {
    REGISTERED.call_once(|| {
        // SAFETY: the handler is a function without arguments that only stores to a static atomic.
        let result = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        // It fails for lack of memory alone; forks then go unnoticed, as in a program without this handler.
        debug_assert_eq!(result, 0);
    });
}

extern "C" fn in_child() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Whether this process was forked from one that had initialised a driver: calls are [`Error::Forked`](crate::Error::Forked)
/// here, and drops of what the parent made must do nothing, before any lock is taken.
#[inline]
#[must_use]
pub fn forked() -> bool {
    // Relaxed: the store happened in this very thread, the only one that a forked child starts with.
    FORKED.load(Ordering::Relaxed)
}

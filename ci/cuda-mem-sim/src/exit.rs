//! The end of the process.
//!
//! Workers may be anywhere when a process exits, and nothing waits for them: no static of this crate has a destructor, so
//! nothing is taken from under them. Calls that other exit handlers still make are refused, as the driver refuses them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::dispatch;

static UNDER_WAY: AtomicBool = AtomicBool::new(false);

/// Whether the process is exiting.
pub(crate) fn is_under_way() -> bool {
    UNDER_WAY.load(Ordering::Relaxed)
}

extern "C" fn at_exit() {
    // None in a forked child, whose parent may hold the locks that a report takes.
    if let Ok(driver) = dispatch::find(dispatch::DEFAULT_SLOT) {
        driver.report_at_exit();
    }
    UNDER_WAY.store(true, Ordering::Relaxed);
}

/// Makes the end of the process known to the simulator that it has without asking.
pub(crate) fn watch() {
    static WATCHED: OnceLock<()> = OnceLock::new();
    WATCHED.get_or_init(|| {
        // SAFETY: the handler touches nothing that has a destructor, and the code that it lies in is never unloaded.
        unsafe { libc::atexit(at_exit) };
    });
}

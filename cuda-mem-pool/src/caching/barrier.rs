//! Order between a thread that stores one flag and loads another all the time, and threads that do the reverse once in a
//! while: the first pays nothing, the others a system call.
//!
//! # Safety
//!
//! Relies on `membarrier` reading and writing no memory of its caller.

#![allow(unsafe_code, reason = "asks the kernel for a barrier in all threads")]

use std::sync::OnceLock;

use crate::primitive::{Ordering, fence};

/// After [`often`](Self::often) in one thread and [`seldom`](Self::seldom) in another, at least one of the two sees what
/// the other stored before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Barrier {
    /// The kernel has every running thread of the process execute a barrier; without that both sides do it themselves.
    by_kernel: bool,
}

impl Barrier {
    /// The cheapest that this machine has.
    pub(super) fn new() -> Self {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        let by_kernel = !cfg!(all(loom, test))
            && *REGISTERED.get_or_init(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED));
        Self { by_kernel }
    }

    #[inline]
    pub(super) fn often(self) {
        if self.by_kernel {
            // The processor may still reorder; `seldom` has it stop here or anywhere else.
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// False if the kernel, which had agreed, refuses: then nothing is known of the others.
    #[must_use]
    pub(super) fn seldom(self) -> bool {
        fence(Ordering::SeqCst);
        !self.by_kernel || membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
    }
}

/// <https://man7.org/linux/man-pages/man2/membarrier.2.html>
fn membarrier(command: libc::c_int) -> bool {
    const NO_FLAGS: libc::c_uint = 0;
    const ANY_PROCESSOR: libc::c_int = 0;
    // SAFETY: takes three integers and touches no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, NO_FLAGS, ANY_PROCESSOR) };
    result == 0
}

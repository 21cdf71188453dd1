//! Waiting for a device that tells nobody: busy at first, so that short waits stay short.

use std::thread;
use std::time::{Duration, Instant};

use super::tuning::{BUSY, SLEEP};

/// One wait.
pub(super) struct Patience {
    since: Instant,
    sleep: Duration,
}

impl Patience {
    pub(super) fn new() -> Self {
        Self { since: Instant::now(), sleep: *SLEEP.start() }
    }

    /// How long it has lasted.
    pub(super) fn lasted(&self) -> Duration {
        self.since.elapsed()
    }

    /// Lets a moment pass.
    pub(super) fn pause(&mut self) {
        if self.lasted() < BUSY {
            (0..32).for_each(|_| std::hint::spin_loop());
            thread::yield_now();
        } else {
            thread::sleep(self.sleep);
            self.sleep = self.sleep.saturating_mul(2).min(*SLEEP.end());
        }
    }
}

//! How far a long replay is, for people who watch a terminal.

use std::io::{IsTerminal, Write, stderr};

/// Operations between two looks at the terminal.
const STEP: usize = 1 << 14;

/// What is being replayed, and of how many operations.
#[derive(Debug)]
pub(crate) struct Progress {
    what: String,
    operations: usize,
    shown: bool,
}

impl Progress {
    /// Shown if somebody can watch.
    pub(crate) fn new(what: String, operations: usize) -> Self {
        Self { what, operations, shown: stderr().is_terminal() }
    }

    /// Tells how far it is, now and then.
    pub(crate) fn show(&self, now: usize) {
        if self.shown && now.is_multiple_of(STEP) {
            let percent = now * 100 / self.operations.max(1);
            // A terminal that is gone is nobody's loss.
            let _ = write!(stderr(), "\r{}: {percent} %\u{1b}[K", self.what);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _ = write!(stderr(), "\r\u{1b}[K");
        }
    }
}

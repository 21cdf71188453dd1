//! How far a run is: one line that changes on a terminal, one line a row elsewhere.

use std::io::{IsTerminal, Write, stdout};
use std::time::{Duration, Instant};

use super::run::{Done, Outcome};
use crate::table;

/// Clears the terminal's current line.
const CLEAR: &str = "\r\x1b[2K";

/// Shows rows as they start and end.
#[derive(Debug)]
pub(crate) struct Progress {
    terminal: bool,
    total: usize,
    ended: usize,
    failed: usize,
    drawn: Instant,
}

impl Progress {
    pub(crate) fn new(total: usize) -> Self {
        Self { terminal: stdout().is_terminal(), total, ended: 0, failed: 0, drawn: Instant::now() }
    }

    /// The row that runs; to be called again and again while it does.
    pub(crate) fn running(&mut self, name: &str, since: Instant) {
        let rest = Duration::from_millis(100);
        if !self.terminal || self.drawn.elapsed() < rest {
            return;
        }
        self.drawn = Instant::now();
        let failed = if self.failed == 0 { String::new() } else { format!(", {} failed", self.failed) };
        let time = table::seconds(since.elapsed());
        print!("{CLEAR}[{}/{}{failed}] {name} {time}", self.ended + 1, self.total);
        // Progress that cannot be shown is no reason to stop.
        let _ = stdout().flush();
    }

    /// A row that is done with. On a terminal only failures stay on the screen.
    pub(crate) fn ended(&mut self, row: &Done) {
        self.ended += 1;
        let (word, reason) = match &row.outcome {
            Outcome::Passed => ("passed", String::new()),
            Outcome::Failed(reason) => ("FAILED", format!(": {reason}")),
            Outcome::Skipped(reason) => ("skipped", format!(": {reason}")),
        };
        let failed = matches!(row.outcome, Outcome::Failed(_));
        self.failed += usize::from(failed);
        if self.terminal {
            print!("{CLEAR}");
            let _ = stdout().flush();
        }
        if failed || !self.terminal {
            let (position, total, time) = (self.ended, self.total, table::seconds(row.time));
            println!("[{position}/{total}] {word} {} ({time}){reason}", row.name);
        }
    }
}

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
    /// The rows that run, and since when; the one that began first comes first.
    running: Vec<(String, Instant)>,
    ended: usize,
    failed: usize,
    drawn: Instant,
}

impl Progress {
    pub(crate) fn new(total: usize) -> Self {
        let (terminal, drawn) = (stdout().is_terminal(), Instant::now());
        Self { terminal, total, running: Vec::new(), ended: 0, failed: 0, drawn }
    }

    /// A row begins.
    pub(crate) fn started(&mut self, name: &str) {
        self.running.push((name.to_owned(), Instant::now()));
    }

    /// Shows the row that has run for longest; to be called again and again while rows run.
    pub(crate) fn running(&mut self) {
        let rest = Duration::from_millis(100);
        let Some((name, since)) = self.running.first() else { return };
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
        self.running.retain(|(name, _)| *name != row.name);
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

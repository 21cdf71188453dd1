//! Which lines the streams of a side have.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::{self as core, FenceLine, Stream, StreamId, Uses};

use crate::shared::wire::LINES;

/// From so many streams on, lines are given out anew: streams may end.
const STREAMS: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Own {
    lines: BTreeMap<StreamId, u32>,
    next: u32,
    /// A bit for each line that was given up.
    given_up: u32,
}

impl Own {
    /// Fences of one line are reached in order, so each stream has a line of its own as long as there are enough.
    pub(super) fn of(&mut self, stream: &Stream) -> u32 {
        if let Some(line) = self.lines.get(&stream.id()) {
            return *line;
        }
        if self.lines.len() >= STREAMS {
            self.lines.clear();
        }
        let line = self.next_line();
        self.lines.insert(stream.id(), line);
        line
    }

    fn next_line(&mut self) -> u32 {
        let first = self.next;
        self.next = first.wrapping_add(1);
        let mut lines = (0..LINES).map(|further| first.wrapping_add(further) % LINES);
        lines.find(|line| self.given_up & (1 << line) == 0).unwrap_or(first % LINES)
    }

    /// No stream has a line from now on, as long as there are others.
    pub(super) fn give_up(&mut self, line: u32) {
        self.given_up |= 1 << line;
        self.lines.retain(|_, of_stream| *of_stream != line);
    }
}

/// Poisons a line that was given up until `uses` are over: each fence that they were to record before moves the word back, and a stream may
/// only then come to its wait.
pub(super) fn keep_poisoned(line: &FenceLine, mut uses: Uses) {
    while let Ok(false) | Err(core::Error::Capturing { .. }) = uses.are_over() {
        thread::sleep(Duration::from_millis(1));
        line.poison();
    }
    line.poison();
}

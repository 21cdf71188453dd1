//! Which lines the streams of a side have.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cuda_mem_pool::cuda_mem_core::{self as core, Stream, StreamId};

use super::Page;
use crate::shared::wire::LINES;

/// From so many streams on, the shared lines are given out anew: streams may end.
const STREAMS: usize = 1024;

/// So many lines are one stream's each, for good. On the others, which streams share, a fence costs an event too.
pub(super) const ALONE: u32 = 24;

const SHARED: u32 = LINES - ALONE;

#[derive(Debug, Default)]
pub(super) struct Own {
    lines: BTreeMap<StreamId, u32>,
    /// How many of the first [`ALONE`] lines have their stream.
    alone: u32,
    next_shared: u32,
    /// A bit for each line that was given up.
    given_up: u32,
}

impl Own {
    /// Fences of one line are reached in order, so each stream has a line of its own as long as there are enough. None if there is no
    /// such line left and all shared ones were given up.
    pub(super) fn of(&mut self, stream: &Stream) -> Option<u32> {
        if let Some(line) = self.lines.get(&stream.id()) {
            return Some(*line);
        }
        if self.lines.len() >= STREAMS {
            self.lines.retain(|_, line| *line < ALONE);
        }
        let line = self.next_line()?;
        self.lines.insert(stream.id(), line);
        Some(line)
    }

    fn next_line(&mut self) -> Option<u32> {
        if self.alone < ALONE {
            self.alone += 1;
            return Some(self.alone - 1);
        }
        let first = self.next_shared;
        self.next_shared = first.wrapping_add(1);
        let mut lines = (0..SHARED).map(|further| ALONE + first.wrapping_add(further) % SHARED);
        lines.find(|line| !self.is_given_up(*line))
    }

    /// No stream has a line from now on.
    pub(super) fn give_up(&mut self, line: u32) {
        self.given_up |= 1 << line;
        self.lines.retain(|_, of_stream| *of_stream != line);
    }

    pub(super) fn is_given_up(&self, line: u32) -> bool {
        self.given_up & (1 << line) != 0
    }
}

/// Poisons a line that was given up until nothing in this process uses the words, or nobody else has them: each fence that a stream was to
/// record before moves the word back, and a stream of the peer may only then come to its wait. Streams may share the line, so all that use the
/// words are waited for, and not the one alone whose fence was refused.
pub(super) fn keep_poisoned(line: usize, page: &Arc<Page>) {
    let Ok(line) = page.line(line) else { return };
    let mut uses = page.words.uses();
    // The last one's drop does the same.
    while Arc::strong_count(page) > 1 {
        match uses.are_over() {
            // Of a stream that is just being disowned it is known soon.
            Ok(false) | Err(core::Error::Capturing { .. } | core::Error::Disowned) => {}
            // Another thread's default stream, which that one is about to give something to do with other words.
            Err(core::Error::WrongThread) => uses = page.words.uses(),
            // Otherwise the context is lost, and nothing more is written.
            Ok(true) | Err(_) => break,
        }
        thread::sleep(Duration::from_millis(1));
        line.poison();
    }
    line.poison();
}

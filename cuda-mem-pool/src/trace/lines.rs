//! Lines of a source that nobody vouches for: no line makes this keep more than a few kilobytes.

use std::io::{self, BufRead};
use std::sync::Arc;

use super::error::{TraceError, TraceErrorKind};

/// The most bytes of a line. The first one is the longest, with some tens of pairs; an event has under 100.
pub(super) const LONGEST: usize = 16 << 10;

/// Reads lines and counts them.
#[derive(Debug)]
pub(super) struct Lines<R> {
    source: R,
    line: Vec<u8>,
    /// The number of the line read last, from 1.
    number: u64,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(source: R) -> Self {
        Self { source, line: Vec::new(), number: 0 }
    }

    /// The number of the line read last, from 1.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The next line without its end, or nothing at the end of the source.
    pub(super) fn next(&mut self) -> Result<Option<&str>, TraceError> {
        self.line.clear();
        self.number += 1;
        let number = self.number;
        let error = |kind| TraceError::new(number, kind);
        loop {
            let buffer = match self.source.fill_buf() {
                Ok(buffer) => buffer,
                Err(interrupted) if interrupted.kind() == io::ErrorKind::Interrupted => continue,
                Err(failed) => return Err(error(TraceErrorKind::Io(Arc::new(failed)))),
            };
            let end = buffer.iter().position(|byte| *byte == b'\n');
            let is_over = buffer.is_empty();
            let piece = &buffer[..end.unwrap_or(buffer.len())];
            if self.line.len() + piece.len() > LONGEST {
                return Err(error(TraceErrorKind::TooLong { most: LONGEST }));
            }
            self.line.extend_from_slice(piece);
            let used = piece.len() + usize::from(end.is_some());
            self.source.consume(used);
            if is_over && self.line.is_empty() {
                return Ok(None);
            }
            if is_over || end.is_some() {
                break;
            }
        }
        if self.line.last() == Some(&b'\r') {
            self.line.pop();
        }
        std::str::from_utf8(&self.line).map(Some).map_err(|_| error(TraceErrorKind::NotText))
    }
}

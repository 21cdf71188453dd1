//! Reads a trace, event by event.

use std::io::BufRead;

use super::MAX_SIZE;
use super::error::{TraceError, TraceErrorKind};
use super::event::{Action, Event};
use super::header::Header;
use super::lines::Lines;

/// The names of all columns; the last two may be missing.
pub(super) const COLUMNS: [&str; 6] = ["op", "id", "size", "stream", "time_us", "thread"];

/// Reads the events of a trace, each checked by itself. It keeps one line, however long the trace is.
///
/// ```
/// use cuda_mem_pool::trace::{Action, TraceReader};
///
/// let text = "op,id,size,stream\na,0,1000,7\nf,0,,7\n";
/// let events = TraceReader::new(text.as_bytes())?.collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(events[1].action, Action::Free);
/// # Ok::<(), cuda_mem_pool::trace::TraceError>(())
/// ```
#[derive(Debug)]
pub struct TraceReader<R> {
    lines: Lines<R>,
    header: Header,
    /// How many columns each event has.
    columns: usize,
    /// An error ends the events.
    failed: bool,
}

impl<R: BufRead> TraceReader<R> {
    /// Reads what stands before the events.
    ///
    /// # Errors
    ///
    /// [`TraceErrorKind`] for a first line that is no pairs, for other columns, and for what cannot be read.
    pub fn new(source: R) -> Result<Self, TraceError> {
        let mut lines = Lines::new(source);
        let mut names = lines.next()?.unwrap_or_default();
        let mut header = Header::default();
        if let Some(words) = names.strip_prefix('#') {
            header = Header::parse(words)?;
            names = lines.next()?.unwrap_or_default();
        }
        let found = names.split(',').collect::<Vec<_>>();
        let columns = found.len();
        if columns < 4 || COLUMNS.get(..columns) != Some(&*found) {
            let found = shown(names);
            return Err(TraceError::new(lines.number(), TraceErrorKind::BadColumns { found }));
        }
        Ok(Self { lines, header, columns, failed: false })
    }

    /// What the first line tells of the run.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The line of the event that was read last, from 1.
    #[must_use]
    pub fn line(&self) -> u64 {
        self.lines.number()
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let number = self.lines.number() + 1;
        let event = match self.lines.next() {
            Ok(None) => return None,
            Ok(Some(line)) => event(line, self.columns).map_err(|kind| TraceError::new(number, kind)),
            Err(error) => Err(error),
        };
        self.failed = event.is_err();
        Some(event)
    }
}

fn event(line: &str, expected: usize) -> Result<Event, TraceErrorKind> {
    let mut cells = [""; COLUMNS.len()];
    let mut found = 0;
    for (place, cell) in line.split(',').enumerate() {
        found = place + 1;
        if let Some(place) = cells.get_mut(place) {
            *place = cell;
        }
    }
    if found != expected {
        return Err(TraceErrorKind::ColumnCount { found, expected });
    }
    let [action, id, size, stream, time, thread] = cells;
    let optional = |column, text: &str| match text {
        "" => Ok(None),
        text => number(column, text, u64::MAX).map(Some),
    };
    Ok(Event {
        action: match action {
            "a" => Action::Allocate { size: number("size", size, MAX_SIZE)? },
            "f" | "c" if !size.is_empty() => {
                return Err(TraceErrorKind::NotEmpty { column: "size", found: shown(size) });
            }
            "f" => Action::Free,
            "c" => Action::Complete,
            other => return Err(TraceErrorKind::BadAction { found: shown(other) }),
        },
        id: number("id", id, u64::MAX)?,
        stream: number("stream", stream, u64::MAX)?,
        time_us: optional("time_us", time)?,
        thread: optional("thread", thread)?,
    })
}

/// Digits alone: no sign, no space.
fn number(column: &'static str, text: &str, most: u64) -> Result<u64, TraceErrorKind> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| digits && *number <= most);
    number.ok_or_else(|| TraceErrorKind::BadNumber { column, found: shown(text), most })
}

/// So much of a text as an error shows of it.
fn shown(text: &str) -> String {
    const MOST: usize = 60;
    let mut shown = text.chars().take(MOST).collect::<String>();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

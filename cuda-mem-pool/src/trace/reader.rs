//! Reads traces: lines of a source that nobody vouches for, event by event, or whole and checked.

use std::collections::HashMap;
use std::io::{BufRead, Read};
use std::sync::Arc;

use super::format::{
    Action, COLUMNS, Event, Header, LONGEST, MAX_EVENTS, MAX_SIZE, TraceError, TraceErrorKind,
};

/// Reads the events of a trace, each checked by itself. It keeps one line, however long the trace is.
#[derive(Debug)]
pub(super) struct Events<R> {
    lines: Lines<R>,
    pub(super) header: Header,
    /// How many columns each event has.
    columns: usize,
    /// An error ends the events.
    failed: bool,
}

impl<R: BufRead> Events<R> {
    /// Reads the header and the names of the columns.
    pub(super) fn new(source: R) -> Result<Self, TraceError> {
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
            return Err(TraceError::new(lines.number(), TraceErrorKind::BadColumns(found)));
        }
        Ok(Self { lines, header, columns, failed: false })
    }
}

impl<R: BufRead> Iterator for Events<R> {
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
            other => return Err(TraceErrorKind::BadAction(shown(other))),
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

/// A whole trace whose events make sense together: no id is allocated twice, only live blocks are freed, only freed ones
/// complete, and each stays with its stream.
///
/// ```
/// use cuda_mem_pool::trace::Trace;
///
/// let trace = Trace::read("op,id,size,stream\na,0,1000,7\nf,0,,7\n".as_bytes())?;
/// assert_eq!(trace.events().len(), 2);
/// let wrong = Trace::read("op,id,size,stream\nf,7,,0\n".as_bytes()).unwrap_err();
/// assert_eq!(wrong.to_string(), "line 2: the block 7 is freed and is not live");
/// # Ok::<(), cuda_mem_pool::trace::TraceError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    header: Header,
    events: Vec<Event>,
}

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    ///
    /// [`TraceError`] with the first line that is wrong.
    pub fn read(source: impl BufRead) -> Result<Self, TraceError> {
        let mut reader = Events::new(source)?;
        let mut events = Vec::new();
        let mut blocks = Blocks::default();
        while let Some(event) = reader.next() {
            let event = event?;
            let checked = match events.len() {
                MAX_EVENTS.. => Err(TraceErrorKind::TooMany),
                _ => blocks.follow(&event),
            };
            checked.map_err(|kind| TraceError::new(reader.lines.number(), kind))?;
            events.push(event);
        }
        Ok(Self { header: reader.header, events })
    }

    /// What the first line tells of the run.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The events, in their order.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        &self.events
    }
}

/// What has become of each block so far.
#[derive(Debug, Default)]
struct Blocks {
    by_id: HashMap<u64, (u64, State)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Live,
    Freed,
    Completed,
}

impl Blocks {
    fn follow(&mut self, event: &Event) -> Result<(), TraceErrorKind> {
        let id = event.id;
        let (before, after, refusal) = match event.action {
            Action::Allocate { .. } => {
                return match self.by_id.insert(id, (event.stream, State::Live)) {
                    None => Ok(()),
                    Some(_) => Err(TraceErrorKind::AllocatedTwice(id)),
                };
            }
            Action::Free => (State::Live, State::Freed, TraceErrorKind::NotLive(id)),
            Action::Complete => (State::Freed, State::Completed, TraceErrorKind::NotPending(id)),
        };
        let Some((allocated_on, state)) = self.by_id.get_mut(&id).filter(|(_, state)| *state == before)
        else {
            return Err(refusal);
        };
        if *allocated_on != event.stream {
            let (stream, allocated_on) = (event.stream, *allocated_on);
            return Err(TraceErrorKind::OtherStream { id, stream, allocated_on });
        }
        *state = after;
        Ok(())
    }
}

/// Reads lines and counts them. No line makes it keep more than [`LONGEST`] bytes.
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
        // One more than a line may have, for the line's end.
        let most = LONGEST as u64 + 1;
        let read = self.source.by_ref().take(most).read_until(b'\n', &mut self.line);
        if read.map_err(|failed| error(TraceErrorKind::Io(Arc::new(failed))))? == 0 {
            return Ok(None);
        }
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        } else if self.line.len() > LONGEST {
            return Err(error(TraceErrorKind::TooLong(LONGEST)));
        }
        if self.line.last() == Some(&b'\r') {
            self.line.pop();
        }
        std::str::from_utf8(&self.line).map(Some).map_err(|_| error(TraceErrorKind::NotText))
    }
}

//! Reads traces: lines of a source that nobody vouches for, event by event, or whole and checked.

use std::collections::HashMap;
use std::io::{self, BufRead, Read, Write};

use super::format::{Action, COLUMNS, Event, Header, LONGEST, MAX_EVENTS, MAX_SIZE, TraceError};

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
            let problem =
                format!("the columns are {:?}, not op,id,size,stream[,time_us[,thread]]", shown(names));
            return Err(TraceError::new(lines.number, problem));
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
        let number = self.lines.number + 1;
        let event = match self.lines.next() {
            Ok(None) => return None,
            Ok(Some(line)) => event(line, self.columns).map_err(|problem| TraceError::new(number, problem)),
            Err(error) => Err(error),
        };
        self.failed = event.is_err();
        Some(event)
    }
}

fn event(line: &str, expected: usize) -> Result<Event, String> {
    let found = line.split(',').count();
    if found != expected {
        return Err(format!("has {found} columns and not {expected}"));
    }
    let mut cells = line.split(',');
    let [action, id, size, stream, time, thread] = [(); COLUMNS.len()].map(|()| cells.next().unwrap_or(""));
    let optional = |column, text: &str| match text {
        "" => Ok(None),
        text => number(column, text, u64::MAX).map(Some),
    };
    Ok(Event {
        action: match action {
            "a" => Action::Allocate { size: number("size", size, MAX_SIZE)? },
            "f" | "c" if !size.is_empty() => {
                return Err(format!("size is {:?}; it must be empty here", shown(size)));
            }
            "f" => Action::Free,
            "c" => Action::Complete,
            other => {
                let known = "there are a (allocate), f (free) and c (complete)";
                return Err(format!("the event {:?} is not known; {known}", shown(other)));
            }
        },
        id: number("id", id, u64::MAX)?,
        stream: number("stream", stream, u64::MAX)?,
        time_us: optional("time_us", time)?,
        thread: optional("thread", thread)?,
    })
}

/// Digits alone: no sign, no space.
fn number(column: &str, text: &str, most: u64) -> Result<u64, String> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| digits && *number <= most);
    number.ok_or_else(|| format!("{column} is {:?}, not a whole number from 0 to {most}", shown(text)))
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
/// use cuda_mem_pool::trace::{Action, Trace};
///
/// let trace = Trace::read("# wall_s=0.5\nop,id,size,stream\na,0,1000,7\nf,0,,7\n".as_bytes())?;
/// assert_eq!(trace.header().number("wall_s")?, Some(0.5));
/// assert_eq!(trace.events()[0].action, Action::Allocate { size: 1000 });
/// assert_eq!(trace.events()[1].to_string(), "f,0,,7,,");
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
                MAX_EVENTS.. => Err(format!("there are more than {MAX_EVENTS} events")),
                _ => blocks.follow(&event),
            };
            checked.map_err(|problem| TraceError::new(reader.lines.number, problem))?;
            events.push(event);
        }
        Ok(Self { header: reader.header, events })
    }

    /// Writes the trace as it can be read again, each event by itself: a file wants a [`BufWriter`](io::BufWriter) around it.
    pub fn write(&self, mut target: impl Write) -> io::Result<()> {
        write_header(&mut target, &self.header)?;
        self.events.iter().try_for_each(|event| writeln!(target, "{event}"))?;
        target.flush()
    }

    /// What the first line says of the run.
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

/// Writes what stands before the events. Pairs that fit no line are [`InvalidInput`](io::ErrorKind::InvalidInput).
pub(super) fn write_header(target: &mut impl Write, header: &Header) -> io::Result<()> {
    let pairs = header.to_string();
    if pairs.len() > LONGEST {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, TraceError::too_long(1)));
    }
    writeln!(target, "{pairs}\n{}", COLUMNS.join(","))
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
    fn follow(&mut self, event: &Event) -> Result<(), String> {
        let (id, stream) = (event.id, event.stream);
        let (before, after, refusal) = match event.action {
            Action::Allocate { .. } => {
                return match self.by_id.insert(id, (stream, State::Live)) {
                    None => Ok(()),
                    Some(_) => Err(format!("the block {id} was allocated before; no id is used twice")),
                };
            }
            Action::Free => (State::Live, State::Freed, "is freed and is not live"),
            Action::Complete => {
                (State::Freed, State::Completed, "completes and is not freed, or did so before")
            }
        };
        let block = self.by_id.get_mut(&id).filter(|(_, state)| *state == before);
        let (allocated_on, state) = block.ok_or_else(|| format!("the block {id} {refusal}"))?;
        if *allocated_on != stream {
            return Err(format!("the block {id} is of stream {allocated_on}, not {stream}"));
        }
        *state = after;
        Ok(())
    }
}

/// Reads lines and counts them. No line makes it keep more than [`LONGEST`] bytes.
#[derive(Debug)]
struct Lines<R> {
    source: R,
    line: Vec<u8>,
    /// The number of the line read last, from 1.
    number: u64,
}

impl<R: BufRead> Lines<R> {
    fn new(source: R) -> Self {
        Self { source, line: Vec::new(), number: 0 }
    }

    /// The next line without its end, or nothing at the end of the source.
    fn next(&mut self) -> Result<Option<&str>, TraceError> {
        self.line.clear();
        self.number += 1;
        let error = |problem| TraceError::new(self.number, problem);
        // One more than a line may have, for the line's end.
        let most = LONGEST as u64 + 1;
        let read = self.source.by_ref().take(most).read_until(b'\n', &mut self.line);
        if read.map_err(|failed| error(format!("cannot be read: {failed}")))? == 0 {
            return Ok(None);
        }
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        } else if self.line.len() > LONGEST {
            return Err(TraceError::too_long(self.number));
        }
        if self.line.last() == Some(&b'\r') {
            self.line.pop();
        }
        std::str::from_utf8(&self.line).map(Some).map_err(|_| error("is not UTF-8".to_owned()))
    }
}

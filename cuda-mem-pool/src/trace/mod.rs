//! Allocation traces: what a program allocated and freed, one event a line, to be replayed against any allocator.
//!
//! ```text
//! # torch=2.11.0+cu130 wall_s=11.9
//! op,id,size,stream,time_us,thread
//! a,0,154389504,0,17,4711
//! f,0,,0,5120,4712
//! c,0,,0,5233,4711
//! ```
//!
//! - The first line, `# key=value …`, tells what is known of the run; it may be missing. Replays read `wall_s`, the seconds
//!   that the run took. Keys are letters, digits, `_`, `-` and `.`, values have no white space.
//! - The second line names the columns. `time_us` (microseconds since the recording began) and `thread` may be missing.
//! - `a,ID,SIZE,STREAM` allocates SIZE bytes, as they were asked for, on STREAM. No id is used twice.
//! - `f,ID,,STREAM` frees the block, at the moment the program let go of it.
//! - `c,ID,,STREAM`: another stream used the block, and was done with it only now. A block without such a line may be used
//!   again on its own stream as soon as it is freed.
//!
//! Blocks that are never freed were live when the recording ended.
//!
//! [`Trace::read`] reads a trace and checks each line, and that the events make sense together. All of it is plain text: unpack compressed
//! files before. Who records a program attaches to the allocator's [`History`](crate::history::History).

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, BufRead, Read};

/// The most bytes that an event may allocate: 2⁶⁰, more than any device has.
pub const MAX_SIZE: u64 = 1 << 60;

/// The most events that [`Trace::read`] takes, so that a small compressed file cannot fill the memory.
pub const MAX_EVENTS: usize = 50_000_000;

/// The most bytes of a line. The first one is the longest, with some tens of pairs; an event needs 105 at most.
const LONGEST: usize = 16 << 10;

/// The names of all columns; the last two may be missing.
const COLUMNS: [&str; 6] = ["op", "id", "size", "stream", "time_us", "thread"];

/// A whole trace whose events make sense together: no id is allocated twice, only live blocks are freed, only freed ones
/// complete, and each stays with its stream.
///
/// ```
/// use cuda_mem_pool::trace::{Action, Trace};
///
/// let trace = Trace::read("# wall_s=0.5\nop,id,size,stream\na,0,1000,7\nf,0,,7\n".as_bytes())?;
/// assert_eq!(trace.number("wall_s")?, Some(0.5));
/// assert_eq!(trace.events[0].action, Action::Allocate { size: 1000 });
/// assert_eq!((trace.events[1].action, trace.events[1].stream), (Action::Free, 7));
/// let wrong = Trace::read("op,id,size,stream\nf,7,,0\n".as_bytes()).unwrap_err();
/// assert_eq!(wrong.to_string(), "line 2: the block 7 is freed and is not live");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// What the first line says of the run, by key.
    pub header: BTreeMap<String, String>,
    /// The events, in their order.
    pub events: Vec<Event>,
}

/// Something that happened to a block: a line of a trace. [`Trace`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub action: Action,
    /// Which block: a number of the trace's own.
    pub id: u64,
    /// The stream that the block was allocated on: a number of the trace's own.
    pub stream: u64,
    /// Microseconds since the recording began, where it has them.
    pub time_us: Option<u64>,
    /// The system's number of the thread, where it is recorded.
    pub thread: Option<u64>,
}

/// What happened to a block. [`Trace`] has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It was allocated.
    Allocate {
        /// The bytes that were asked for, at most [`MAX_SIZE`].
        size: u64,
    },
    /// The program let go of it.
    Free,
    /// The other streams that had used it were done with it.
    Complete,
}

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    ///
    /// The source's; [`io::ErrorKind::InvalidData`] with the first line that is wrong.
    pub fn read(source: impl BufRead) -> io::Result<Self> {
        let mut lines = Lines { source, line: Vec::new(), number: 0 };
        let mut names = lines.next()?.unwrap_or_default();
        let mut header = BTreeMap::new();
        if let Some(words) = names.strip_prefix('#') {
            header = parse_header(words).map_err(|problem| wrong(1, problem))?;
            names = lines.next()?.unwrap_or_default();
        }
        let found = names.split(',').collect::<Vec<_>>();
        let columns = found.len();
        if columns < 4 || COLUMNS.get(..columns) != Some(&*found) {
            let problem =
                format!("the columns are {:?}, not op,id,size,stream[,time_us[,thread]]", shown(names));
            return Err(wrong(lines.number, problem));
        }
        let (mut events, mut blocks) = (Vec::new(), Blocks::default());
        while let Some(line) = lines.next()? {
            let event = event(line, columns).and_then(|event| match events.len() {
                MAX_EVENTS => Err(format!("there are more than {MAX_EVENTS} events")),
                _ => blocks.follow(&event).map(|()| event),
            });
            events.push(event.map_err(|problem| wrong(lines.number, problem))?);
        }
        Ok(Self { header, events })
    }

    /// A value of the header, as a number of something that is measured: finite and not below zero.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidData`] if it is no such number.
    pub fn number(&self, key: &str) -> io::Result<Option<f64>> {
        let Some(value) = self.header.get(key) else { return Ok(None) };
        let number = value.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
        number.map(Some).ok_or_else(|| wrong(1, format!("{key}={value:?} is no number from 0 on")))
    }
}

fn wrong(line: u64, problem: impl fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("line {line}: {problem}"))
}

fn parse_header(words: &str) -> Result<BTreeMap<String, String>, String> {
    let is_key = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    let is_bad = |letter: char| letter.is_whitespace() || letter.is_control();
    let mut header = BTreeMap::new();
    for word in words.split_ascii_whitespace() {
        let pair = word
            .split_once('=')
            .filter(|(key, value)| !key.is_empty() && key.bytes().all(is_key) && !value.chars().any(is_bad));
        let (key, value) = pair.ok_or_else(|| {
            let word = shown(word);
            format!("{word:?} is no key=value; keys are letters, digits, `_`, `-` and `.`, values have no white space")
        })?;
        if header.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(format!("the key {key:?} is there twice"));
        }
    }
    Ok(header)
}

fn event(line: &str, expected: usize) -> Result<Event, String> {
    let found = line.split(',').count();
    if found != expected {
        return Err(format!("{:?} has {found} columns and not {expected}", shown(line)));
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

/// What has become of each block so far: its stream, and what happened to it last.
#[derive(Debug, Default)]
struct Blocks(HashMap<u64, (u64, char)>);

impl Blocks {
    fn follow(&mut self, event: &Event) -> Result<(), String> {
        let (id, stream) = (event.id, event.stream);
        let (before, after, refusal) = match event.action {
            Action::Allocate { .. } => {
                return match self.0.insert(id, (stream, 'a')) {
                    None => Ok(()),
                    Some(_) => Err(format!("the block {id} was allocated before; no id is used twice")),
                };
            }
            Action::Free => ('a', 'f', "is freed and is not live"),
            Action::Complete => ('f', 'c', "completes and is not freed, or did so before"),
        };
        let block = self.0.get_mut(&id).filter(|(_, last)| *last == before);
        let (allocated_on, last) = block.ok_or_else(|| format!("the block {id} {refusal}"))?;
        if *allocated_on != stream {
            return Err(format!("the block {id} is of stream {allocated_on}, not {stream}"));
        }
        *last = after;
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
    /// The next line without its end, or nothing at the end of the source.
    fn next(&mut self) -> io::Result<Option<&str>> {
        self.line.clear();
        self.number += 1;
        let number = self.number;
        // One more than a line may have, for the line's end.
        let most = LONGEST as u64 + 1;
        let read = self.source.by_ref().take(most).read_until(b'\n', &mut self.line);
        let told = |failed: io::Error| {
            io::Error::new(failed.kind(), format!("line {number}: cannot be read: {failed}"))
        };
        if read.map_err(told)? == 0 {
            return Ok(None);
        }
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        } else if self.line.len() > LONGEST {
            return Err(wrong(number, format!("is longer than the {LONGEST} bytes that it may have")));
        }
        if self.line.last() == Some(&b'\r') {
            self.line.pop();
        }
        std::str::from_utf8(&self.line).map(Some).map_err(|_| wrong(number, "is not UTF-8"))
    }
}

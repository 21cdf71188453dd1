//! The format of a trace: its events, its first line, and what can be wrong with it.

use std::fmt;
use std::str::FromStr;

/// The most bytes that an event may allocate: 2⁶⁰, more than any device has.
pub const MAX_SIZE: u64 = 1 << 60;

/// The most events that [`Trace::read`](super::Trace::read) takes, so that a small compressed file cannot fill the memory.
pub const MAX_EVENTS: usize = 50_000_000;

/// The most bytes of a line. The first one is the longest, with some tens of pairs; an event has under 100.
pub(super) const LONGEST: usize = 16 << 10;

/// The names of all columns; the last two may be missing.
pub(super) const COLUMNS: [&str; 6] = ["op", "id", "size", "stream", "time_us", "thread"];

/// Something that happened to a block. Displayed, it is its line in a trace, with all six columns. [`Trace`](super::Trace) has an
/// example.
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

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { action, id, stream, time_us, thread } = self;
        let size = if let Action::Allocate { size } = action { Some(*size) } else { None };
        let [size, time, thread] =
            [size, *time_us, *thread].map(|cell| cell.map_or_else(String::new, |number| number.to_string()));
        write!(f, "{},{id},{size},{stream},{time},{thread}", action.letter())
    }
}

/// What happened to a block. [`Trace`](super::Trace) has an example.
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

impl Action {
    /// As the first column has it.
    #[must_use]
    pub fn letter(self) -> &'static str {
        match self {
            Self::Allocate { .. } => "a",
            Self::Free => "f",
            Self::Complete => "c",
        }
    }
}

/// What the first line of a trace says of the run, by key. [`Trace`](super::Trace) has an example.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    /// In the order of the line.
    pairs: Vec<(String, String)>,
}

impl Header {
    /// Reads the line, without the number sign that it begins with.
    pub(super) fn parse(words: &str) -> Result<Self, TraceError> {
        let mut header = Self::default();
        for word in words.split_ascii_whitespace() {
            let Some((key, value)) = word.split_once('=') else { return Err(bad_pair(word)) };
            if header.get(key).is_some() {
                return Err(TraceError::new(1, format!("the key {key:?} is there twice")));
            }
            header.set(key, value)?;
        }
        // As it would be written: with a space after the number sign.
        if header.to_string().len() > LONGEST {
            return Err(TraceError::too_long(1));
        }
        Ok(header)
    }

    /// The value of a key, as it stands there.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        self.pairs.iter().find(|(own, _)| own == key).map(|(_, value)| &**value)
    }

    /// The value of a key, as a number of something that is measured: finite and not below zero.
    ///
    /// # Errors
    ///
    /// [`TraceError`] if it is no such number.
    pub fn number(&self, key: &str) -> Result<Option<f64>, TraceError> {
        self.parsed(key, "number from 0 on", |value: &f64| value.is_finite() && *value >= 0.0)
    }

    /// The value of a key, as a count of bytes.
    ///
    /// # Errors
    ///
    /// [`TraceError`] if it is no whole number.
    pub fn bytes(&self, key: &str) -> Result<Option<u64>, TraceError> {
        self.parsed(key, "whole number from 0 on", |_: &u64| true)
    }

    fn parsed<T: FromStr>(
        &self,
        key: &str,
        expected: &str,
        accepts: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, TraceError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let parsed = value.parse().ok().filter(accepts);
        parsed.map(Some).ok_or_else(|| TraceError::new(1, format!("{key}={value:?} is no {expected}")))
    }

    /// Sets a key, or changes it.
    ///
    /// # Errors
    ///
    /// [`TraceError`] for what could not be read again.
    pub fn set(&mut self, key: &str, value: impl fmt::Display) -> Result<(), TraceError> {
        let value = value.to_string();
        let is_key = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
        if key.is_empty()
            || !key.bytes().all(is_key)
            || value.chars().any(|letter| letter.is_whitespace() || letter.is_control())
        {
            return Err(bad_pair(&format!("{key}={value}")));
        }
        match self.pairs.iter_mut().find(|(own, _)| own == key) {
            Some((_, old)) => *old = value,
            None => self.pairs.push((key.to_owned(), value)),
        }
        Ok(())
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("#")?;
        self.pairs.iter().try_for_each(|(key, value)| write!(f, " {key}={value}"))
    }
}

fn bad_pair(word: &str) -> TraceError {
    let accepted = "keys are letters, digits, `_`, `-` and `.`, values have no white space";
    TraceError::new(1, format!("{word:?} is no key=value; {accepted}"))
}

/// What is wrong with a trace, and where. [`Trace`](super::Trace) has an example.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TraceError {
    /// The line, counted from 1.
    pub line: u64,
    /// What is wrong with it: names the value and what would be accepted.
    pub problem: String,
}

impl TraceError {
    pub(super) fn new(line: u64, problem: String) -> Self {
        Self { line, problem }
    }

    pub(super) fn too_long(line: u64) -> Self {
        Self::new(line, format!("is longer than the {LONGEST} bytes that it may have"))
    }
}

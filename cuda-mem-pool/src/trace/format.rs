//! The format of a trace: its events, its first line, and what can be wrong with it.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;

/// The most bytes that an event may allocate: 2⁶⁰, more than any device has.
pub const MAX_SIZE: u64 = 1 << 60;

/// The most events that [`Trace::read`](super::Trace::read) takes, so that a small compressed file cannot fill the memory.
pub const MAX_EVENTS: usize = 50_000_000;

/// The most bytes of a line. The first one is the longest, with some tens of pairs; an event has under 100.
pub(super) const LONGEST: usize = 16 << 10;

/// The names of all columns; the last two may be missing.
pub(super) const COLUMNS: [&str; 6] = ["op", "id", "size", "stream", "time_us", "thread"];

/// Something that happened to a block. [`TraceWriter`](super::TraceWriter) has an example.
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

/// What happened to a block. [`TraceWriter`](super::TraceWriter) has an example.
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

/// What the first line of a trace tells of the run, by key.
///
/// ```
/// use cuda_mem_pool::trace::Header;
///
/// let mut header = Header::default();
/// header.set("wall_s", 11.9)?;
/// assert_eq!(header.to_string(), "# wall_s=11.9");
/// assert_eq!(header.number("wall_s")?, Some(11.9));
/// # Ok::<(), cuda_mem_pool::trace::TraceError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    /// In the order of the line.
    pairs: Vec<(String, String)>,
}

impl Header {
    /// From the line, without the number sign it begins with.
    pub(super) fn parse(words: &str) -> Result<Self, TraceError> {
        let mut header = Self::default();
        for word in words.split_ascii_whitespace() {
            let pair = word.split_once('=').filter(|(key, value)| is_key(key) && is_value(value));
            let Some((key, value)) = pair else {
                return Err(first_line(TraceErrorKind::BadPair(word.to_owned())));
            };
            if header.get(key).is_some() {
                return Err(first_line(TraceErrorKind::DuplicateKey(key.to_owned())));
            }
            header.pairs.push((key.to_owned(), value.to_owned()));
        }
        // As it would be written: with a space after the number sign.
        if header.to_string().len() > LONGEST {
            return Err(first_line(TraceErrorKind::TooLong(LONGEST)));
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
    /// [`TraceErrorKind::BadValue`] if it is no such number.
    pub fn number(&self, key: &str) -> Result<Option<f64>, TraceError> {
        self.parsed(key, "number from 0 on", |value: &f64| value.is_finite() && *value >= 0.0)
    }

    /// The value of a key, as a count of bytes.
    ///
    /// # Errors
    ///
    /// [`TraceErrorKind::BadValue`] if it is no whole number.
    pub fn bytes(&self, key: &str) -> Result<Option<u64>, TraceError> {
        self.parsed(key, "whole number from 0 on", |_: &u64| true)
    }

    fn parsed<T: FromStr>(
        &self,
        key: &str,
        expected: &'static str,
        accepts: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, TraceError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.parse().ok().filter(accepts) {
            Some(parsed) => Ok(Some(parsed)),
            None => Err(first_line(TraceErrorKind::BadValue {
                key: key.to_owned(),
                value: value.to_owned(),
                expected,
            })),
        }
    }

    /// Sets a key, or changes it.
    ///
    /// # Errors
    ///
    /// [`TraceErrorKind::BadPair`] for what could not be read again.
    pub fn set(&mut self, key: &str, value: impl fmt::Display) -> Result<(), TraceError> {
        let value = value.to_string();
        if !is_key(key) || !is_value(&value) {
            return Err(first_line(TraceErrorKind::BadPair(format!("{key}={value}"))));
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

fn first_line(kind: TraceErrorKind) -> TraceError {
    TraceError::new(1, kind)
}

fn is_key(key: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    !key.is_empty() && key.bytes().all(fits)
}

fn is_value(value: &str) -> bool {
    !value.chars().any(|letter| letter.is_whitespace() || letter.is_control())
}

/// What is wrong with a trace, and where. [`Trace`](super::Trace) has an example.
#[derive(Debug, Clone, thiserror::Error)]
#[error("line {line}: {kind}")]
pub struct TraceError {
    /// The line, counted from 1.
    pub line: u64,
    /// What is wrong with it.
    pub kind: TraceErrorKind,
}

impl TraceError {
    pub(super) fn new(line: u64, kind: TraceErrorKind) -> Self {
        Self { line, kind }
    }
}

/// What is wrong with a line of a trace. [`Trace`](super::Trace) has an example.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TraceErrorKind {
    /// The source could not be read.
    #[error("cannot be read: {0}")]
    Io(Arc<io::Error>),
    /// The line is longer than any line of a trace.
    #[error("is longer than the {0} bytes that it may have")]
    TooLong(usize),
    /// The line is no text.
    #[error("is not UTF-8")]
    NotText,
    /// A word of the first line is no `key=value`.
    #[error("{0:?} is no key=value; keys are letters, digits, `_`, `-` and `.`, values have no white space")]
    BadPair(String),
    /// A key stands in the first line twice.
    #[error("the key {0:?} is there twice")]
    DuplicateKey(String),
    /// A value of the first line is no number where one is asked for.
    #[error("{key}={value:?} is no {expected}")]
    BadValue {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// The names of the columns are not there, or are others.
    #[error("the columns are {0:?}, not op,id,size,stream[,time_us[,thread]]")]
    BadColumns(String),
    /// An event has more or fewer columns than there are names.
    #[error("has {found} columns and not {expected}")]
    ColumnCount {
        /// How many the event has.
        found: usize,
        /// How many names there are.
        expected: usize,
    },
    /// An event's kind is not known.
    #[error("the event {0:?} is not known; there are a (allocate), f (free) and c (complete)")]
    BadAction(String),
    /// A column holds no number, or one that is too large.
    #[error("{column} is {found:?}, not a whole number from 0 to {most}")]
    BadNumber {
        /// The column.
        column: &'static str,
        /// What is there.
        found: String,
        /// The largest number that it takes.
        most: u64,
    },
    /// A column holds something where it must be empty.
    #[error("{column} is {found:?}; it must be empty here")]
    NotEmpty {
        /// The column.
        column: &'static str,
        /// What is there.
        found: String,
    },
    /// An event to write allocates more than [`MAX_SIZE`].
    #[error("{0} bytes are more than an event may allocate, {MAX_SIZE}")]
    TooLarge(u64),
    /// There are more events than [`MAX_EVENTS`].
    #[error("there are more than {MAX_EVENTS} events")]
    TooMany,
    /// A block is allocated whose id was there before.
    #[error("the block {0} was allocated before; no id is used twice")]
    AllocatedTwice(u64),
    /// A block is freed that is not live.
    #[error("the block {0} is freed and is not live")]
    NotLive(u64),
    /// A block completes that is not freed, or did so before.
    #[error("the block {0} completes and is not freed, or did so before")]
    NotPending(u64),
    /// A block is freed or completes on another stream than it was allocated on.
    #[error("the block {id} is of stream {allocated_on}, not {stream}")]
    OtherStream {
        /// The block.
        id: u64,
        /// The stream in this line.
        stream: u64,
        /// The stream that it was allocated on.
        allocated_on: u64,
    },
}

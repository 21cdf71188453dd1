//! Why something is no trace.

use std::io;
use std::sync::Arc;

use super::{MAX_EVENTS, MAX_SIZE};

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
    #[error("is longer than the {most} bytes that it may have")]
    TooLong {
        /// The most bytes that a line may have.
        most: usize,
    },
    /// The line is no text.
    #[error("is not UTF-8")]
    NotText,
    /// A word of the first line is no `key=value`.
    #[error(
        "{word:?} is no key=value; keys are letters, digits, `_`, `-` and `.`, values have no white space"
    )]
    BadPair {
        /// The word.
        word: String,
    },
    /// A key stands in the first line twice.
    #[error("the key {key:?} is there twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
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
    #[error("the columns are {found:?}, not op,id,size,stream[,time_us[,thread]]")]
    BadColumns {
        /// What is there.
        found: String,
    },
    /// An event has more or fewer columns than there are names.
    #[error("has {found} columns and not {expected}")]
    ColumnCount {
        /// How many the event has.
        found: usize,
        /// How many names there are.
        expected: usize,
    },
    /// An event's kind is not known.
    #[error("the event {found:?} is not known; there are a (allocate), f (free) and c (complete)")]
    BadAction {
        /// What is there.
        found: String,
    },
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
    #[error("{size} bytes are more than an event may allocate, {MAX_SIZE}")]
    TooLarge {
        /// The bytes.
        size: u64,
    },
    /// There are more events than [`MAX_EVENTS`].
    #[error("there are more than {MAX_EVENTS} events")]
    TooMany,
    /// A block is allocated whose id was there before.
    #[error("the block {id} was allocated before; no id is used twice")]
    AllocatedTwice {
        /// The block.
        id: u64,
    },
    /// A block is freed that is not live.
    #[error("the block {id} is freed and is not live")]
    NotLive {
        /// The block.
        id: u64,
    },
    /// A block completes that is not freed, or did so before.
    #[error("the block {id} completes and is not freed, or did so before")]
    NotPending {
        /// The block.
        id: u64,
    },
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

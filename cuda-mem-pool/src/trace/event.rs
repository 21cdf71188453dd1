//! One line of a trace.

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

/// What happened to a block. [`TraceReader`](super::TraceReader) has an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It was allocated.
    Allocate {
        /// The bytes that were asked for, at most [`MAX_SIZE`](super::MAX_SIZE).
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

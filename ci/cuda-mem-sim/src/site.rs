//! A driver call as reports name it.

use std::backtrace::Backtrace;
use std::fmt;
use std::sync::Arc;

/// A driver call, as reports name it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Site {
    /// The function's name.
    pub function: &'static str,
    /// The call's number: the first driver call of the simulator is 1.
    pub number: u64,
    /// The id of the stream it went to, as `cuStreamGetId` tells it; 0 if it has none.
    pub stream: u64,
    /// The calling thread, numbered in the order of first calls.
    pub thread: u64,
    /// Where in the program it was made, if the simulator was told to find out ([`Builder::backtraces`](crate::Builder::backtraces)).
    pub backtrace: Option<Arc<Backtrace>>,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (call {}, thread {}", self.function, self.number, self.thread)?;
        if self.stream != 0 {
            write!(f, ", stream {}", self.stream)?;
        }
        f.write_str(")")?;
        if let Some(backtrace) = &self.backtrace {
            write!(f, " at\n{backtrace}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
impl Site {
    /// A call for tests that look at nothing but its number.
    pub(crate) fn for_test(number: u64) -> Self {
        Self { function: "test", number, stream: 0, thread: 0, backtrace: None }
    }
}

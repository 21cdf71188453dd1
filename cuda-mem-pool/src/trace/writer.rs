//! Writes a trace.

use std::fmt;
use std::io::{self, Write};

use super::MAX_SIZE;
use super::error::TraceErrorKind;
use super::event::{Action, Event};
use super::header::Header;
use super::lines::LONGEST;
use super::reader::COLUMNS;

/// Writes a trace, with all six columns. Time and thread stay empty where an event has none.
///
/// ```
/// use cuda_mem_pool::trace::{Action, Event, Header, Trace, TraceWriter};
///
/// let mut writer = TraceWriter::new(Vec::new(), &Header::default())?;
/// let event =
///     Event { action: Action::Allocate { size: 1000 }, id: 0, stream: 7, time_us: Some(12), thread: None };
/// writer.write(&event)?;
/// let text = writer.finish()?;
/// assert_eq!(Trace::read(&*text)?.events(), [event]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TraceWriter<W> {
    target: W,
}

impl<W: Write> TraceWriter<W> {
    /// Writes what stands before the events. Each event is written by itself: a file wants a
    /// [`BufWriter`](std::io::BufWriter) around it.
    ///
    /// # Errors
    ///
    /// The target's; [`io::ErrorKind::InvalidInput`] with a [`TraceErrorKind::TooLong`] for pairs that fit no line.
    pub fn new(mut target: W, header: &Header) -> io::Result<Self> {
        let pairs = header.to_string();
        if pairs.len() > LONGEST {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                TraceErrorKind::TooLong { most: LONGEST },
            ));
        }
        writeln!(target, "{pairs}\n{}", COLUMNS.join(","))?;
        Ok(Self { target })
    }

    /// Writes an event.
    ///
    /// # Errors
    ///
    /// The target's; [`io::ErrorKind::InvalidInput`] with a [`TraceErrorKind::TooLarge`] for a size that no reader takes.
    pub fn write(&mut self, event: &Event) -> io::Result<()> {
        let Event { action, id, stream, time_us, thread } = event;
        let size = match *action {
            Action::Allocate { size } if size > MAX_SIZE => {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, TraceErrorKind::TooLarge { size }));
            }
            Action::Allocate { size } => Some(size),
            Action::Free | Action::Complete => None,
        };
        let (size, time, thread) = (Cell(size), Cell(*time_us), Cell(*thread));
        writeln!(self.target, "{},{id},{size},{stream},{time},{thread}", action.letter())
    }

    /// Has the target pass on what it holds back, and gives it back.
    ///
    /// # Errors
    ///
    /// The target's.
    pub fn finish(mut self) -> io::Result<W> {
        self.target.flush()?;
        Ok(self.target)
    }
}

impl<W> fmt::Debug for TraceWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TraceWriter").finish_non_exhaustive()
    }
}

/// A number, or nothing.
struct Cell(Option<u64>);

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |number| write!(f, "{number}"))
    }
}

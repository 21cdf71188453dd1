//! Rows in the order in which their places were taken, whenever they are filled.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

/// A writer, and the rows that wait for those before them.
pub(super) struct Journal {
    state: Mutex<State>,
}

struct State {
    writer: Box<dyn Write + Send>,
    failures: u64,
    /// From the first place that is still open on.
    rows: VecDeque<Row>,
    /// The number of the first of them.
    first: u64,
}

enum Row {
    Open,
    Filled(String),
    Void,
}

impl Journal {
    pub(super) fn new(writer: Box<dyn Write + Send>) -> Self {
        let mut state = State { writer, failures: 0, rows: VecDeque::new(), first: 0 };
        state.write(HEADER);
        Self { state: Mutex::new(state) }
    }

    /// The next place. It stays empty if it is dropped without being filled.
    pub(super) fn place(&self) -> Place<'_> {
        let mut state = self.lock();
        let number = state.first.wrapping_add(state.rows.len() as u64);
        state.rows.push_back(Row::Open);
        Place { journal: self, number, row: Row::Void }
    }

    pub(super) fn flush(&self) -> io::Result<()> {
        let mut state = self.lock();
        careful(|| state.writer.flush())
    }

    pub(super) fn failures(&self) -> u64 {
        self.lock().failures
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn settle(&mut self, number: u64, row: Row) {
        let index = usize::try_from(number.wrapping_sub(self.first)).ok();
        if let Some(place) = index.and_then(|index| self.rows.get_mut(index)) {
            *place = row;
        }
        while self.rows.front().is_some_and(|row| !matches!(row, Row::Open)) {
            self.first = self.first.wrapping_add(1);
            if let Some(Row::Filled(text)) = self.rows.pop_front() {
                self.write(&text);
            }
        }
    }

    fn write(&mut self, row: &str) {
        if careful(|| self.writer.write_all(row.as_bytes())).is_err() {
            self.failures = self.failures.saturating_add(1);
        }
    }
}

/// A panic of the writer is an error of it: memory that was just allocated must not be lost over a row.
fn careful(write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|_| Err(io::Error::other("the writer panicked")))
}

/// A row's place.
pub(super) struct Place<'j> {
    journal: &'j Journal,
    number: u64,
    row: Row,
}

impl Place<'_> {
    pub(super) fn fill(mut self, row: String) {
        self.row = Row::Filled(row);
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let row = std::mem::replace(&mut self.row, Row::Void);
        self.journal.lock().settle(self.number, row);
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").finish_non_exhaustive()
    }
}

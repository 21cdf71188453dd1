//! The calls that were made.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_mem_sys::CUresult;

use crate::call::Call;
use crate::driver::Driver;
use crate::runtime::op::Outcome;

/// How many calls are kept; older ones are only counted.
const KEPT: usize = 1 << 16;

/// One recorded call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// The call's number: the first driver call of the simulator is 1; 0 for one that was refused at the door.
    pub number: u64,
    /// The function.
    pub function: &'static str,
    /// Its arguments, as `name=value`.
    pub arguments: String,
    /// The id of the stream it went to, as `cuStreamGetId` tells it; 0 if it has none.
    pub stream: u64,
    /// The calling thread, numbered in the order of first calls.
    pub thread: u64,
    /// What it returned.
    pub result: CUresult,
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, function, arguments, stream, thread, result } = self;
        write!(f, "{number} thread {thread}")?;
        if *stream != 0 {
            write!(f, " stream {stream}")?;
        }
        write!(f, " {function}({arguments}) = {}", result.0)
    }
}

/// What is recorded, and where to.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    on: AtomicBool,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    records: VecDeque<Record>,
    counts: BTreeMap<&'static str, u64>,
    file: Option<File>,
}

impl Recorder {
    pub(crate) fn new(on: bool, file: Option<File>) -> Self {
        let on = AtomicBool::new(on || file.is_some());
        Self { on, kept: Mutex::new(Kept { file, ..Kept::default() }) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Records a call, if recording is on: otherwise nothing is rendered and no lock is taken.
    pub(crate) fn call(&self, call: &Call<'_>, arguments: &dyn Fn(&mut String), outcome: Outcome<()>) {
        if !self.is_on() {
            return;
        }
        let mut text = String::new();
        arguments(&mut text);
        self.keep(Record {
            number: call.number,
            function: call.function,
            arguments: text,
            stream: call.stream_id(),
            thread: call.thread,
            result: outcome.err().unwrap_or(CUresult::CUDA_SUCCESS),
        });
    }

    /// Records a call that was refused before it was looked at.
    pub(crate) fn refused(&self, function: &'static str, thread: u64, result: CUresult) {
        if self.is_on() {
            self.keep(Record { number: 0, function, arguments: String::new(), stream: 0, thread, result });
        }
    }

    fn keep(&self, record: Record) {
        let mut kept = self.kept();
        *kept.counts.entry(record.function).or_default() += 1;
        if let Some(file) = &mut kept.file {
            // A log that cannot be written must not fail the call that it tells of.
            let _ = writeln!(file, "{record}");
        }
        if kept.records.len() == KEPT {
            kept.records.pop_front();
        }
        kept.records.push_back(record);
    }
}

/// The recorded calls of a simulator. Looking functions up is not recorded.
#[derive(Debug, Clone)]
pub struct Log {
    driver: Arc<Driver>,
}

impl Log {
    pub(crate) fn new(driver: Arc<Driver>) -> Self {
        Self { driver }
    }

    fn recorder(&self) -> &Recorder {
        &self.driver.log
    }

    /// The recorded calls, oldest first: the latest 65,536.
    #[must_use]
    pub fn records(&self) -> Vec<Record> {
        self.recorder().kept().records.iter().cloned().collect()
    }

    /// The recorded calls that `wanted` picks.
    #[must_use]
    pub fn filter(&self, wanted: impl Fn(&Record) -> bool) -> Vec<Record> {
        self.recorder().kept().records.iter().filter(|record| wanted(record)).cloned().collect()
    }

    /// The names of the called functions, in order.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        self.recorder().kept().records.iter().map(|record| record.function).collect()
    }

    /// How often a function was called since the log was cleared.
    #[must_use]
    pub fn count(&self, function: &str) -> u64 {
        self.recorder().kept().counts.get(function).copied().unwrap_or(0)
    }

    /// How often each function was called since the log was cleared.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.recorder().kept().counts.clone()
    }

    /// Forgets all calls.
    pub fn clear(&self) {
        let mut kept = self.recorder().kept();
        kept.records.clear();
        kept.counts.clear();
    }

    /// Records calls from now on, or no longer.
    pub fn record(&self, on: bool) {
        self.recorder().on.store(on, Ordering::Relaxed);
    }
}

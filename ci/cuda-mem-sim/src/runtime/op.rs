//! Work for a stream.

use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cuda_mem_sys::{CUgraphNodeType, CUresult};

use super::event::Reached;
use crate::driver::Driver;

/// A result of the driver's interface.
pub(crate) type Outcome<T> = Result<T, CUresult>;

/// An operation that a stream runs in its order, or a graph in its own.
#[derive(Clone)]
pub(crate) struct Op {
    /// What it is called in reports.
    pub(crate) name: &'static str,
    /// What kind of node it becomes in a graph.
    pub(crate) kind: CUgraphNodeType,
    /// Addresses it reads, host and device alike.
    pub(crate) reads: Vec<Range<u64>>,
    /// Addresses it writes.
    pub(crate) writes: Vec<Range<u64>>,
    pub(crate) run: Run,
}

/// See [`Run::Once`].
pub(crate) type Once = dyn Fn(&Driver) -> Outcome<()> + Send + Sync;

/// See [`Run::Poll`].
pub(crate) type Poll = dyn Fn(&Driver, Duration) -> Outcome<bool> + Send + Sync;

/// What an operation does when its turn comes: on a worker, with no lock held. It may run more than once, as graphs do.
#[derive(Clone)]
pub(crate) enum Run {
    /// It does something and is complete.
    Once(Arc<Once>),
    /// It is asked again and again, and told for how long it has been asked, until it says that it is complete. Between
    /// the questions it holds no worker.
    Poll(Arc<Poll>),
    /// A function of the program.
    Host(HostCall),
    /// It is a point of an event.
    Reach(Arc<Reached>),
    /// It is complete when its turn comes.
    Nothing,
}

/// A host function with its argument.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostCall {
    pub(crate) function: unsafe extern "C" fn(*mut c_void),
    pub(crate) data: *mut c_void,
}

// SAFETY: the program handed the function and its argument over to be called on a thread of the driver.
unsafe impl Send for HostCall {}
// SAFETY: as above; the argument is only passed on.
unsafe impl Sync for HostCall {}

impl HostCall {
    pub(crate) fn call(self) {
        // SAFETY: the program promised, when it handed them over, that the function may be called with this argument on a
        // thread of the driver's choice.
        unsafe { (self.function)(self.data) };
    }
}

impl Run {
    /// Whether it takes no time, so that no worker is needed.
    pub(super) fn is_instant(&self) -> bool {
        matches!(self, Self::Reach(_) | Self::Nothing)
    }
}

impl Op {
    pub(crate) fn new(
        name: &'static str,
        kind: CUgraphNodeType,
        run: impl Fn(&Driver) -> Outcome<()> + Send + Sync + 'static,
    ) -> Self {
        Self::of(name, kind, Run::Once(Arc::new(run)))
    }

    /// An operation that is asked until it is complete.
    pub(crate) fn polling(
        name: &'static str,
        kind: CUgraphNodeType,
        poll: impl Fn(&Driver, Duration) -> Outcome<bool> + Send + Sync + 'static,
    ) -> Self {
        Self::of(name, kind, Run::Poll(Arc::new(poll)))
    }

    pub(crate) fn of(name: &'static str, kind: CUgraphNodeType, run: Run) -> Self {
        Self { name, kind, reads: Vec::new(), writes: Vec::new(), run }
    }

    /// Declares that it reads `len` bytes at `at`.
    pub(crate) fn reading(mut self, at: u64, len: u64) -> Self {
        self.reads.push(at..at.saturating_add(len));
        self
    }

    /// Declares that it writes `len` bytes at `at`.
    pub(crate) fn writing(mut self, at: u64, len: u64) -> Self {
        self.writes.push(at..at.saturating_add(len));
        self
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Op")
            .field("name", &self.name)
            .field("reads", &self.reads)
            .field("writes", &self.writes)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Once(_) => "Once",
            Self::Poll(_) => "Poll",
            Self::Host(_) => "Host",
            Self::Reach(_) => "Reach",
            Self::Nothing => "Nothing",
        })
    }
}

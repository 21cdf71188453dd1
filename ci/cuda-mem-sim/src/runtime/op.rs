//! Work for a stream.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use cuda_mem_sys::{CUgraphNodeType, CUresult};

use crate::driver::Driver;

/// A result of the driver's interface.
pub(crate) type Outcome<T> = Result<T, CUresult>;

/// What an operation does when its turn comes: on a worker, with no lock held. It may run more than once, as graphs do.
pub(crate) type Run = Arc<dyn Fn(&Driver) -> Outcome<()> + Send + Sync>;

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

impl Op {
    pub(crate) fn new(
        name: &'static str,
        kind: CUgraphNodeType,
        run: impl Fn(&Driver) -> Outcome<()> + Send + Sync + 'static,
    ) -> Self {
        Self { name, kind, reads: Vec::new(), writes: Vec::new(), run: Arc::new(run) }
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

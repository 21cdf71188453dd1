//! What is replayed: an allocator.

use anyhow::Result;

use super::model::Refusal;

/// An allocator under replay. It gets its memory from a machine that it was made with.
///
/// With `--threads 2` frees come from another thread than allocations, one call at a time.
pub(crate) trait Candidate: Sync {
    /// Memory for work of a stream; returns its address.
    fn allocate(&self, size: u64, stream: u64) -> Result<u64, Refused>;

    /// Takes a block back, by its address. `side` is a stream beside its own with work pending on it.
    fn free(&self, address: u64, side: Option<u64>) -> Result<(), Refused>;

    /// What it tells of itself, once the trace is over.
    fn tally(&self) -> Result<Tally>;
}

/// Why an allocator did not do something.
#[derive(Debug)]
pub(crate) enum Refused {
    /// Counted; the replay goes on without the block.
    OutOfMemory,
    /// Ends the replay.
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Refused {
    fn from(error: anyhow::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::OutOfMemory => Self::OutOfMemory,
            Refusal::Invalid(_) => Self::Failed(refusal.into()),
        }
    }
}

/// What an allocator tells of itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Allocations that were tried again after memory was given back or waited for.
    pub(crate) retries: u64,
    /// Host memory that it keeps its books in, at the most.
    pub(crate) metadata_bytes: u64,
    /// On a device: how far what it holds is from what the driver's free memory fell by.
    pub(crate) unconfirmed: Option<u64>,
}

//! What a replay runs on.

use anyhow::Result;

use super::costs::Costs;
use super::plan::Block;

/// A device, modelled or real, that runs behind the host: what the replay itself does with it. What allocators do with it is
/// each machine's own.
pub(crate) trait Machine: Sync {
    /// The host comes to an operation: what is due by now is done.
    fn begin(&self, operation: u64) -> Result<()>;

    /// The allocator gave a block: the program gives its stream work that uses it.
    fn allocated(&self, block: &Block, address: u64) -> Result<()>;

    /// The program lets go of a block; the allocator hears of it next. Side uses are given to their streams before.
    fn freeing(&self, block: &Block) -> Result<()>;

    /// The trace is over: the device catches up, logs are closed.
    fn finish(&self) -> Result<()>;

    /// The most there was at once.
    fn peaks(&self) -> Result<Peaks>;

    /// What it cost so far.
    fn costs(&self) -> Costs;
}

/// The most there was at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Peaks {
    /// Bytes of physical memory.
    pub(crate) reserved: u64,
    /// Handles that were mapped, each as often as it was.
    pub(crate) mappings: u64,
}

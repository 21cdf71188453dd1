//! What is measured: device memory by address.

use cuda_mem_pool::Error;
use cuda_mem_pool::cuda_mem_core::Stream;

/// Ours, or what stands beside it.
pub(crate) trait Allocator: Sync {
    /// Memory that is ordered on the stream.
    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<u64, Error>;

    /// Gives it back, ordered on the stream that it was allocated on.
    ///
    /// # Safety
    ///
    /// The address came from [`allocate`](Self::allocate) and was not given back since; work that uses it is ordered before.
    unsafe fn free(&self, address: u64);

    /// What it says of itself.
    fn told(&self) -> Told {
        Told::default()
    }
}

/// What an allocator says of itself; nothing where it holds no memory.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Told {
    /// Most bytes of the device that it held since it was made.
    pub(crate) reserved: Option<u64>,
    /// Bytes of the host that its records take.
    pub(crate) metadata: Option<u64>,
    /// Calls of the driver that it made.
    pub(crate) driver_calls: Option<u64>,
}

//! What names a pool for other processes: descriptors and UUIDs. Carrying them there is the `cuda-mem-ipc` crate's.

mod handle;
mod registry;

pub use handle::{AllocationHandleSource, IpcAllocationHandle};

pub(crate) use registry::{Entry, Registered, Registry};

//! Allocations for other processes, by bytes in the format of PyTorch 2.11.
//!
//! The first byte is a version, the second a kind: `c` for memory of `cuMemAlloc`, by the driver's handle of 64 bytes; `e` for mapped
//! memory in pieces of one size, by the exporter's process number and a descriptor of each, which the importer takes out of that
//! process. Mapped memory in pieces of several sizes has no kind there; ours is `m`, with a size beside each descriptor, which
//! PyTorch refuses by its kind. The Python package has it opened here, in processes on PyTorch's own allocator too.

mod blob;
mod exports;
mod opened;

pub(crate) use blob::Named;
pub use blob::{HandleError, ShareableHandle};
pub(crate) use exports::Exports;
pub use opened::IpcDevPtr;
pub(crate) use opened::{Opened, sized, take};

//! Shares allocations with other processes, by bytes in PyTorch's own format.
//!
//! The first byte is a version, the second a kind: `c` for memory of `cuMemAlloc`, by the driver's handle of 64 bytes; `e` for mapped
//! memory in handles of one size, by the exporter's process number and a descriptor of each handle, which the importer takes out of that
//! process. Ours has a trailer, which PyTorch's reader skips: the name of a socket where the exporter hands out the same descriptors.

mod blob;
mod descriptors;
mod exports;
mod opened;
mod socket;

pub use blob::ShareableHandle;
pub(crate) use blob::{Named, VERSIONS};
pub(crate) use descriptors::close;
pub(crate) use exports::{legacy, share};
pub use opened::IpcDevPtr;
pub(crate) use opened::{Memory, import, open};

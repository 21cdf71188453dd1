//! The allocation engines: which bytes of which segment or page a block gets. Offsets and sizes only; no memory, no driver, no lock.
//!
//! [`segments`] has PyTorch's layout, [`paged`] is for memory that grows by pages. Records, free lists and size classes serve the pinned cache's heap too.

pub(crate) mod classes;
pub(crate) mod free;
#[doc(hidden)]
pub mod paged;
pub mod segments;
pub(crate) mod slab;

//! The allocation engines: which bytes of which segment or page a block gets. Offsets and sizes only; no memory, no driver, no lock.
//!
//! [`segments`] has PyTorch's layout, [`paged`] is for memory that grows by pages, and its spans serve the pinned cache too.

pub(crate) mod classes;
#[doc(hidden)]
pub mod paged;
pub mod segments;
pub(crate) mod slab;

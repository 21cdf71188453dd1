//! Resources over the driver's own pools, with the vocabulary of cuda.core.

mod device;
mod pinned;
mod pool;
mod sharing;

pub use device::{DeviceMemoryResource, DeviceMemoryResourceOptions};
pub use pinned::{PinnedMemoryResource, PinnedMemoryResourceOptions};
pub use pool::Attributes;

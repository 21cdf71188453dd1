//! Resources over the driver's own pools, with the vocabulary of cuda.core.

mod attributes;
mod device;
mod managed;
mod numa;
mod pinned;
mod pool;
mod share;

pub use attributes::{Attributes, ThresholdEffect};
pub use device::{DeviceMemoryResource, DeviceMemoryResourceOptions};
pub use managed::{ManagedMemoryResource, ManagedMemoryResourceOptions};
pub use pinned::{PinnedMemoryResource, PinnedMemoryResourceOptions};

pub(crate) use device::DeviceInner;
pub(crate) use pinned::PinnedInner;

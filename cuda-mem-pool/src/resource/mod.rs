//! Memory resources: what gives memory, and what is given.

mod access;
mod allocation;
mod home;
mod raw;

pub use access::{Accessibility, DeviceAccessible, DeviceReachable, HostDeviceAccessible, HostReachable};
pub use allocation::Allocation;
pub use home::ResourceContext;
pub use raw::{MemoryResource, RawResource};

/// What memory is aligned to unless more is asked for, in bytes: what CUDA promises of all its allocations.
pub const DEFAULT_ALIGNMENT: usize = 256;

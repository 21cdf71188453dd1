//! Host memory that devices reach directly: registered in place, or allocated pinned.

mod mapping;
mod memory;
mod pinned;
mod registered;
pub(crate) mod registry;

pub use mapping::FileMapping;
pub use memory::{HostElements, HostMemory};
pub use pinned::{PinnedBuffer, PinnedFlags};
pub use registered::{RegisterFlags, Registered};

pub(crate) use registered::{Registration, device_address};

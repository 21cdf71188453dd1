//! Host memory that devices reach directly: registered in place, or allocated pinned.

mod anonymous;
mod mapping;
mod memory;
pub mod numa;
mod options;
mod pinned;
mod populate;
pub mod raw;
mod registered;
mod registration;
pub(crate) mod registry;
mod residency;
mod shared;
mod system;

pub use anonymous::{HostMapping, MappingOptions, Pages};
pub use mapping::FileMapping;
pub use memory::{HostElements, HostMemory};
pub use options::{CancelToken, Progress, RegisterOptions};
pub use pinned::{PinnedBuffer, PinnedFlags};
pub use registered::{RegisterFlags, Registered};
pub use residency::PageReport;
pub use shared::{SharedMapping, SharedPages};

pub(crate) use registration::Registration;

//! The caching allocator of device memory.
//!
//! A [`CachingAllocator`] gives memory as a [`MemoryResource`](crate::MemoryResource), or by address. A [`PrivatePool`] has memory that serves
//! nobody else, such as a graph's; a [`Tag`] has memory that sleeps; a [`Pinned`] keeps memory behind its addresses, for code that registers it.

mod allocator;
mod callbacks;
mod figures;
mod grow;
mod hot;
mod options;
mod owner;
mod page_map;
mod pending;
mod private;
mod record;
mod remote;
mod shared;
mod sharing;
mod sleep;
mod slot;
mod source;
mod streams;
mod vmm;

pub use crate::engine::paged::{Hold, Segment};
pub use crate::error::{Advice, CachedMemory, OutOfMemoryReport, SleepError};
pub use allocator::{CachingAllocator, StreamAllocator};
pub use callbacks::{CallObserver, CallbackId, DriverCall};
pub use figures::StreamSegmentSize;
pub use options::CachingOptions;
pub use private::{PoolRoute, PrivatePool, Restored};
pub use sharing::{Pin, Pinned};
pub use sleep::{Asleep, BackingEvent, Backup, Keep, Kept, Notice, Restore, Slept, Tag, TagScope, TagState};

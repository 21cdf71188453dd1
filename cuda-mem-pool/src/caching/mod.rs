//! The caching allocator of device memory.

mod allocator;
mod callbacks;
mod figures;
mod grow;
mod hot;
mod index;
mod observer;
mod options;
mod owner;
mod page_map;
mod pending;
mod private;
mod record;
mod remote;
mod rounding;
mod shared;
mod sharing;
mod size_set;
mod sleep;
mod slot;
mod source;
mod streams;
mod vmm;

pub use crate::engine::paged::Hold;
pub use crate::error::{Advice, CachedMemory, OutOfMemoryReport, SleepError};
pub use allocator::{CachingAllocator, StreamAllocator};
pub use callbacks::{BackingChange, CallbackId};
pub use figures::{StreamSegmentSize, TraceRecording};
pub use observer::{CallObserver, DriverCall};
pub use options::CachingOptions;
pub use private::{PoolRoute, PrivatePool, Restored};
pub use sharing::{Pin, Pinned, Segment};
pub use sleep::{Asleep, BackingEvent, Backup, Keep, Kept, Restore, Slept, Tag, TagScope, TagState, Told};

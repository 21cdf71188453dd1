//! The caching allocator of device memory.

mod allocate;
mod allocator;
mod by_heap;
mod callbacks;
mod free;
mod index;
mod ladder;
mod observer;
mod options;
mod out_of_memory;
mod page_map;
mod pending;
mod pins;
mod private;
mod record;
mod remote;
mod rounding;
mod seeing;
mod segment;
mod shared;
mod shown;
mod sizes;
mod slot;
mod statistics;
mod thread_slots;
mod vmm;

pub use allocator::CachingAllocator;
pub use callbacks::CallbackId;
pub use observer::{CallObserver, DriverCall};
pub use options::CachingOptions;
pub use out_of_memory::{Advice, CachePool, CachedMemory, OutOfMemoryReport};
pub use pins::{Pin, Pinned, PinnedRange};
pub use private::BlockExport;
pub use seeing::TraceRecording;
pub use segment::{BackingChange, Segment, SegmentState};
pub use sizes::StreamSegmentSize;

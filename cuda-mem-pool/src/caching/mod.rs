//! The caching allocator of device memory.

mod allocate;
mod allocator;
#[allow(dead_code, reason = "the allocator is being built on it")]
mod barrier;
#[allow(dead_code, reason = "the allocator is being built on it")]
mod by_heap;
mod free;
mod index;
mod ladder;
#[allow(dead_code, reason = "the allocator is being built on it")]
mod magazine;
mod options;
#[allow(dead_code, reason = "the allocator is being built on it")]
mod owner_cell;
mod page_map;
mod pending;
mod private;
mod remote;
mod shared;
mod slot;
mod thread_slots;
mod vmm;

pub use allocator::CachingAllocator;
pub use options::CachingOptions;

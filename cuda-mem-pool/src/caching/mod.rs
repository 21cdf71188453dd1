//! The caching allocator of device memory.

#[allow(dead_code, reason = "the allocator is being built on it")]
mod barrier;
#[allow(dead_code, reason = "the allocator is being built on it")]
mod by_heap;
#[allow(dead_code, reason = "the allocator is being built on it")]
mod magazine;
#[allow(dead_code, reason = "the allocator is being built on it")]
mod owner_cell;
#[allow(dead_code, reason = "the allocator is being built on it")]
mod page_map;
#[allow(dead_code, reason = "the allocator is being built on it")]
mod remote;

//! What the crate promises, on any driver: the same tests run on the simulator and on a GPU.
//!
//! The environment variables are those of the layer below.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../../../cuda-mem-core/tests/common/mod.rs"]
mod common;

mod adaptors;
mod caching;
mod caching_capture_reuse;
mod caching_oom;
mod caching_pools;
mod caching_pools_capture;
mod caching_pools_checkpoints;
mod caching_pools_memory;
mod caching_pools_model;
mod caching_pools_seen;
mod caching_pools_upstreams;
mod caching_seeing;
mod device_pool;
mod kernels;
mod pinned_cache;
mod pinned_cache_ends;
mod pinned_cache_pools;
mod pinned_cache_resource;
mod pinned_pool;
mod resources;
mod sleep;
mod support;

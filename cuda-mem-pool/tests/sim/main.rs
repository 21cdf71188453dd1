//! What the crate promises and only a simulator can show: on machines of every kind, and when driver calls fail.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "figures that a test was asked to show")]

#[path = "../../../cuda-mem-core/tests/common/mod.rs"]
mod common;

mod access;
mod begun_captures;
mod bench_sequences;
mod blocks;
mod caching;
mod caching_at;
mod caching_headroom;
mod caching_model;
mod caching_oom;
mod caching_options;
mod caching_panics;
mod caching_peaks;
mod caching_pins;
mod caching_pools;
mod caching_pools_full;
mod caching_pools_meanwhile;
mod caching_threads;
mod caching_watchers;
mod capture_reuse;
mod endings;
mod extremes;
mod faults;
#[path = "../device/adaptors/faulty.rs"]
#[allow(dead_code, reason = "shared with the portable tests")]
mod faulty;
mod foreign;
mod forgotten_streams;
#[path = "../../../cuda-mem-core/tests/sim/interrupted.rs"]
#[allow(dead_code, reason = "shared with another crate's tests")]
mod interrupted;
mod left_streams;
mod machines;
mod pinned_cache;
mod pinned_cache_full;
mod pinned_cache_model;
mod pinned_cache_resource;
mod pinned_cache_soak;
mod pinned_vec;
mod pools_model;
mod release_failures;
#[path = "../../../cuda-mem-core/tests/sim/rig.rs"]
#[allow(dead_code, reason = "shared with another crate's tests")]
mod rig;
mod scenarios;
mod sleep;
mod sleep_calls;
mod sleep_deaths;
mod sleep_model;
mod stream_ends;
mod taken_out;
mod without_mapping;

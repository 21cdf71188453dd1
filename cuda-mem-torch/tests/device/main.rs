//! What the crate promises, on any driver: the same tests run on the simulator and on a GPU.
//!
//! The environment variables are those of the layers below.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../../../cuda-mem-core/tests/common/mod.rs"]
mod common;

mod copies;
mod dlpack;
mod dlpack_order;
mod hooks;
mod ipc;
mod mem_pool;
mod native;
mod pluggable;
mod pluggable_memory;
mod pluggable_model;
mod pluggable_pools;
mod pluggable_telling;
mod program;
mod symm;
mod symm_backends;
mod symm_fakes;
mod symm_mempool;

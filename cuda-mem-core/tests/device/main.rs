//! What the crate promises, on any driver: the same tests run on the simulator and on a GPU.
//!
//! `CUDA_MEM_BACKEND` chooses between the two, `CUDA_MEM_DEFAULT_STREAM` the stream that most tests work on, and
//! `CUDA_MEM_RECORD` a file that gets what each test saw, to be compared.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../common/mod.rs"]
mod common;

mod anonymous;
mod buffers;
mod capture_points;
mod captures;
mod contexts;
mod copies;
mod drivers;
mod events;
mod fences;
mod kernels;
mod left_registered;
mod managed;
mod mappings;
mod nvml;
mod peers;
mod pinned;
mod pointers;
mod populated;
mod process;
mod ranges;
mod raw_pins;
mod registered;
mod scopes;
mod stager;
mod stager_sources;
mod streams;
mod transfers;
mod uses;
mod vmm;

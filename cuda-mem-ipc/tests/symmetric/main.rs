//! Symmetric memory, on any driver: the same tests run on the simulator and on a GPU.
//!
//! Ranks are processes: each test starts its own program again as the others. Rank `r` has device `r`, or again those before if there
//! are fewer.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../../../cuda-mem-core/tests/common/mod.rs"]
mod common;

mod backends;
mod buffers;
mod calls;
mod death;
mod exchange;
mod fakes;
mod joining;
mod leaving;
mod mempool;
mod order;
mod rank;
mod signals;

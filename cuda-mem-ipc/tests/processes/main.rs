//! Buffers that go from one process to another, on any driver: the same tests run on the simulator and on a GPU.
//!
//! Each test starts its own program again, as the other processes: `common/pair.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../../../cuda-mem-core/tests/common/mod.rs"]
mod common;

mod ahead;
mod contents;
mod death;
mod drops;
mod fork;
mod hostile;
mod kinds;
mod lent;
mod link;
mod order;
mod ranges;
mod raw;
mod refused;
mod waits;

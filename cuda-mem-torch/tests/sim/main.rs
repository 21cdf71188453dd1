//! What needs a process of its own, on simulated drivers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "nothing is forked here")]
#[path = "../../../cuda-mem-core/tests/common/child.rs"]
mod child;
mod current;
mod drivers;
mod faults;
#[path = "../../../cuda-mem-core/tests/common/library.rs"]
mod library;
mod reentry;
mod sharing;

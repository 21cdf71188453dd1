//! The C interface, as C calls it: in this process on the simulator, and by a C program with the header and the library.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

mod blocks;
mod callbacks;
#[path = "../../../cuda-mem-core/tests/common/gate.rs"]
#[allow(dead_code, reason = "shared with another crate's tests")]
mod gate;
mod guests;
mod history;
#[path = "../../../cuda-mem-core/tests/common/library.rs"]
mod library;
mod pinned;
mod pools;
mod program;
mod settings;
mod sharing;
mod sleep;
mod support;
mod symm;
mod threads;
mod top;

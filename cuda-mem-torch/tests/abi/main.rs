//! The C interface, as C calls it: in this process on the simulator, and by a C program with the header and the library.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod blocks;
mod callbacks;
mod history;
mod pools;
mod program;
mod settings;
mod sharing;
mod support;
mod symm;

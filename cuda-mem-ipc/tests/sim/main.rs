//! What the transport promises, shown with real sockets and real processes: no device is needed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../../../cuda-mem-core/tests/common/child.rs"]
mod child;

#[allow(dead_code, reason = "shared with another crate's tests")]
#[path = "../../../cuda-mem-core/tests/common/capture.rs"]
mod capture;

mod ahead;
mod asleep;
mod beside;
mod busy;
mod calling;
mod calls;
mod connections;
mod corpus;
mod death;
mod descriptors;
mod drivers;
mod fork;
mod hello;
mod hostile;
mod listener;
mod many_uses;
mod other;
mod own_sim;
mod polling;
mod raw;
mod reentry;
mod refused_fences;
mod sharing;
mod stalled;
mod strangers;

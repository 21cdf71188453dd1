//! What goes wrong with NVSHMEM and NCCL, made so by stand-ins: on the simulator alone.
#![cfg(any(feature = "nccl", feature = "nvshmem"))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../../../cuda-mem-core/tests/common/mod.rs"]
mod common;
#[allow(dead_code, reason = "each test program uses its part")]
#[path = "../engines/fake/mod.rs"]
mod fake;
#[cfg(feature = "nccl")]
mod nccl;
#[cfg(feature = "nvshmem")]
mod nvshmem;
#[allow(dead_code, reason = "as above")]
#[path = "../engines/rank.rs"]
mod rank;

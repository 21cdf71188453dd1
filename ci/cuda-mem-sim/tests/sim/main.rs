//! The simulator's own tests: what the driver does, and what the simulator tells of a program.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that panics has failed")]

mod account;
mod capture;
mod common;
mod contexts;
mod freeing;
mod gpu;
mod graph_order;
mod ipc;
mod memory;
mod nodes;
mod pool;
mod pool_sharing;
mod shared_events;
mod simulator;
mod streams;
mod stress;
mod vmm;

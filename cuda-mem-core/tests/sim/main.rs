//! What the crate promises and only a simulator can show: which driver calls it makes, in which order, and what it does when
//! one fails.
//!
//! # The soundness holes
//!
//! Each hole that other crates have, or had, is a test here by its label. What must not compile lies in `ui/`.
//!
//! | label | the hole elsewhere | the test |
//! |---|---|---|
//! | C1 | one event for all readers: the second hides the first | `holes_order::c1_*` |
//! | C2 | a use is forgotten with its stream | `holes_order::c2_*` |
//! | C3 | copies into pinned memory are neither waited for nor recorded | `holes_order::c3_*` |
//! | C4 | result codes are Rust enums: an unknown one is undefined behaviour | `holes_values::c4_*` |
//! | C5 | sizes wrap: a huge length allocates nothing | `holes_values::c5_*` |
//! | C6 | a per-thread stream that moves to another thread is another stream | `holes_order::c6_*` |
//! | C7 | a graph outlives the memory that was captured into it | `holes_capture::c7_*` |
//! | C8 | a stream waits, then the host frees at once | `holes_order::c8_*` |
//! | K1 | a free on one stream while others use the memory | `holes_order::k1_*` |
//! | K2 | pinned memory is freed without a wait | `holes_order::k2_*` |
//! | K3 | a Rust reference to memory that the device writes | `holes_order::k3_*`, `ui/k3_*` |
//! | K4 | streams silently blocking; a panic in a drop | `holes_values::k4_*` |
//! | N1 | memory counts as zeroed when its zeroing was enqueued | `holes_order::n1_*` |
//! | N2 | a drop stalls the device, and every capture in the context | `holes_capture::n2_*` |
//! | N3 | safe functions take raw addresses and unmap under running work | `holes_values::n3_*`, `ui/n3_*` |
//! | B1 | a forgotten guard leaves freed memory registered | `holes_registration::b1_*` |
//! | B2 | asynchronous copies of borrowed memory; uninitialised pinned memory | `holes_values::b2_*`, `ui/b2_*` |
//! | O1 | a registration that outlives its memory | `holes_registration::o1_*`, `ui/o1_*` |
//! | E1 | a registration that failed is undone; one that was undone is undone again | `holes_registration::e1_*` |
//! | D1 | two tables of one library are two drivers with books of their own | `holes_drivers::d1_*` |
//! | D2 | memory comes back because the driver refused to wait for it | `holes_quiet::d2_*` |
//! | D3 | a stream is drawn into a capture between the check and the call | `holes_capture::d3_*` |
//! | D4 | a value of a later driver is larger than its place | `holes_drivers::d4_*` |
//! | S1 | a panic skips the wait for copies of borrowed memory | `holes_order::s1_*` |
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stdout, reason = "figures that a test was asked to show")]

#[path = "../common/mod.rs"]
mod common;

mod begun_captures;
mod calls;
mod deferred;
mod disowned;
mod drivers;
mod errors;
mod extremes;
mod faults;
mod fences;
mod fork;
mod guests;
mod holes_capture;
mod holes_drivers;
mod holes_order;
mod holes_quiet;
mod holes_registration;
mod holes_values;
mod idle;
mod imported;
#[allow(dead_code, reason = "shared with another crate's tests")]
mod interrupted;
mod nvml;
mod ordering;
mod panicking;
mod reentry;
mod registration;
mod rig;
mod rules;
mod sources;
mod stager;
mod thread_ends;
mod vmm;

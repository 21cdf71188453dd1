//! Any packets with any descriptors are messages or errors, and leave nothing open: `cargo +nightly fuzz run connection`.

#![no_main]

use libfuzzer_sys::fuzz_target;

// What the crate's own tests do with the inputs that are kept in `seeds`.
#[path = "../../../cuda-mem-ipc/tests/sim/corpus/connection.rs"]
mod connection;
#[path = "../../../cuda-mem-ipc/tests/sim/corpus/frame.rs"]
#[allow(dead_code, reason = "one function of it is used")]
mod frame;
#[path = "../../../cuda-mem-ipc/tests/sim/raw.rs"]
#[allow(dead_code, reason = "shared with tests that use all of it")]
mod raw;

fuzz_target!(|bytes: &[u8]| {
    connection::check(bytes);
});

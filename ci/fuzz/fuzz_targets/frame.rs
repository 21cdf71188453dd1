//! Any bytes are a frame of the transport or an error, and a frame is written as it is read: `cargo +nightly fuzz run frame`.

#![no_main]

use libfuzzer_sys::fuzz_target;

// What the crate's own tests do with the inputs that are kept in `seeds`.
#[path = "../../../cuda-mem-ipc/tests/sim/corpus/frame.rs"]
mod frame;

fuzz_target!(|bytes: &[u8]| {
    frame::check(bytes);
});

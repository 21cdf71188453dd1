//! Any bytes are a message of a shared pool or an error, and a message is written as it is read: `cargo +nightly fuzz run hand_over`.

#![no_main]

use libfuzzer_sys::fuzz_target;

// What the crate's own tests do with the inputs that are kept in `seeds`.
#[path = "../../../cuda-mem-ipc/tests/sim/corpus/hand_over.rs"]
mod hand_over;

fuzz_target!(|bytes: &[u8]| {
    hand_over::check(bytes);
});

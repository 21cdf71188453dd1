//! Any bytes are a trace or an error, and a trace is read as it is written: `cargo +nightly fuzz run trace`.

#![no_main]

use cuda_mem_pool::trace::Trace;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(trace) = Trace::read(bytes) else { return };
    let mut text = Vec::new();
    trace.write(&mut text).expect("a trace that was read can be written, and a vector takes all");
    assert_eq!(Trace::read(&*text).expect("what was written is a trace"), trace);
});

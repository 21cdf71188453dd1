//! Any bytes are a trace or an error, and a trace is read as it is written: `cargo +nightly fuzz run trace`.

#![no_main]

use cuda_mem_pool::trace::{Trace, TraceWriter};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(trace) = Trace::read(bytes) else { return };
    let mut writer = TraceWriter::new(Vec::new(), trace.header()).expect("a header that was read fits");
    for event in trace.events() {
        writer.write(event).expect("an event that was read can be written");
    }
    let text = writer.finish().expect("a vector takes all");
    assert_eq!(Trace::read(&*text).expect("what was written is a trace"), trace);
});

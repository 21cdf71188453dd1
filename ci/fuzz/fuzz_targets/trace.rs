//! Any bytes are a trace or an error, and the events of a trace make sense together: `cargo +nightly fuzz run trace`.

#![no_main]

use std::collections::HashMap;

use cuda_mem_pool::trace::{Action, MAX_SIZE, Trace};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(trace) = Trace::read(bytes) else { return };
    for (key, value) in &trace.header {
        assert!(
            !key.is_empty() && key.is_ascii() && !value.contains(char::is_whitespace),
            "{key:?}={value:?}"
        );
    }
    // What happened to each block last, and its stream.
    let mut blocks = HashMap::new();
    for event in &trace.events {
        let on_stream = |last: char| (event.stream, last);
        let (before, after) = match event.action {
            Action::Allocate { size } => {
                assert!(size <= MAX_SIZE, "{event:?}");
                (None, on_stream('a'))
            }
            Action::Free => (Some(on_stream('a')), on_stream('f')),
            Action::Complete => (Some(on_stream('f')), on_stream('c')),
        };
        assert_eq!(blocks.insert(event.id, after), before, "{event:?}");
    }
});

//! Any bytes are a memory snapshot with its page, or an error: `cargo +nightly fuzz run snapshot -- -rss_limit_mb=1024`.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(page) = cuda_mem_report::of_snapshot(bytes, None, "any bytes") {
        assert!(page.len() < 30_000_000);
    }
});

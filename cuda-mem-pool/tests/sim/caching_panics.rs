//! What the program gave to be called panics, once at each of its calls: books and driver stay together.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cuda_mem_core::{Context, Driver, Stream};
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions, CallObserver, DriverCall};
use cuda_mem_pool::history::{HistoryOptions, RecordContext};
use cuda_mem_pool::snapshot::Frame;
use cuda_mem_sim::Sim;

use crate::caching_oom::{climb, expect_whole};
use crate::caching_watchers::within_a_minute;

/// Panics at one call.
struct Panics {
    at: u64,
    calls: AtomicU64,
}

impl Panics {
    fn call(&self) {
        if self.calls.fetch_add(1, Ordering::Relaxed) + 1 == self.at {
            // Not by the hook, which would write each of them down.
            resume_unwind(Box::new("what was given panics"));
        }
    }
}

impl CallObserver for Panics {
    fn called(&self, _call: &DriverCall, _took: Duration) {
        self.call();
    }
}

/// Runs up the whole ladder once for each call of what panics; `make` gives it to an allocator, and `ended` sees that after a run in which
/// it did.
fn no_panic_does_harm(make: impl Fn(&Context, Arc<Panics>) -> CachingAllocator) {
    let mut failures = Vec::new();
    for at in 1.. {
        let sim = Sim::builder().memory(64 << 20).driver(13000).no_data().build();
        let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
        let streams = [(); 3].map(|()| Stream::new(&context).unwrap());
        let panics = Arc::new(Panics { at, calls: AtomicU64::new(0) });
        let allocator = make(&context, panics.clone());
        let blocks = RefCell::default();
        let outcome = catch_unwind(AssertUnwindSafe(|| climb(&allocator, &streams, &blocks)));
        if panics.calls.load(Ordering::Relaxed) < at {
            assert!(at > 1, "it was never called");
            break;
        }
        let mut complaints = Vec::new();
        if !matches!(outcome, Ok(Ok(()))) {
            complaints.push(format!("{outcome:?}"));
        }
        for block in blocks.take() {
            // SAFETY: allocated on the way, and not used.
            unsafe { allocator.free_by_address(block) }.unwrap();
        }
        complaints.extend(expect_whole(&context, &allocator, &streams[0]));
        drop((allocator, streams, context));
        complaints.extend(sim.misuse().iter().map(|misuse| format!("misused: {misuse}")));
        complaints.extend(sim.leaks().iter().map(|leak| format!("leaked: {leak}")));
        failures.extend(complaints.iter().map(|what| format!("call {at}: {what}")));
    }
    assert!(failures.is_empty(), "{} complaints:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn an_observer_that_panics_does_no_harm() {
    within_a_minute(|| {
        no_panic_does_harm(|context, panics| {
            CachingAllocator::observed(context, &CachingOptions::default(), panics).unwrap()
        });
    });
}

#[test]
fn a_provider_of_stacks_that_panics_does_no_harm() {
    within_a_minute(|| {
        no_panic_does_harm(|context, panics| {
            let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
            let frames = move || {
                panics.call();
                Arc::<[Frame]>::from([])
            };
            allocator.history().start(&HistoryOptions::default().with_frames(RecordContext::All, frames));
            allocator
        });
    });
}

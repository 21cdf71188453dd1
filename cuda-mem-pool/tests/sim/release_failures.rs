//! What the hook for releases that fail may do: it is the program's own, and may ask the allocator in the middle of whose work it is called.

use std::sync::{Arc, Mutex};

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, Driver, Stream};
use cuda_mem_pool::MemoryResource;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_sim::Sim;

use crate::caching_watchers::within_a_minute;

const MIB: usize = 1 << 20;

/// More than any of these tests makes of a call.
const ALL: u64 = 100;

fn fail_all(sim: &Sim, function: &str) {
    (0..ALL).for_each(|_| sim.fail_call(function, 1, CUresult::CUDA_ERROR_UNKNOWN));
}

/// Has `act`, which makes releases fail, meet a hook that does `asks`. How often that was called. What was not released is left.
fn with_hook(
    act: impl FnOnce(&Sim, &Context, &CachingAllocator) + Send + 'static,
    asks: impl Fn(&Context, &CachingAllocator) + Send + Sync + 'static,
) -> usize {
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    within_a_minute(move || {
        let sim = Sim::builder().memory(64 << 20).build();
        let driver = Driver::over(sim.table()).unwrap();
        let context = driver.device(0).unwrap().primary_context().unwrap();
        let allocator = CachingAllocator::new(&context, &CachingOptions::default()).unwrap();
        let (of, asked, count) = (context.clone(), allocator.clone(), Arc::clone(&counted));
        driver.on_release_failure(move |_| {
            asks(&of, &asked);
            *count.lock().unwrap() += 1;
        });
        act(&sim, &context, &allocator);
        assert_eq!(driver.release_failures(), *counted.lock().unwrap() as u64);
        sim.clear_faults();
        driver.on_release_failure(|_| {});
        drop(allocator);
        assert!(sim.misuse().is_empty());
    });
    *calls.lock().unwrap()
}

/// A context is current for a while in calls under the locks of heaps and of the page source.
#[test]
fn the_hook_may_look_at_all_figures() {
    let calls = with_hook(
        |sim, context, allocator| {
            let streams = [(); 2].map(|()| Stream::new(context).unwrap());
            fail_all(sim, "cuCtxPopCurrent");
            for round in 0..4 {
                let stream = &streams[round % 2];
                drop(allocator.allocate(60 * MIB, stream).unwrap());
                stream.synchronize().unwrap();
            }
            allocator.empty_cache().unwrap();
        },
        |_, allocator| {
            let _ = allocator.reserved_bytes();
            let _ = allocator.statistics();
            let _ = allocator.snapshot();
            allocator.largest_free_block().unwrap();
        },
    );
    assert!(calls > 0);
}

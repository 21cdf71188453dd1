//! A hook of the program's that runs inside a call, and calls back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, Driver, Stream};
use cuda_mem_sim::Sim;
use cuda_mem_torch::{CudaAllocator, DataPtr, NativeAllocator, PluggableAllocator, create_custom_allocator};

/// Far longer than it needs.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn who_hears_of_a_device_that_was_not_initialised_tries_again() {
    let (done, ended) = mpsc::channel();
    let thread = thread::spawn(move || {
        let sim = Sim::builder().build();
        let driver = Driver::over(sim.table()).unwrap();
        let native = Arc::new(NativeAllocator::new(driver));
        let (again, heard) = (Arc::clone(&native), mpsc::channel());
        let tell = Mutex::new(heard.0);
        driver.on_release_failure(move |_| {
            again.init(0).unwrap();
            tell.lock().unwrap().send(()).unwrap();
        });
        // The context that was retained for it goes, which the driver refuses as often as it is asked.
        for function in ["cuDeviceTotalMem", "cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxRelease"] {
            sim.fail_call(function, 1, CUresult::CUDA_ERROR_UNKNOWN);
        }
        native.init(1).unwrap_err();
        heard.1.try_recv().unwrap();
        driver.on_release_failure(|_| {});
        native.init(1).unwrap();
        done.send(()).unwrap();
    });
    assert_ne!(ended.recv_timeout(LIMIT), Err(mpsc::RecvTimeoutError::Timeout), "it waits for ever");
    thread.join().unwrap();
}

/// Runs a test in a thread, which may not wait for ever, with an allocator of two functions on a simulator of its own.
fn within_limit(test: impl FnOnce(&Sim, &Context, Arc<PluggableAllocator>) + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = thread::spawn(move || {
        let sim = Sim::builder().build();
        let driver = Driver::over(sim.table()).unwrap();
        let context = driver.device(0).unwrap().primary_context().unwrap();
        let next = AtomicU64::new(1);
        let alloc = move |_, _, _: &Stream| Ok(next.fetch_add(1, Ordering::Relaxed) << 20);
        // SAFETY: addresses that nothing uses.
        let allocator = unsafe { create_custom_allocator(driver, alloc, |_, _, _, _| Ok(())) };
        test(&sim, &context, allocator.unwrap());
        driver.on_release_failure(|_| {});
        done.send(()).unwrap();
    });
    assert_ne!(ended.recv_timeout(LIMIT), Err(mpsc::RecvTimeoutError::Timeout), "it waits for ever");
    thread.join().unwrap();
}

/// What a function has captured is dropped when another one takes its place, and may be the allocator's own memory.
#[test]
fn a_function_that_is_replaced_may_have_a_block() {
    within_limit(|_, context, allocator| {
        let allocate = || context.with_current(|| allocator.allocate(1000)).unwrap().unwrap();
        let live = || allocator.device_stats(context.device()).unwrap().allocation.all.current;
        type Set<'s> = &'s dyn Fn(Option<DataPtr>);
        let setters: [Set<'_>; 8] = [
            &|held| allocator.set_init_fn(move |_| _ = &held),
            &|held| allocator.set_reset_fn(move || _ = &held),
            &|held| allocator.set_memory_fraction_fn(move |_, _| _ = &held),
            &|held| allocator.set_base_alloc_fn(move |address, _| address + u64::from(held.is_some())),
            &|held| allocator.set_record_stream_fn(move |_, _| _ = &held),
            &|held| allocator.set_begin_allocate_to_pool(move |_, _, _| _ = &held),
            &|held| allocator.set_end_allocate_to_pool_fn(move |_, _| _ = &held),
            &|held| allocator.set_release_pool(move |_, _| _ = &held),
        ];
        for set in setters {
            set(Some(allocate()));
            assert_eq!(live(), 1);
            set(None);
            assert_eq!(live(), 0);
        }
    });
}

/// Records one stream more for a block than it remembers, of which one is not taken by the driver. Who hears of that asks for figures.
fn hears_of_a_forgotten_stream(sim: &Sim, context: &Context, allocator: Arc<dyn CudaAllocator>) {
    let stream = Stream::new(context).unwrap();
    let block = allocator.malloc(1000, context.device(), &stream).unwrap();
    let record = || allocator.record_stream(block, &Stream::new(context).unwrap()).unwrap();
    (0..32).for_each(|_| record());
    let (asks, heard) = (Arc::clone(&allocator), Arc::new(AtomicU64::new(0)));
    let hears = Arc::clone(&heard);
    context.driver().on_release_failure(move |_| {
        let (base, bytes) = asks.base_allocation(block).unwrap();
        assert!(base == block && bytes >= 1000);
        hears.fetch_add(1, Ordering::Relaxed);
    });
    // It is asked twice.
    for call in [1, 1] {
        sim.fail_call("cuStreamDestroy", call, CUresult::CUDA_ERROR_UNKNOWN);
    }
    record();
    assert_eq!(heard.load(Ordering::Relaxed), 1);
    sim.clear_faults();
    context.driver().on_release_failure(|_| {});
    // SAFETY: allocated above, and not used.
    unsafe { allocator.raw_delete(block) }.unwrap();
}

#[test]
fn who_hears_of_a_stream_that_a_block_forgets_asks_for_the_block() {
    within_limit(|sim, context, allocator| hears_of_a_forgotten_stream(sim, context, allocator));
}

#[test]
fn who_hears_of_a_stream_that_memory_of_the_driver_forgets_asks_for_it() {
    within_limit(|sim, context, allocator| {
        let native: Arc<dyn CudaAllocator> = Arc::new(allocator.native().clone());
        native.init(1).unwrap();
        native.enable(false);
        hears_of_a_forgotten_stream(sim, context, native);
    });
}

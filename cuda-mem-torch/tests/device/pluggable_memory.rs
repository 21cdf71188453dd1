//! `PluggableAllocator`: streams that use an allocation, the end of memory, and fractions.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::MempoolId;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::segments::Filter;
use cuda_mem_torch::{CudaAllocator, Error, MemPool};

use crate::common::World;
use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::program::{Call, MIB, Program, free};

#[test]
fn a_recorded_stream_keeps_the_memory_until_it_has_passed() {
    let world = World::new();
    let (program, device) = (Program::new(), world.context.device());
    let allocator = program.allocator(&world);
    let side = world.new_stream();
    let block = allocator.malloc(MIB, device, &world.stream).unwrap();
    allocator.record_stream(block, &side).unwrap();
    let gate = Gate::before(&side);
    program.calls();
    free(&*allocator, block);
    assert_eq!(program.calls(), [], "the side stream still uses it");
    let stats = allocator.device_stats(device).unwrap();
    assert_eq!((stats.allocation.all.current, stats.active.all.current), (0, 1));
    assert_eq!(allocator.empty_cache(Default::default()).unwrap(), 0);
    assert_eq!(program.calls(), []);
    gate.open();
    side.synchronize().unwrap();
    let next = allocator.malloc(100, device, &world.stream).unwrap();
    let own = world.stream.id().as_raw();
    assert_eq!(program.calls(), [Call::Free(block, MIB, device, own), Call::Alloc(100, device, own)]);
    assert_eq!(allocator.device_stats(device).unwrap().active.all.current, 1);
    free(&*allocator, next);
}

#[test]
fn an_allocator_that_ends_gives_back_what_was_freed() {
    let world = World::new();
    let program = Program::new();
    let allocator = program.allocator(&world);
    let block = allocator.malloc(MIB, world.context.device(), &world.stream).unwrap();
    allocator.record_stream(block, &world.new_stream()).unwrap();
    free(&*allocator, block);
    assert_eq!(program.out(), 1);
    drop(allocator);
    assert_eq!(program.out(), 0);
}

#[test]
fn the_own_stream_is_no_other_user() {
    let world = World::new();
    let (program, device) = (Program::new(), world.context.device());
    let allocator = program.allocator(&world);
    let block = allocator.malloc(MIB, device, &world.stream).unwrap();
    allocator.record_stream(block, &world.stream).unwrap();
    free(&*allocator, block);
    assert_eq!(program.out(), 0);
}

#[test]
fn a_stream_that_captures_keeps_the_memory_until_its_capture_has_ended() {
    let world = World::new();
    let (program, device) = (Program::new(), world.context.device());
    let allocator = program.allocator(&world);
    let side = world.new_stream();
    let block = allocator.malloc(MIB, device, &world.stream).unwrap();
    allocator.record_stream(block, &side).unwrap();
    let capture = Capture::begin(&side, RELAXED);
    free(&*allocator, block);
    allocator.empty_cache(Default::default()).unwrap();
    assert_eq!(program.out(), 1);
    assert_eq!(capture.end().map(|graph| graph.len()).unwrap(), 0, "the capture is as it was");
    allocator.empty_cache(Default::default()).unwrap();
    side.synchronize().unwrap();
    allocator.empty_cache(Default::default()).unwrap();
    assert_eq!(program.out(), 0);
}

/// What is still used stays in the books while another thread asks the driver about it.
#[test]
fn who_needs_memory_waits_for_what_another_thread_looks_at() {
    let world = World::new();
    let (program, device) = (Program::new(), world.context.device());
    // No default stream of this thread, which another could not name.
    let [stream, side] = [world.new_stream(), world.new_stream()];
    let allocator = program.allocator(&world);
    let (allocator, stream) = (&*allocator, &stream);
    program.limit(Some(10 * MIB));
    for _ in 0..20 {
        let used = allocator.malloc(8 * MIB, device, stream).unwrap();
        allocator.record_stream(used, &side).unwrap();
        let gate = Gate::before(&side);
        free(allocator, used);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let looks = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    allocator.empty_cache(Default::default()).unwrap();
                }
            });
            let asks = scope.spawn(|| allocator.malloc(8 * MIB, device, stream));
            thread::sleep(Duration::from_millis(10));
            is_over.store(true, Ordering::Relaxed);
            looks.join().unwrap();
            gate.open();
            free(allocator, asks.join().unwrap().unwrap());
        });
    }
}

#[test]
fn null_is_out_of_memory_after_everything_that_may_help() {
    let world = World::new();
    let (program, device) = (Program::new(), world.context.device());
    let allocator = program.allocator(&world);
    allocator.init(1).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    allocator
        .attach_out_of_memory_observer(Arc::new(move |report| noted.lock().unwrap().push(report.clone())))
        .unwrap();
    program.limit(Some(10 * MIB));
    let (live, used) = (
        allocator.malloc(4 * MIB, device, &world.stream).unwrap(),
        allocator.malloc(4 * MIB, device, &world.stream).unwrap(),
    );
    // What was freed and is still used is waited for.
    let side = world.new_stream();
    allocator.record_stream(used, &side).unwrap();
    free(&*allocator, used);
    let helped = allocator.malloc(6 * MIB, device, &world.stream).unwrap();
    let stats = allocator.device_stats(device).unwrap();
    assert!(stats.num_alloc_retries <= 1, "the side stream may have been done at once");
    assert_eq!((stats.num_ooms, seen.lock().unwrap().len()), (0, 0));

    let error = allocator.malloc(5 * MIB, device, &world.stream).unwrap_err();
    assert!(error.is_out_of_memory());
    let Error::OutOfMemory(report) = &error else { panic!("{error}") };
    assert_eq!((report.device, report.requested, report.allocated), (device, 5 * MIB, 10 * MIB));
    assert_eq!(report.allowed, report.total);
    let text = error.to_string();
    assert!(
        text.starts_with("CUDA out of memory. Tried to allocate 5.00 MiB. GPU 0 has a total capacity of")
    );
    assert_eq!(*seen.lock().unwrap(), [(**report).clone()]);
    assert_eq!(allocator.device_stats(device).unwrap().num_ooms, 1);
    free(&*allocator, live);
    free(&*allocator, helped);
}

/// What the program's `free` does not take is no reason to leave out what else may help.
#[test]
fn a_request_goes_on_without_what_free_refuses() {
    let world = World::new();
    let (program, device) = (Program::new(), world.context.device());
    // No default stream of this thread, which another could not name.
    let [stream, side] = [world.new_stream(), world.new_stream()];
    let allocator = program.allocator(&world);
    let resets = Arc::clone(&program);
    allocator.set_reset_fn(move || resets.limit(None));
    program.limit(Some(10 * MIB));
    let used = allocator.malloc(8 * MIB, device, &stream).unwrap();
    allocator.record_stream(used, &side).unwrap();
    let gate = Gate::before(&side);
    free(&*allocator, used);
    program.refuse_free();
    let served = thread::scope(|scope| {
        let asks = scope.spawn(|| allocator.malloc(8 * MIB, device, &stream));
        // From then on it waits for the side stream, and its poll is over.
        while allocator.device_stats(device).unwrap().num_alloc_retries == 0 && !asks.is_finished() {
            thread::yield_now();
        }
        gate.open();
        asks.join().unwrap().unwrap()
    });
    free(&*allocator, served);
    allocator.empty_cache(Default::default()).unwrap();
    assert_eq!(program.out(), 0);
}

#[test]
fn what_free_refuses_is_still_allocated() {
    let world = World::new();
    let (program, device) = (Program::new(), world.context.device());
    let allocator = program.allocator(&world);
    let block = allocator.malloc(MIB, device, &world.stream).unwrap();
    let before = allocator.device_stats(device).unwrap();
    program.refuse_free();
    // SAFETY: nothing uses it; it is refused.
    let refused = unsafe { allocator.raw_delete(block) }.unwrap_err();
    assert!(matches!(refused, Error::Function { function: "free", .. }), "{refused}");
    let after = allocator.device_stats(device).unwrap();
    assert_eq!(after.allocation.all.current, before.allocation.all.current);
    assert_eq!(after.active_bytes.all.current, before.active_bytes.all.current);
    assert_eq!(after.reserved_bytes.all.current, before.reserved_bytes.all.current);
    free(&*allocator, block);
    assert_eq!(allocator.device_stats(device).unwrap().reserved_bytes.all.current, 0);
    assert_eq!(program.out(), 0);
}

/// As with the caching allocator, what it asks for itself is told to no observer.
#[test]
fn an_observer_may_ask_for_more_than_there_is() {
    let world = World::new();
    let (program, device) = (Program::new(), world.context.device());
    let allocator = program.allocator(&world);
    program.limit(Some(0));
    let told = Arc::new(AtomicUsize::new(0));
    let (asked, count, stream) = (Arc::downgrade(&allocator), Arc::clone(&told), world.new_stream());
    let attached = allocator.attach_out_of_memory_observer(Arc::new(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        let allocator = asked.upgrade().unwrap();
        assert!(allocator.malloc(MIB, device, &stream).unwrap_err().is_out_of_memory());
    }));
    attached.unwrap();
    for times in 1..=2 {
        assert!(allocator.malloc(MIB, device, &world.stream).unwrap_err().is_out_of_memory());
        assert_eq!(told.load(Ordering::Relaxed), times);
    }
    assert_eq!(allocator.device_stats(device).unwrap().num_ooms, 4);
}

/// Private pools have their memory from a caching allocator, which has the same observers.
#[test]
fn an_observer_hears_once_of_a_request_also_if_it_asks_elsewhere() {
    let world = World::new();
    let (program, device, id) = (Program::new(), world.context.device(), MempoolId::for_user());
    let allocator = program.allocator(&world);
    program.limit(Some(0));
    let [plain, pooled] = [world.new_stream(), world.new_stream()];
    allocator.create_or_incref_pool(device, id, None).unwrap();
    allocator.begin_allocate_to_pool(device, id, Filter::stream(pooled.id().as_raw())).unwrap();
    let told = Arc::new(AtomicUsize::new(0));
    let (asked, count) = (Arc::downgrade(&allocator), Arc::clone(&told));
    let streams = [plain.clone(), pooled.clone()];
    let attached = allocator.attach_out_of_memory_observer(Arc::new(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        let allocator = asked.upgrade().unwrap();
        for stream in &streams {
            assert!(allocator.malloc(MIB, device, stream).unwrap_err().is_out_of_memory());
        }
    }));
    attached.unwrap();
    for (stream, times) in [(&plain, 1), (&pooled, 2)] {
        assert!(allocator.malloc(MIB, device, stream).unwrap_err().is_out_of_memory());
        assert_eq!(told.load(Ordering::Relaxed), times);
    }
    allocator.end_allocate_to_pool(device, id).unwrap();
    (0..2).for_each(|_| allocator.release_pool(device, id).unwrap());
}

#[test]
fn beyond_the_fraction_the_program_is_not_asked() {
    let world = World::new();
    let (program, device) = (Program::new(), world.context.device());
    let allocator = program.allocator(&world);
    assert_eq!(allocator.memory_fraction(device).unwrap(), 1.0);
    for wrong in [-0.1, 1.1, f64::NAN] {
        assert!(allocator.set_memory_fraction(wrong, device).is_err(), "{wrong}");
    }
    let total = device.total_memory().unwrap();
    let block = allocator.malloc(8 * MIB, device, &world.stream).unwrap();
    allocator.set_memory_fraction((8 * MIB + 1000) as f64 / total as f64, device).unwrap();
    program.calls();
    let refused = allocator.malloc(2000, device, &world.stream).unwrap_err();
    let Error::OutOfMemory(report) = &refused else { panic!("{refused}") };
    assert!(report.allowed <= 8 * MIB + 1000 && report.allowed < report.total);
    assert!(refused.to_string().contains("allowed"), "{refused}");
    assert_eq!(program.calls(), []);
    let fits = allocator.malloc(500, device, &world.stream).unwrap();
    free(&*allocator, fits);
    free(&*allocator, block);
    let fits = allocator.malloc(MIB, device, &world.stream).unwrap();
    free(&*allocator, fits);
    allocator.set_memory_fraction(0.0, device).unwrap();
    assert!(allocator.malloc(1, device, &world.stream).unwrap_err().is_out_of_memory());
    // Pools of other memory are held to it, too.
    assert!(allocator.native().malloc(1, device, &world.stream).unwrap_err().is_out_of_memory());
    allocator.set_memory_fraction(1.0, device).unwrap();
    let fits = allocator.malloc(MIB, device, &world.stream).unwrap();
    free(&*allocator, fits);
}

#[test]
fn an_alloc_that_panics_claims_nothing() {
    let world = World::new();
    let (program, device) = (Program::new(), world.context.device());
    let allocator = program.allocator(&world);
    allocator.init(1).unwrap();
    let total = device.total_memory().unwrap();
    allocator.set_memory_fraction((8 * MIB + 1000) as f64 / total as f64, device).unwrap();
    program.panic_once();
    let allocate = || allocator.malloc(8 * MIB, device, &world.stream);
    catch_unwind(AssertUnwindSafe(allocate)).unwrap_err();
    free(&*allocator, allocate().unwrap());
}

#[test]
fn a_free_that_panics_keeps_what_else_was_freed() {
    let world = World::new();
    let (program, device) = (Program::new(), world.context.device());
    let allocator = program.allocator(&world);
    let side = world.new_stream();
    let gate = Gate::before(&side);
    for block in [(); 3].map(|()| allocator.malloc(MIB, device, &world.stream).unwrap()) {
        allocator.record_stream(block, &side).unwrap();
        free(&*allocator, block);
    }
    gate.open();
    side.synchronize().unwrap();
    program.panic_once();
    let refused = allocator.empty_cache(Default::default()).unwrap_err();
    assert_eq!(refused.to_string(), "the allocator's free function failed: it panicked");
    assert_eq!(program.out(), 1, "what else was freed has gone");
    allocator.empty_cache(Default::default()).unwrap();
    assert_eq!(program.out(), 0);
}

/// A panic in a drop would end the process where another one is under way.
#[test]
fn owners_do_not_panic_though_the_program_s_functions_do() {
    let world = World::new();
    let (program, device) = (Program::new(), world.context.device());
    let allocator = program.allocator(&world);
    allocator.init(1).unwrap();
    let total = device.total_memory().unwrap();
    allocator.set_memory_fraction((8 * MIB + 1000) as f64 / total as f64, device).unwrap();
    let block = world.context.with_current(|| allocator.allocate(8 * MIB)).unwrap().unwrap();
    let (address, failed) = (block.address(), world.driver.release_failures());
    let told = Arc::new(Mutex::new(String::new()));
    let hears = Arc::clone(&told);
    world.driver.on_release_failure(move |error| *hears.lock().unwrap() = error.to_string());
    program.panic_once();
    drop(block);
    assert_eq!((program.out(), world.driver.release_failures()), (1, failed + 1));
    assert!(told.lock().unwrap().contains("the allocator's free function failed: it panicked"), "{told:?}");
    // It is as it was, and counts.
    assert!(allocator.malloc(8 * MIB, device, &world.stream).unwrap_err().is_out_of_memory());
    free(&*allocator, address);
    free(&*allocator, allocator.malloc(8 * MIB, device, &world.stream).unwrap());

    allocator.set_release_pool(|_, _| panic!("the program panics"));
    let owner: Arc<dyn CudaAllocator> = allocator.clone();
    let pool = world.context.with_current(|| MemPool::of(&owner, None, true, false, false)).unwrap().unwrap();
    drop(pool);
    assert_eq!(world.driver.release_failures(), failed + 2);
    // The last handle gives back what waits for streams.
    let side = world.new_stream();
    let block = allocator.malloc(MIB, device, &world.stream).unwrap();
    allocator.record_stream(block, &side).unwrap();
    free(&*allocator, block);
    program.panic_once();
    drop((allocator, owner));
    assert_eq!(world.driver.release_failures(), failed + 3);
}

#[test]
fn the_base_of_an_allocation_is_itself_and_of_a_request_what_was_asked_for() {
    let world = World::new();
    let allocator = Program::new().allocator(&world);
    let block = allocator.malloc(12_345, world.context.device(), &world.stream).unwrap();
    assert_eq!(allocator.base_allocation(block).unwrap(), (block, 12_345));
    free(&*allocator, block);
}

#[test]
fn the_largest_block_starts_from_what_the_driver_has() {
    let world = World::new();
    let (allocator, device) = (Program::new().allocator(&world), world.context.device());
    let mut largest = 0;
    allocator.cache_info(device, &mut largest).unwrap();
    assert!(largest > MIB);
    let mut largest = 7;
    allocator.cache_info(device, &mut largest).unwrap();
    assert_eq!(largest, 7, "nothing is cached");
    assert_eq!(allocator.expandable_segment_sizes(device).unwrap(), []);
}

#[test]
fn threads_allocate_and_free_at_once() {
    let world = World::new();
    let (program, device) = (Program::new(), world.context.device());
    let allocator = program.allocator(&world);
    let streams = [(); 4].map(|()| world.new_stream());
    thread::scope(|scope| {
        for (place, stream) in streams.iter().enumerate() {
            let (allocator, side) = (&allocator, &streams[(place + 1) % streams.len()]);
            scope.spawn(move || {
                for round in 0..100 {
                    let block = allocator.malloc(1000 + round, device, stream).unwrap();
                    if round % 3 == 0 {
                        allocator.record_stream(block, side).unwrap();
                    }
                    free(&**allocator, block);
                }
            });
        }
    });
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    allocator.empty_cache(Default::default()).unwrap();
    assert_eq!(program.out(), 0);
    let stats = allocator.device_stats(device).unwrap();
    assert_eq!((stats.allocation.all.current, stats.active.all.current), (0, 0));
    assert_eq!(stats.allocation.all.allocated, 400);
    assert_eq!((stats.num_device_alloc, stats.num_device_free), (400, 400));
}

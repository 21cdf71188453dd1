//! `PinnedCachingAllocator`: which driver calls it makes, and what it does when one fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{
    Context, DeviceBuffer, Driver, Error as CoreError, FenceLine, Stream, StreamId, Transfer,
};
use cuda_mem_pool::pinned_cache::PinnedCacheOptions;
use cuda_mem_pool::{Error, MempoolId, PinnedBlock, PinnedCachingAllocator};
use cuda_mem_sim::Sim;

use crate::caching_watchers::Bomb;
use crate::common::capture::{Capture, RELAXED};
use crate::common::child;
use crate::common::gate::Gate;
use crate::common::is_filled;
use crate::rig::{expect_clean, log_of, on_simulator, text};

const MIB: usize = 1 << 20;

fn without_thread() -> PinnedCacheOptions {
    PinnedCacheOptions::default().with_returns_surplus(false)
}

fn allocator(context: &Context) -> PinnedCachingAllocator {
    PinnedCachingAllocator::with_options(context, without_thread())
}

#[test]
fn a_cached_pair_makes_no_driver_call() {
    on_simulator(|sim, context| {
        let allocator = allocator(context);
        let sizes = [1, 5000, MIB, 20 * MIB];
        sizes.iter().for_each(|&len| drop(allocator.allocate(len).unwrap()));
        let log = sim.log();
        let records = log_of(&log, || {
            sizes.iter().for_each(|&len| {
                let mut block = allocator.allocate(len).unwrap();
                block.as_mut_slice().unwrap()[0] = 1;
                drop(block);
            });
        });
        assert!(records.is_empty(), "{}", text(&records));
    });
}

#[test]
fn memory_that_cannot_be_registered_is_allocated_by_the_driver() {
    on_simulator(|sim, context| {
        sim.fail_call("cuMemHostRegister", 1, CUresult::CUDA_ERROR_NOT_SUPPORTED);
        let allocator = allocator(context);
        let stream = Stream::new(context).unwrap();
        assert!(!allocator.is_allocated_by_driver());
        let log = sim.log();
        let records = log_of(&log, || {
            for len in [5 * MIB, 3000] {
                let mut block = allocator.allocate(len).unwrap();
                assert!(is_filled(block.as_slice().unwrap(), 0));
                block.as_mut_slice().unwrap().fill(7);
                let device = DeviceBuffer::<u8>::uninit(&stream, len).unwrap();
                drop(Transfer::upload(&stream, block, &device.whole()).unwrap().wait().unwrap());
            }
        });
        let count = |function| records.iter().filter(|record| record.function == function).count();
        assert_eq!((count("cuMemHostRegister"), count("cuMemHostAlloc")), (1, 2), "{}", text(&records));
        assert!(allocator.is_allocated_by_driver());
        allocator.empty_cache();
        let statistics = allocator.statistics();
        assert_eq!((statistics.allocated_bytes.current, statistics.num_host_free), (0, 2));
    });
}

#[test]
fn a_slow_stream_is_asked_once_a_miss_however_much_waits_for_it() {
    on_simulator(|sim, context| {
        let allocator = allocator(context);
        let stream = Stream::new(context).unwrap();
        let blocks: Vec<_> = (0..20).map(|_| allocator.allocate(100_000).unwrap()).collect();
        let gate = Gate::before(&stream);
        blocks.iter().for_each(|block| block.record_stream(&stream).unwrap());
        drop(blocks);
        let log = sim.log();
        let records = log_of(&log, || drop(allocator.allocate(4 * MIB).unwrap()));
        let queries = records.iter().filter(|record| record.function == "cuEventQuery").count();
        assert_eq!(queries, 1, "{}", text(&records));
        gate.open();
        stream.synchronize().unwrap();
        let records = log_of(&log, || drop(allocator.allocate(5 * MIB).unwrap()));
        let queries = records.iter().filter(|record| record.function == "cuEventQuery").count();
        assert_eq!(queries, 20, "{}", text(&records));
    });
}

#[test]
fn without_memory_everything_free_goes_back_before_it_is_an_error() {
    on_simulator(|sim, context| {
        let allocator = allocator(context);
        drop([allocator.allocate(10 * MIB).unwrap(), allocator.allocate(3000).unwrap()]);
        sim.fail_call("cuMemHostRegister", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let block = allocator.allocate(12 * MIB).unwrap();
        assert_eq!(allocator.statistics().allocations.current, 1, "the cache was kept");
        sim.fail_call("cuMemHostRegister", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        sim.fail_call("cuMemHostRegister", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let refused = allocator.allocate(700_000).unwrap_err();
        assert!(
            matches!(&refused, Error::OutOfMemory { requested: 700_000, used, limit: 0, source: Some(source) }
                if *used == (12 * MIB) as u64 && source.code() == Some(CUresult::CUDA_ERROR_OUT_OF_MEMORY)),
            "{refused}"
        );
        drop(block);
        assert_eq!(allocator.allocate(700_000).unwrap().len(), 700_000);
    });
}

/// Nor is anything given back for it.
#[test]
fn a_lost_device_is_not_told_of_as_a_want_of_memory() {
    on_simulator(|sim, context| {
        let allocator = allocator(context);
        drop(allocator.allocate(10 * MIB).unwrap());
        let held = allocator.statistics().allocated_bytes.current;
        let lost = CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
        (1..=100).for_each(|nth| sim.fail_call("cuMemHostRegister", nth, lost));
        let refused = allocator.allocate(12 * MIB).unwrap_err();
        sim.clear_faults();
        assert!(
            matches!(&refused, Error::Core(CoreError::Driver(error)) if error.code() == lost),
            "{refused}"
        );
        assert_eq!(allocator.statistics().allocated_bytes.current, held);
        assert_eq!(context.driver().release_failures(), 0);
    });
}

#[test]
fn what_the_driver_does_not_unpin_stays_held() {
    let sim = Sim::builder().build();
    let driver = Driver::over(sim.table()).unwrap();
    let context = driver.device(0).unwrap().primary_context().unwrap();
    let options = without_thread().with_max_bytes(8 * MIB);
    let allocator = PinnedCachingAllocator::with_options(&context, options);
    let pinned = || allocator.statistics().allocated_bytes.current;
    drop(allocator.allocate(8 * MIB).unwrap());
    sim.fail_call("cuMemHostUnregister", 1, CUresult::CUDA_ERROR_UNKNOWN);
    allocator.empty_cache();
    assert_eq!((pinned(), driver.release_failures()), (0, 0), "the second try");
    drop(allocator.allocate(8 * MIB).unwrap());
    for _ in 0..2 {
        sim.fail_call("cuMemHostUnregister", 1, CUresult::CUDA_ERROR_UNKNOWN);
    }
    allocator.empty_cache();
    assert_eq!((pinned(), driver.release_failures()), (8 * MIB as u64, 1));
    let refused = allocator.allocate(8 * MIB).unwrap_err();
    assert!(matches!(refused, Error::OutOfMemory { source: None, .. }), "{refused}");
}

/// Also of frees that make no segment whole.
#[test]
fn no_more_is_cached_than_may_be_while_a_whole_segment_is_free() {
    on_simulator(|_, context| {
        let most = 32 * MIB;
        let options = without_thread().with_max_cached_bytes(most).with_thread_cache_bytes(0);
        let allocator = PinnedCachingAllocator::with_options(context, options);
        drop(allocator.allocate(24 * MIB).unwrap());
        let mut blocks: Vec<_> = (0..64).map(|_| allocator.allocate(MIB / 2).unwrap()).collect();
        let mut nth = 0;
        blocks.retain(|_| {
            nth += 1;
            nth % 4 == 0
        });
        let statistics = allocator.statistics();
        let cached = statistics.allocated_bytes.current - statistics.active_bytes.current;
        assert!(cached <= most as u64, "{statistics}");
    });
}

/// What it found is nowhere until the driver has answered.
#[test]
fn who_runs_into_the_limit_waits_for_another_thread_s_look() {
    on_simulator(|sim, context| {
        let options = without_thread().with_max_bytes(8 * MIB);
        let allocator = PinnedCachingAllocator::with_options(context, options);
        let stream = Stream::new(context).unwrap();
        let block = allocator.allocate(8 * MIB).unwrap();
        block.record_stream(&stream).unwrap();
        drop(block);
        stream.synchronize().unwrap();
        sim.delay("cuEventQuery", Duration::from_millis(300));
        std::thread::scope(|scope| {
            scope.spawn(|| allocator.trim_to(usize::MAX));
            std::thread::sleep(Duration::from_millis(100));
            drop(allocator.allocate(8 * MIB).unwrap());
        });
        sim.clear_faults();
    });
}

/// Nor is what is on its way out held by anybody else.
#[test]
fn who_runs_into_the_limit_waits_for_what_another_thread_gives_back() {
    on_simulator(|sim, context| {
        let options = without_thread().with_max_bytes(8 * MIB);
        let allocator = PinnedCachingAllocator::with_options(context, options);
        let pool = MempoolId::for_user();
        allocator.begin_allocate_to_pool(pool, |_| true).unwrap();
        drop(allocator.allocate(8 * MIB).unwrap());
        allocator.end_allocate_to_pool(pool).unwrap();
        let gives: [&(dyn Fn() + Sync); 2] =
            [&|| allocator.release_pool(pool).unwrap(), &|| allocator.empty_cache()];
        for give in gives {
            sim.delay("cuMemHostUnregister", Duration::from_millis(300));
            std::thread::scope(|scope| {
                scope.spawn(give);
                std::thread::sleep(Duration::from_millis(100));
                drop(allocator.allocate(8 * MIB).unwrap());
            });
            sim.clear_faults();
        }
    });
}

/// The driver waits for all work before it unpins what is free; then more is free.
#[test]
fn a_request_at_the_limit_has_what_comes_back_while_the_driver_waits() {
    on_simulator(|_, context| {
        let options = without_thread().with_max_bytes(8 * MIB);
        let allocator = PinnedCachingAllocator::with_options(context, options);
        let stream = Stream::new(context).unwrap();
        let [unused, used] = [(); 2].map(|()| allocator.allocate(4 * MIB).unwrap());
        let gate = Gate::before(&stream);
        used.record_stream(&stream).unwrap();
        drop((unused, used));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                gate.open();
            });
            drop(allocator.allocate(6 * MIB).unwrap());
        });
    });
}

/// What a thread keeps is free, also while that thread takes a block of it.
#[test]
fn a_request_at_the_limit_has_what_a_busy_thread_keeps() {
    const ROUNDS: usize = 300;
    on_simulator(|_, context| {
        let options = without_thread().with_max_bytes(8 * MIB);
        let allocator = PinnedCachingAllocator::with_options(context, options);
        let (turn, is_served) = (Barrier::new(2), AtomicBool::new(false));
        let mut refused = 0;
        std::thread::scope(|scope| {
            let busy = scope.spawn(|| {
                for _ in 0..ROUNDS {
                    drop([(); 4].map(|()| allocator.allocate(MIB)));
                    turn.wait();
                    // One block at a time: three more are kept, and nobody uses them.
                    while !is_served.load(Ordering::Relaxed) {
                        drop(allocator.allocate(MIB));
                    }
                    turn.wait();
                    is_served.store(false, Ordering::Relaxed);
                    allocator.empty_cache();
                }
            });
            for _ in 0..ROUNDS {
                turn.wait();
                refused += usize::from(allocator.allocate(5 * MIB).is_err());
                is_served.store(true, Ordering::Relaxed);
                turn.wait();
            }
            // With what the thread keeps for itself: the scope's end does not wait for that.
            busy.join().unwrap();
        });
        assert_eq!(refused, 0, "of {ROUNDS} requests");
    });
}

/// Who only gives a block back waits for no stream, as who unpins does.
#[test]
fn a_thread_that_gives_blocks_back_unpins_none_beside_one_that_trims() {
    on_simulator(|sim, context| {
        let options = without_thread().with_thread_cache_bytes(0);
        let allocator = &PinnedCachingAllocator::with_options(context, options);
        let (give, given) = channel::<PinnedBlock>();
        std::thread::scope(move |scope| {
            scope.spawn(move || given.into_iter().for_each(drop));
            for _ in 0..1000 {
                give.send(allocator.allocate(MIB).unwrap()).unwrap();
                allocator.empty_cache();
            }
        });
        let calls = sim.log().filter(|record| record.function.starts_with("cuMemHost"));
        assert!(calls.windows(2).all(|pair| pair[0].thread == pair[1].thread), "{}", text(&calls));
    });
}

/// A request of a thread while a stream waits for a fence, which that thread may be the one to reach. The driver waits for all streams
/// before it unpins.
fn asked_for_beside_a_fence(context: &Context, allocator: &PinnedCachingAllocator) -> PinnedBlock {
    let (waits, line) = (Stream::new(context).unwrap(), FenceLine::new(context).unwrap());
    line.fence(1).unwrap().make_wait(&waits).unwrap();
    let (tell, told) = channel();
    let block = std::thread::scope(|scope| {
        scope.spawn(move || tell.send(allocator.allocate(100 << 10).unwrap()));
        let served = told.recv_timeout(Duration::from_secs(5));
        line.poison();
        served.expect("it waits for the fence")
    });
    waits.synchronize().unwrap();
    block
}

#[test]
fn a_request_that_finds_the_bound_exceeded_does_not_wait_for_a_fence() {
    on_simulator(|_, context| {
        let most = 31 * MIB;
        let options = without_thread().with_max_cached_bytes(most);
        let allocator = PinnedCachingAllocator::with_options(context, options);
        let cached = || {
            let statistics = allocator.statistics();
            statistics.allocated_bytes.current - statistics.active_bytes.current
        };
        drop(allocator.allocate(24 * MIB).unwrap());
        // They stay with this thread.
        let blocks: Vec<_> = (0..16).map(|_| allocator.allocate(MIB / 2).unwrap()).collect();
        drop(blocks);
        assert!(cached() > most as u64, "{}", allocator.statistics());
        let block = asked_for_beside_a_fence(context, &allocator);
        let next = allocator.allocate(200 << 10).unwrap();
        assert!(cached() <= most as u64, "{}", allocator.statistics());
        drop((block, next));
    });
}

#[test]
fn a_request_that_finds_memory_of_a_released_pool_does_not_wait_for_a_fence() {
    on_simulator(|_, context| {
        let (allocator, pool) = (allocator(context), MempoolId::for_user());
        let (stream, held) =
            (Stream::new(context).unwrap(), || allocator.statistics().allocated_bytes.current);
        drop(allocator.allocate(100 << 10).unwrap());
        let before = held();
        allocator.begin_allocate_to_pool(pool, |_| true).unwrap();
        let block = allocator.allocate(3 * MIB).unwrap();
        allocator.end_allocate_to_pool(pool).unwrap();
        let gate = Gate::before(&stream);
        block.record_stream(&stream).unwrap();
        drop(block);
        allocator.release_pool(pool).unwrap();
        gate.open();
        stream.synchronize().unwrap();
        let block = asked_for_beside_a_fence(context, &allocator);
        let next = allocator.allocate(200 << 10).unwrap();
        assert_eq!(held(), before);
        drop((block, next));
    });
}

/// Blocks that are each too large for the segments before: more than 256 MiB that fits nothing.
fn leave_surplus(allocator: &PinnedCachingAllocator) -> u64 {
    (20..32).for_each(|size| drop(allocator.allocate(size * MIB).unwrap()));
    allocator.statistics().allocated_bytes.current
}

fn wait_until_less_is_held(allocator: &PinnedCachingAllocator, than: u64) {
    let began = Instant::now();
    while allocator.statistics().allocated_bytes.current >= than {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing goes back");
        std::thread::yield_now();
    }
}

/// The driver would wait for the stream, and hold up whoever could let it go.
#[test]
fn what_fits_nothing_is_not_unpinned_while_a_stream_waits_for_a_fence() {
    on_simulator(|_, context| {
        let stream = Stream::new(context).unwrap();
        let line = FenceLine::new(context).unwrap();
        line.fence(1).unwrap().make_wait(&stream).unwrap();
        let allocator = PinnedCachingAllocator::new(context);
        let held = leave_surplus(&allocator);
        // Longer than the thread waits for streams that are only busy.
        std::thread::sleep(Duration::from_millis(2500));
        let still = allocator.statistics().allocated_bytes.current;
        line.poison();
        assert!(still >= held, "{still} of {held}");
        wait_until_less_is_held(&allocator, held);
    });
}

/// It waits for a while, and then for no longer: the stream never gets idle, but for nobody's sake.
#[test]
fn what_fits_nothing_goes_back_though_some_stream_is_always_busy() {
    on_simulator(|_, context| {
        let stream = Stream::new(context).unwrap();
        let capture = Capture::begin(&stream, RELAXED);
        let allocator = PinnedCachingAllocator::new(context);
        let held = leave_surplus(&allocator);
        wait_until_less_is_held(&allocator, held);
        assert_eq!(capture.end().unwrap().len(), 0);
    });
}

/// What the fault injection runs: every part of the allocator once.
fn scenario(context: &Context) -> Result<(), Error> {
    let allocator = allocator(context);
    let (one, two) = (Stream::new(context)?, Stream::new(context)?);
    let device = DeviceBuffer::<u8>::zeroed(&one, 5000)?;
    let block = allocator.allocate(5000)?;
    let block = Transfer::upload(&one, block, &device.whole())
        .map_err(CoreError::from)?
        .wait()
        .map_err(CoreError::from)?;
    drop(block.on(&one)?);
    block.record_stream(&two)?;
    drop(block);
    let large = allocator.allocate_with(3 * MIB, Some(&two), None)?;
    let _ = large.as_slice()?;
    let pool = MempoolId(0, 5);
    allocator.begin_allocate_to_pool(pool, |_| true)?;
    let private = allocator.allocate(2 * MIB)?;
    private.record_stream(&one)?;
    drop(private);
    allocator.end_allocate_to_pool(pool)?;
    allocator.release_pool(pool)?;
    drop(large);
    allocator.trim_to(MIB);
    let last = allocator.allocate(4000)?;
    last.record_stream(&two)?;
    drop(allocator);
    drop(last);
    Ok(())
}

#[test]
fn every_call_may_fail() {
    for code in [CUresult::CUDA_ERROR_OUT_OF_MEMORY, CUresult::CUDA_ERROR_UNKNOWN] {
        for nth in 1.. {
            let sim = Sim::builder().workers(2).build();
            let driver = Driver::over(sim.table()).unwrap();
            let context = driver.device(0).unwrap().primary_context().unwrap();
            sim.fail_nth_call_overall(nth, code);
            let outcome = scenario(&context);
            let Some(struck) = sim.struck().first().copied() else {
                outcome.unwrap();
                assert!(nth > 20, "only {} calls could fail", nth - 1);
                break;
            };
            match outcome {
                Ok(()) | Err(Error::OutOfMemory { .. }) => {}
                Err(Error::Core(CoreError::Driver(error))) if error.code() == code => {}
                Err(error) => panic!("call {nth}, {}: {error:?}", struck.function),
            }
            assert_eq!(driver.release_failures(), 0, "call {nth}, {}", struck.function);
            drop(context);
            expect_clean(&sim);
        }
    }
}

#[test]
fn a_forked_child_is_told_so_and_gives_nothing_back() {
    on_simulator(|_, context| {
        let allocator = PinnedCachingAllocator::new(context);
        let kept = allocator.allocate(5000).unwrap();
        drop(kept);
        let block = std::mem::ManuallyDrop::new((allocator.allocate(7000).unwrap(), allocator.clone()));
        child::forked(|| {
            if !matches!(allocator.allocate(5000), Err(Error::Core(CoreError::Forked))) {
                return Err("a cached block in a forked child".to_owned());
            }
            if allocator.begin_allocate_to_pool(MempoolId(0, 1), |_| true).is_ok() {
                return Err("a pool in a forked child".to_owned());
            }
            let released = allocator.release_pool(MempoolId(0, 1));
            if !matches!(released, Err(Error::Core(CoreError::Forked))) {
                return Err("a forked child took a lock of its parent's".to_owned());
            }
            allocator.empty_cache();
            // SAFETY: the child's own copy, taken out once; the parent's is not touched.
            drop(unsafe { std::ptr::read(&*block) });
            Ok(())
        });
        drop(std::mem::ManuallyDrop::into_inner(block));
        let again = allocator.allocate(5000).unwrap();
        assert_eq!(again.len(), 5000);
    });
}

#[test]
fn a_process_may_end_with_everything_alive() {
    static ALIVE: std::sync::Mutex<Vec<(PinnedCachingAllocator, PinnedBlock)>> =
        std::sync::Mutex::new(Vec::new());
    if let Some(output) = child::again("pinned_cache::a_process_may_end_with_everything_alive", &[]) {
        return child::expect_silent_success(&output);
    }
    let context = Driver::over(cuda_mem_sim::table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let allocator = PinnedCachingAllocator::new(&context);
    let stream = Stream::new(&context).unwrap();
    let block = allocator.allocate(5000).unwrap();
    drop(allocator.allocate(3000).unwrap());
    allocator.allocate(300_000).unwrap().record_stream(&stream).unwrap();
    ALIVE.lock().unwrap().push((allocator, block));
}

/// The last handle goes while a stream uses a block, and the driver refuses to wait for it: the memory is leaked, and counted.
#[test]
fn a_block_that_cannot_be_waited_for_is_not_given_back() {
    let sim = Sim::builder().record(true).build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    context.driver().set_patience(Duration::ZERO);
    let (allocator, stream) = (allocator(&context), Stream::new(&context).unwrap());
    let block = allocator.allocate(100_000).unwrap();
    let gate = Gate::before(&stream);
    block.record_stream(&stream).unwrap();
    drop(block);
    for function in ["cuEventSynchronize", "cuStreamSynchronize"] {
        sim.fail_call(function, 1, CUresult::CUDA_ERROR_OPERATING_SYSTEM);
    }
    drop(allocator);
    assert_eq!(context.driver().release_failures(), 1);
    assert_eq!(sim.log().count("cuMemFreeHost") + sim.log().count("cuMemHostUnregister"), 0);
    gate.open();
    stream.synchronize().unwrap();
    assert!(sim.misuse().is_empty(), "{:?}", sim.misuse());
}

/// The pool's memory goes all the same.
#[test]
fn a_filter_that_panics_as_it_goes_leaves_nothing_behind() {
    on_simulator(|_, context| {
        let (allocator, id) = (allocator(context), MempoolId::for_user());
        let went = Arc::new(AtomicUsize::new(0));
        let bomb = Bomb(Arc::clone(&went));
        allocator.begin_allocate_to_pool(id, move |_| Arc::strong_count(&bomb.0) > 0).unwrap();
        drop(allocator.allocate(MIB).unwrap());
        let _ = catch_unwind(AssertUnwindSafe(|| allocator.release_pool(id)));
        assert_eq!(went.load(Ordering::SeqCst), 1);
        assert_eq!(allocator.statistics().allocated_bytes.current, 0);
    });
}

/// In a drop it is nobody's, and one panic keeps no other filter.
#[test]
fn an_allocator_that_ends_does_not_panic_though_its_filters_do() {
    on_simulator(|_, context| {
        let (allocator, went) = (allocator(context), Arc::new(AtomicUsize::new(0)));
        for _ in 0..2 {
            let bomb = Bomb(Arc::clone(&went));
            let filter = move |_: Option<StreamId>| Arc::strong_count(&bomb.0) > 0;
            allocator.begin_allocate_to_pool(MempoolId::for_user(), filter).unwrap();
        }
        drop(allocator.allocate(MIB).unwrap());
        drop(allocator);
        assert_eq!(went.load(Ordering::SeqCst), 2);
    });
}

/// A block may outlive its allocator, and a filter may have it: what has nobody to ask it any more keeps nothing.
#[test]
fn a_filter_that_has_a_block_goes_with_the_allocator() {
    on_simulator(|_, context| {
        let allocator = allocator(context);
        let block = allocator.allocate(MIB).unwrap();
        let held = Arc::new(block);
        let left = Arc::downgrade(&held);
        let filter = move |_: Option<StreamId>| held.is_empty();
        allocator.begin_allocate_to_pool(MempoolId::for_user(), filter).unwrap();
        drop(allocator);
        assert!(left.upgrade().is_none(), "nobody can end the route any more");
    });
}

#[test]
fn a_filter_that_allocates_and_ends_its_own_route_waits_for_nobody() {
    on_simulator(|_, context| {
        let allocator = allocator(context);
        for ends in [PinnedCachingAllocator::end_allocate_to_pool, PinnedCachingAllocator::release_pool] {
            let (id, its_own) = (MempoolId::for_user(), allocator.clone());
            let filter = move |_: Option<StreamId>| {
                let within = its_own.allocate(MIB).unwrap();
                within.pool().is_none() && ends(&its_own, id).is_ok()
            };
            allocator.begin_allocate_to_pool(id, filter).unwrap();
            let block = allocator.allocate(MIB).unwrap();
            // Released, it is no pool any more.
            assert_eq!(block.pool(), allocator.release_pool(id).is_ok().then_some(id));
        }
    });
}

/// What a filter has captured may go with its owner afterwards.
#[test]
fn who_ends_a_route_waits_for_those_who_ask_its_filter() {
    on_simulator(|_, context| {
        let allocator = allocator(context);
        for ends in [PinnedCachingAllocator::end_allocate_to_pool, PinnedCachingAllocator::release_pool] {
            let (id, answered, (asked, is_asked)) =
                (MempoolId::for_user(), Arc::new(AtomicBool::new(false)), channel());
            let answers = Arc::clone(&answered);
            let filter = move |_: Option<StreamId>| {
                asked.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(100));
                answers.store(true, Ordering::SeqCst);
                true
            };
            allocator.begin_allocate_to_pool(id, filter).unwrap();
            std::thread::scope(|scope| {
                let asks = scope.spawn(|| drop(allocator.allocate(MIB).unwrap()));
                is_asked.recv_timeout(Duration::from_secs(60)).unwrap();
                ends(&allocator, id).unwrap();
                assert!(answered.load(Ordering::SeqCst), "it is still being asked");
                // With what the thread keeps for itself: the scope's end does not wait for that.
                asks.join().unwrap();
            });
        }
    });
}

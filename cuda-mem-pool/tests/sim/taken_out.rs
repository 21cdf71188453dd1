//! Requests at a limit, while other threads have the memory in hand that would serve them, or a stream is just done with it.

use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, Driver, Stream};
use cuda_mem_pool::caching::{Backup, CachingAllocator, CachingOptions, Restore, Tag};
use cuda_mem_pool::pinned_cache::{PinnedBlock, PinnedCacheOptions};
use cuda_mem_pool::segments::Filter;
use cuda_mem_pool::{
    DeviceMemoryResource, DeviceMemoryResourceOptions, MemoryResource, MempoolId, PinnedCachingAllocator,
};
use cuda_mem_sim::Sim;

use crate::blocks::{free, routed};
use crate::common::gate::Gate;
use crate::faulty::Faulty;
use crate::rig::on;

const MIB: usize = 1 << 20;

fn of_at_most(context: &Context, mib: usize) -> CachingAllocator {
    CachingAllocator::new(context, &CachingOptions::default().with_max_bytes(mib * MIB)).unwrap()
}

/// Opens a gate after some time.
fn after<R>(millis: u64, gate: Gate, body: impl FnOnce() -> R) -> R {
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(millis));
            gate.open();
        });
        body()
    })
}

/// All that is free waits for a stream; whoever of the two comes second finds nothing in the list.
fn two_at_once(context: &Context, expandable: bool) {
    let allocator = of_at_most(context, 256);
    allocator.set_expandable_segments(expandable).unwrap();
    let [own, user, one, other] = [(); 4].map(|()| Stream::new(context).unwrap());
    let gate = Gate::before(&user);
    let blocks: Vec<_> = (0..120).map(|_| allocator.allocate_by_address(2 * MIB, &own).unwrap()).collect();
    for block in blocks {
        allocator.record_stream(block, &user).unwrap();
        free(&allocator, block);
    }
    let start = Barrier::new(2);
    let ask = |stream: &Stream| {
        start.wait();
        allocator.allocate_by_address(60 * MIB, stream)
    };
    let both = after(5, gate, || {
        thread::scope(|scope| {
            let both = [&one, &other].map(|stream| scope.spawn(|| ask(stream)));
            both.map(|asked| asked.join().unwrap())
        })
    });
    both.into_iter().for_each(|block| free(&allocator, block.unwrap()));
}

#[test]
fn two_threads_that_lack_memory_at_once_both_get_what_streams_are_done_with() {
    on(Sim::builder(), |_, context| (0..30).for_each(|_| two_at_once(context, true)));
}

#[test]
fn the_same_where_memory_is_in_segments() {
    on(Sim::builder(), |_, context| (0..30).for_each(|_| two_at_once(context, false)));
}

/// `empty_cache` is held up in the driver by a stream that the allocator does not know, as one of a library.
fn beside_one_that_empties<R: Send>(
    context: &Context,
    allocator: &CachingAllocator,
    stream: &Stream,
    body: impl FnOnce() -> R + Send,
) -> R {
    let id = MempoolId::for_user();
    let blocks: Vec<_> = (0..8).map(|_| routed(allocator, id, 16 * MIB, stream).unwrap()).collect();
    blocks.into_iter().for_each(|block| free(allocator, block));
    while allocator.release_pool(id).is_ok() {}
    stream.synchronize().unwrap();
    let unknown = Stream::new(context).unwrap();
    let gate = Gate::before(&unknown);
    thread::scope(|scope| {
        let emptying = scope.spawn(|| allocator.empty_cache());
        thread::sleep(Duration::from_millis(50));
        let found = after(100, gate, || scope.spawn(body).join().unwrap());
        emptying.join().unwrap().unwrap();
        found
    })
}

#[test]
fn a_request_waits_for_what_another_thread_is_giving_back() {
    on(Sim::builder().workers(2), |_, context| {
        let (allocator, stream) = (of_at_most(context, 128), Stream::new(context).unwrap());
        let ask = || allocator.allocate_by_address(16 * MIB, &stream);
        free(&allocator, beside_one_that_empties(context, &allocator, &stream, ask).unwrap());
    });
}

/// The program is asked once, and last, also where other threads have memory in hand all the time.
#[test]
fn the_program_is_asked_beside_threads_that_free_what_others_use() {
    on(Sim::builder(), |_, context| {
        let (allocator, stream) = (of_at_most(context, 128), Stream::new(context).unwrap());
        let (spare, calls) = (Arc::new(Mutex::new(None)), Arc::new(AtomicUsize::new(0)));
        let (inside, given, asked) = (allocator.clone(), Arc::clone(&spare), Arc::clone(&calls));
        let id = allocator.attach_oom_reclaimer(move |_| {
            asked.fetch_add(1, Ordering::SeqCst);
            given.lock().unwrap().take().map(|block| free(&inside, block)).is_some()
        });
        thread::scope(|scope| {
            let (running, allocator) = (Arc::new(()), &allocator);
            for _ in 0..2 {
                let seen = Arc::downgrade(&running);
                scope.spawn(move || {
                    let [own, user] = [(); 2].map(|()| Stream::new(context).unwrap());
                    while seen.strong_count() > 0 {
                        for block in (0..16).filter_map(|_| allocator.allocate_by_address(2048, &own).ok()) {
                            allocator.record_stream(block, &user).unwrap();
                            free(allocator, block);
                        }
                    }
                });
            }
            let mut rounds = 0;
            for _ in 0..50 {
                let Ok(block) = allocator.allocate_by_address(80 * MIB, &stream) else { continue };
                *spare.lock().unwrap() = Some(block);
                calls.store(0, Ordering::SeqCst);
                let got = allocator.allocate_by_address(70 * MIB, &stream);
                assert_eq!(calls.load(Ordering::SeqCst), 1, "{got:?}");
                got.into_iter().for_each(|block| free(allocator, block));
                rounds += 1;
            }
            assert!(rounds > 0);
            drop(running);
        });
        allocator.detach(id);
    });
}

/// What a pool's request sets aside before the driver refuses it is memory that is not there.
#[test]
fn a_large_request_that_fails_takes_nothing_from_small_ones() {
    on(Sim::builder().memory(256 * MIB as u64), |_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let [stream, other] = [(); 2].map(|()| Stream::new(context).unwrap());
        let kept = allocator.allocate(120 * MIB, &stream).unwrap();
        let running = Arc::new(());
        let seen = Arc::downgrade(&running);
        thread::scope(|scope| {
            let fail = || {
                let id = MempoolId::for_user();
                while seen.strong_count() > 0 {
                    assert!(routed(&allocator, id, 150 * MIB, &other).is_err());
                }
            };
            for _ in 0..3 {
                scope.spawn(fail);
            }
            for _ in 0..500 {
                let small = allocator.allocate(3 * MIB, &stream);
                allocator.empty_cache().unwrap();
                drop(small.unwrap());
            }
            drop(running);
        });
        drop(kept);
    });
}

/// The device is asked while a segment's memory is made and not counted yet.
#[test]
fn a_segment_that_another_thread_makes_is_counted_once() {
    on(Sim::builder().memory(256 * MIB as u64).workers(2), |_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let [stream, other] = [(); 2].map(|()| Stream::new(context).unwrap());
        let below = DeviceMemoryResource::new(context, &DeviceMemoryResourceOptions::default()).unwrap();
        let (source, slow, released) = (Faulty::new(below), MempoolId::for_user(), MempoolId::for_user());
        allocator.create_or_incref_pool(slow, Some(source.raw())).unwrap();
        let kept = routed(&allocator, released, 100 * MIB, &other).unwrap();
        allocator.release_pool(released).unwrap();
        let made = Arc::new(Barrier::new(2));
        let is_made = Arc::clone(&made);
        source.after_next_allocation(move || {
            is_made.wait();
            thread::sleep(Duration::from_millis(300));
        });
        let (segment, asked) = thread::scope(|scope| {
            let segment = scope.spawn(|| routed(&allocator, slow, 60 * MIB, &other));
            made.wait();
            let asked = scope.spawn(|| allocator.allocate_by_address(140 * MIB, &stream));
            thread::sleep(Duration::from_millis(100));
            free(&allocator, kept);
            (segment.join().unwrap(), asked.join().unwrap())
        });
        [segment, asked].into_iter().for_each(|block| free(&allocator, block.unwrap()));
    });
}

#[test]
fn a_wake_waits_for_what_another_thread_is_giving_back() {
    on(Sim::builder().workers(2), |_, context| {
        let (allocator, stream) = (of_at_most(context, 128), Stream::new(context).unwrap());
        let tag = allocator.tag("weights").unwrap();
        let scope = tag.enter().unwrap();
        let kept = allocator.allocate_by_address(64 * MIB, &stream).unwrap();
        drop(scope);
        // SAFETY: nobody uses the block.
        unsafe { Tag::sleep(&[&tag], Backup::Discard) }.unwrap();
        let wake = || Tag::wake(&[&tag], Restore::Nothing);
        beside_one_that_empties(context, &allocator, &stream, wake).unwrap();
        free(&allocator, kept);
    });
}

#[test]
fn a_segment_that_does_not_go_back_hides_none_that_does() {
    on(Sim::builder(), |_, context| {
        let allocator = of_at_most(context, 64);
        let [stream, other] = [(); 2].map(|()| Stream::new(context).unwrap());
        let below = DeviceMemoryResource::new(context, &DeviceMemoryResourceOptions::default()).unwrap();
        let (kept, busy) = (MempoolId::for_user(), MempoolId::for_user());
        let source = Faulty::new(below);
        allocator.create_or_incref_pool(kept, Some(source.raw())).unwrap();
        free(&allocator, routed(&allocator, kept, MIB, &stream).unwrap());
        while allocator.release_pool(kept).is_ok() {}
        source.refuse_frees(usize::MAX);
        let block = routed(&allocator, busy, 40 * MIB, &other).unwrap();
        let gate = Gate::before(&other);
        free(&allocator, block);
        while allocator.release_pool(busy).is_ok() {}
        let asked = after(100, gate, || allocator.allocate_by_address(40 * MIB, &stream));
        free(&allocator, asked.unwrap());
        source.refuse_frees(0);
    });
}

/// It is on a quick list as soon as the wait for the stream that used it is over.
#[test]
fn a_block_that_cannot_move_goes_back_for_another_stream_s_request() {
    on(Sim::builder().workers(2), |_, context| {
        let options = CachingOptions::default().with_moves(false).with_max_bytes(30 * MIB);
        let allocator = CachingAllocator::new(context, &options).unwrap();
        let [one, other, user] = [(); 3].map(|()| Stream::new(context).unwrap());
        let block = allocator.allocate_by_address(20 * MIB, &one).unwrap();
        let gate = Gate::before(&user);
        allocator.record_stream(block, &user).unwrap();
        free(&allocator, block);
        let asked = after(100, gate, || allocator.allocate_by_address(20 * MIB, &other));
        free(&allocator, asked.unwrap());
    });
}

#[test]
fn a_pinned_request_waits_for_streams_also_beside_threads_that_allocate() {
    on(Sim::builder(), |_, context| {
        let options = PinnedCacheOptions::default()
            .with_returns_surplus(false)
            .with_thread_cache_bytes(0)
            .with_max_bytes(10 * MIB);
        let allocator = PinnedCachingAllocator::with_options(context, options);
        let stream = Stream::new(context).unwrap();
        let _held = allocator.allocate(1024).unwrap();
        thread::scope(|scope| {
            // A panic ends it too.
            let (running, allocator) = (Arc::new(()), &allocator);
            let seen = Arc::downgrade(&running);
            scope.spawn(move || {
                while seen.strong_count() > 0 {
                    drop(allocator.allocate(1024));
                }
            });
            let refused = (0..30).filter(|_| {
                let used = allocator.allocate(8 * MIB).unwrap();
                let gate = Gate::before(&stream);
                used.record_stream(&stream).unwrap();
                drop(used);
                let asked = after(5, gate, || allocator.allocate(8 * MIB).is_err());
                stream.synchronize().unwrap();
                asked
            });
            assert_eq!(refused.count(), 0);
            drop(running);
        });
    });
}

#[test]
fn a_route_that_was_ended_by_name_ends_no_other() {
    on(Sim::builder(), |_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let pool = allocator.private_pool(None).unwrap();
        let route = pool.route_this_thread().unwrap();
        allocator.end_allocate_to_pool(pool.id()).unwrap();
        allocator.release_pool(pool.id()).unwrap();
        allocator.begin_allocate_to_pool(pool.id(), Filter::new(|_| true)).unwrap();
        drop(route);
        assert!(allocator.has_routes(), "it is another's");
        assert_eq!(allocator.pool_use_count(pool.id()), 2);
        allocator.end_allocate_to_pool(pool.id()).unwrap();
        allocator.release_pool(pool.id()).unwrap();
    });
}

unsafe extern "C" fn drop_there(block: *mut c_void) {
    // SAFETY: a block in a box, once.
    drop(unsafe { Box::from_raw(block.cast::<PinnedBlock>()) });
}

/// The drop gives back what is too much, which the driver takes in no host function.
#[test]
fn a_pinned_block_that_is_dropped_in_a_host_function_costs_no_memory() {
    let sim = Sim::builder().build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let options = PinnedCacheOptions::default()
        .with_returns_surplus(false)
        .with_thread_cache_bytes(0)
        .with_max_cached_bytes(4 * MIB);
    let allocator = PinnedCachingAllocator::with_options(&context, options);
    let stream = Stream::new(&context).unwrap();
    let block = allocator.allocate(8 * MIB).unwrap();
    drop(allocator.allocate(3 * MIB).unwrap());
    let launch = context.driver().table().cuLaunchHostFunc().unwrap();
    let block = Box::into_raw(Box::new(block)).cast();
    // SAFETY: a live stream; the function has the block from here on.
    let launched = unsafe { launch(stream.as_raw().cast(), Some(drop_there), block) };
    assert_eq!(launched, CUresult::CUDA_SUCCESS);
    stream.synchronize().unwrap();
    assert_eq!(context.driver().release_failures(), 0);
    let pinned = allocator.statistics().num_host_alloc;
    (0..10).for_each(|_| drop(allocator.allocate(3 * MIB).unwrap()));
    let anew = allocator.statistics().num_host_alloc - pinned;
    assert!(anew <= 1, "{anew} of 10 times");
    drop((allocator, stream));
    assert_eq!(context.driver().reclaim(), 0);
    drop(context);
    assert_eq!(sim.leaks().iter().map(ToString::to_string).collect::<Vec<_>>(), [""; 0]);
}

//! What becomes of private pools while another thread asks whether their memory is quiet, or waits for that, and while a tracker is told.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use cuda_mem_core::Stream;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::segments::{Filter, PoolError};
use cuda_mem_pool::snapshot::Action;
use cuda_mem_pool::{
    DeviceMemoryResource, DeviceMemoryResourceOptions, Error, MemoryResource, MempoolId,
    PinnedCachingAllocator,
};
use cuda_mem_sim::Sim;

use crate::blocks::{free, routed};
use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::faulty::Faulty;
use crate::interrupted::{LIMIT, interrupted, meanwhile, until};
use crate::rig::{on, on_simulator};

/// So large that it has a segment of its own.
const BYTES: usize = 30 << 20;

/// A pool's only segment, which is free once more.
fn filled(allocator: &CachingAllocator, id: MempoolId, stream: &Stream) {
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    drop(allocator.allocate(BYTES, stream).unwrap());
    allocator.end_allocate_to_pool(id).unwrap();
}

/// Has another thread work with the allocator at the next question about a stream: what came of it.
fn beside<R: Send + 'static>(
    allocator: &CachingAllocator,
    work: impl FnOnce(&CachingAllocator) -> R + Send + 'static,
) -> Receiver<R> {
    let (done, was_done) = channel();
    let allocator = allocator.clone();
    // A thread that panics sends nothing.
    meanwhile(move || drop(thread::spawn(move || done.send(work(&allocator))).join()));
    was_done
}

/// The graph of a released pool runs on a stream that had memory of another private pool alone.
#[test]
fn a_graphs_memory_waits_for_streams_that_only_private_pools_know() {
    interrupted(Sim::builder(), |_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let [stream, launched_on] = [(); 2].map(|()| Stream::new(context).unwrap());
        let (graphs, others) = (MempoolId::for_graph(), MempoolId::for_user());
        let capture = Capture::begin(&stream, RELAXED);
        filled(&allocator, graphs, &stream);
        drop(capture.end().unwrap());
        filled(&allocator, others, &launched_on);
        allocator.release_pool(others).unwrap();
        assert_eq!(allocator.empty_pool_cache(others).unwrap(), BYTES);
        let gate = Gate::before(&launched_on);
        allocator.release_pool(graphs).unwrap();

        let other_pool_goes = beside(&allocator, |allocator| {
            let id = MempoolId::for_user();
            allocator.create_or_incref_pool(id, None).unwrap();
            allocator.release_pool(id).unwrap();
            allocator.empty_pool_cache(id).unwrap();
        });
        assert_eq!(allocator.empty_cache().unwrap(), 0);
        other_pool_goes.recv_timeout(LIMIT).unwrap();
        assert_eq!(allocator.empty_cache().unwrap(), 0, "the graph runs");
        gate.open();
        until("all is quiet", || allocator.empty_cache().is_ok() && allocator.reserved_bytes() == 0);
    });
}

#[test]
fn a_pool_is_there_until_all_its_memory_has_gone() {
    interrupted(Sim::builder(), |_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let stream = Stream::new(context).unwrap();
        let id = MempoolId::for_user();
        filled(&allocator, id, &stream);
        allocator.release_pool(id).unwrap();
        let gate = Gate::before(&stream);
        let made = beside(&allocator, move |allocator| allocator.create_or_incref_pool(id, None));
        assert_eq!(allocator.empty_cache().unwrap(), 0);
        let made = made.recv_timeout(LIMIT).unwrap();
        assert!(matches!(made, Err(Error::Pool(PoolError::Released { .. }))), "{made:?}");
        assert_eq!(allocator.reserved_bytes(), BYTES);
        gate.open();
        until("all is quiet", || allocator.empty_cache().is_ok() && allocator.reserved_bytes() == 0);
        allocator.create_or_incref_pool(id, None).unwrap();
    });
}

/// Whoever is told that a block went may have its memory at once, and another stream use that.
#[test]
fn what_a_tracker_gets_while_a_checkpoint_is_brought_back_waits_for_its_uses() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let [stream, user] = [(); 2].map(|()| Stream::new(context).unwrap());
        let id = MempoolId::for_user();
        allocator.create_or_incref_pool(id, None).unwrap();
        let empty = allocator.checkpoint_pool(id).unwrap();
        let block = routed(&allocator, id, BYTES, &stream).unwrap();
        let gate = Gate::before(&user);
        let (within, of, using) = (allocator.clone(), stream.clone(), user.clone());
        let tracker = allocator.history().attach(move |entry| {
            if entry.action == Action::FreeCompleted && entry.address == block {
                assert_eq!(routed(&within, id, BYTES, &of).unwrap(), block);
                within.record_stream(block, &using).unwrap();
            }
        });
        // SAFETY: nothing uses the block.
        let restored = unsafe { allocator.restore_pool(id, &empty) }.unwrap();
        assert_eq!(restored.freed, [block]);
        allocator.history().detach(tracker);
        free(&allocator, block);
        let next = routed(&allocator, id, BYTES, &stream).unwrap();
        assert_ne!(next, block, "a stream uses it");
        gate.open();
        user.synchronize().unwrap();
        free(&allocator, next);
    });
}

/// A tracker takes so long that threads overtake each other. What of all it was told is no segment's, and what is there last.
fn told_slowly(allocator: &CachingAllocator, body: impl FnOnce()) -> (usize, usize) {
    let told = Arc::new(Mutex::new((Vec::<(u64, u64)>::new(), 0)));
    let heard = Arc::clone(&told);
    let tracker = allocator.history().attach(move |entry| {
        let (segments, strays) = &mut *heard.lock().unwrap();
        match entry.action {
            Action::SegmentAlloc => segments.push((entry.address, entry.address + entry.size)),
            Action::SegmentFree => segments.retain(|(start, _)| *start != entry.address),
            Action::Alloc => {
                *strays +=
                    usize::from(!segments.iter().any(|(start, end)| (*start..*end).contains(&entry.address)));
            }
            _ => {}
        }
        thread::sleep(Duration::from_micros(40));
    });
    body();
    allocator.history().detach(tracker);
    let told = told.lock().unwrap();
    (told.0.len(), told.1)
}

#[test]
fn a_segment_is_told_before_all_blocks_in_it() {
    on_simulator(|_, context| {
        for _ in 0..40 {
            let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
            let (stream, id) = (Stream::new(context).unwrap(), MempoolId::for_user());
            allocator.begin_allocate_to_pool(id, Filter::new(|_| true)).unwrap();
            let (_, strays) = told_slowly(&allocator, || {
                let fill = || drop([(); 12].map(|()| allocator.allocate(2 << 20, &stream).unwrap()));
                thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(fill))));
            });
            assert_eq!(strays, 0);
            allocator.end_allocate_to_pool(id).unwrap();
        }
    });
}

#[test]
fn a_segment_that_goes_at_the_second_try_is_told_as_gone() {
    on_simulator(|_, context| {
        let below = DeviceMemoryResource::new(context, &DeviceMemoryResourceOptions::default()).unwrap();
        let upstream = Faulty::new(below);
        for _ in 0..40 {
            let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
            let (stream, id) = (Stream::new(context).unwrap(), MempoolId::for_user());
            allocator.create_or_incref_pool(id, Some(upstream.raw())).unwrap();
            let (left, _) = told_slowly(&allocator, || {
                let blocks = [(); 4].map(|()| routed(&allocator, id, BYTES, &stream).unwrap());
                blocks.into_iter().for_each(|block| free(&allocator, block));
                while allocator.release_pool(id).is_ok() {}
                stream.synchronize().unwrap();
                let empty = || {
                    for _ in 0..30 {
                        upstream.refuse_frees(1);
                        let _ = allocator.empty_cache();
                    }
                };
                thread::scope(|scope| {
                    for _ in 0..3 {
                        scope.spawn(empty);
                    }
                });
                upstream.refuse_frees(0);
                let _ = allocator.empty_cache();
            });
            assert_eq!((left, allocator.reserved_bytes()), (0, 0));
        }
    });
}

#[test]
fn a_block_whose_stream_is_done_serves_others_while_one_waits_for_another_stream() {
    on(Sim::builder().memory(64 << 20).workers(2), |_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let [stream, other, slow, fast] = [(); 4].map(|()| Stream::new(context).unwrap());
        let (id, bytes) = (MempoolId::for_user(), 20 << 20);
        let kept = allocator.allocate_by_address(bytes, &other).unwrap();
        allocator.begin_allocate_to_pool(id, Filter::stream(stream.id().as_raw())).unwrap();
        let ask = || allocator.allocate_by_address(bytes, &stream);
        let blocks = [(); 2].map(|()| ask().unwrap());
        thread::scope(|scope| {
            let gates = [&slow, &fast].map(Gate::before);
            for (block, user) in blocks.into_iter().zip([&slow, &fast]) {
                allocator.record_stream(block, user).unwrap();
                free(&allocator, block);
            }
            let waits = scope.spawn(ask);
            until("the host waits", || allocator.statistics().num_sync_all_streams > 0);
            thread::sleep(Duration::from_millis(50));
            gates[1].open();
            fast.synchronize().unwrap();
            assert_eq!(ask().unwrap(), blocks[1]);
            assert!(!waits.is_finished());
            gates[0].open();
            assert_eq!(waits.join().unwrap().unwrap(), blocks[0]);
        });
        blocks.into_iter().chain([kept]).for_each(|block| free(&allocator, block));
    });
}

/// What a filter has captured may go with its owner afterwards.
#[test]
fn who_ends_a_route_waits_for_those_who_ask_its_filter() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let stream = Stream::new(context).unwrap();
        for ends in [CachingAllocator::end_allocate_to_pool, CachingAllocator::release_pool] {
            let (id, answered, (asked, is_asked)) =
                (MempoolId::for_user(), Arc::new(AtomicBool::new(false)), channel());
            let answers = Arc::clone(&answered);
            let filter = Filter::new(move |_| {
                asked.send(()).unwrap();
                thread::sleep(Duration::from_millis(100));
                answers.store(true, Ordering::SeqCst);
                true
            });
            allocator.begin_allocate_to_pool(id, filter).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| drop(allocator.allocate(BYTES, &stream).unwrap()));
                is_asked.recv_timeout(LIMIT).unwrap();
                ends(&allocator, id).unwrap();
                assert!(answered.load(Ordering::SeqCst), "it is still being asked");
            });
        }
    });
}

/// Who ends a route waits for that filter, and nobody for who waits.
#[test]
fn a_filter_waits_for_a_thread_that_allocates_while_a_route_ends() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (stream, [id, other]) = (Stream::new(context).unwrap(), [(); 2].map(|()| MempoolId::for_user()));
        let ((asked, is_asked), (answer, may_answer)) = (channel(), channel::<()>());
        let (was_asked, may_answer) = (AtomicBool::new(false), Mutex::new(may_answer));
        let filter = Filter::new(move |_| {
            if !was_asked.swap(true, Ordering::SeqCst) {
                asked.send(()).unwrap();
                may_answer.lock().unwrap().recv_timeout(LIMIT).unwrap();
            }
            false
        });
        allocator.begin_allocate_to_pool(id, filter).unwrap();
        // As long as there is one, whoever allocates asks.
        allocator.begin_allocate_to_pool(other, Filter::new(|_| false)).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| drop(allocator.allocate(BYTES, &stream).unwrap()));
            is_asked.recv_timeout(LIMIT).unwrap();
            let ending = scope.spawn(|| allocator.end_allocate_to_pool(id).unwrap());
            thread::sleep(Duration::from_millis(100));
            drop(allocator.allocate(BYTES, &stream).unwrap());
            assert!(!ending.is_finished(), "the filter is still being asked");
            answer.send(()).unwrap();
        });
        allocator.end_allocate_to_pool(other).unwrap();
        [id, other].into_iter().for_each(|id| allocator.release_pool(id).unwrap());
    });
}

/// Two threads are asked, of device and of pinned memory, and each ends the route that the other is asked for.
#[test]
fn filters_of_device_and_of_pinned_memory_may_end_each_others_routes() {
    on_simulator(|_, context| {
        let device = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let pinned = PinnedCachingAllocator::new(context);
        let (stream, id, both) =
            (Stream::new(context).unwrap(), MempoolId::for_user(), Arc::new(Barrier::new(2)));
        let (other, meets) = (pinned.clone(), Arc::clone(&both));
        let ends_pinned = move |_| {
            meets.wait();
            other.end_allocate_to_pool(id).is_err()
        };
        device.begin_allocate_to_pool(id, Filter::new(ends_pinned)).unwrap();
        let other = device.clone();
        let ends_device = move |_| {
            both.wait();
            other.end_allocate_to_pool(id).is_err()
        };
        pinned.begin_allocate_to_pool(id, ends_device).unwrap();
        let (done, is_done) = channel();
        let (of_device, of_pinned) = (device.clone(), pinned.clone());
        let works: [Box<dyn FnOnce() + Send>; 2] = [
            Box::new(move || drop(of_device.allocate(BYTES, &stream).unwrap())),
            Box::new(move || drop(of_pinned.allocate(BYTES).unwrap())),
        ];
        for work in works {
            let done = done.clone();
            thread::spawn(move || {
                work();
                done.send(()).unwrap();
            });
        }
        (0..2).for_each(|_| is_done.recv_timeout(LIMIT).expect("neither waits for the other"));
        device.release_pool(id).unwrap();
        pinned.release_pool(id).unwrap();
    });
}

#[test]
fn a_filter_that_ends_its_own_route_waits_for_nobody() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (stream, id, its_own) = (Stream::new(context).unwrap(), MempoolId::for_user(), allocator.clone());
        let filter = Filter::new(move |_| its_own.release_pool(id).is_err());
        allocator.begin_allocate_to_pool(id, filter).unwrap();
        let block = allocator.allocate(BYTES, &stream).unwrap();
        assert!(!allocator.has_routes() && allocator.pool_use_count(id) == 0);
        drop(block);
    });
}

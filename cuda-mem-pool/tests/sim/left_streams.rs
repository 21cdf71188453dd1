//! Streams that come and go beside private pools: what they leave there serves the next ones, once it is done, and they are destroyed.

use std::thread;
use std::time::Duration;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, Event, Stream};
use cuda_mem_pool::caching::{Backup, CachingAllocator, CachingOptions, Restore, Tag};
use cuda_mem_pool::snapshot::Action;
use cuda_mem_pool::{MemoryResource, MempoolId};
use cuda_mem_sim::Sim;

use crate::blocks::{free, routed};
use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::rig::on;
use crate::sleep::{allocate_in, sleep};

const MIB: usize = 1 << 20;
/// As many as would fill the device, at a segment each.
const MANY: usize = 40;

fn small(test: impl FnOnce(&Sim, &Context, &CachingAllocator)) {
    on(Sim::builder().memory(64 << 20).workers(2), |sim, context| {
        test(sim, context, &CachingAllocator::new(context, &CachingOptions::default()).unwrap());
    });
}

/// A stream that is held up by another, which the gate keeps.
fn held_up(context: &Context) -> (Stream, Gate) {
    let (stream, held) = (Stream::new(context).unwrap(), Stream::new(context).unwrap());
    let (gate, behind) = (Gate::before(&held), Event::new(context).unwrap());
    held.record(&behind).unwrap();
    stream.wait(&behind).unwrap();
    (stream, gate)
}

fn destroyed(sim: &Sim) -> usize {
    sim.log().records().iter().filter(|record| record.function == "cuStreamDestroy").count()
}

#[test]
fn streams_that_come_and_go_beside_a_pool_leave_it_to_the_next_ones() {
    for in_the_default_pool_too in [false, true] {
        small(|sim, context, allocator| {
            let (id, keeper) = (MempoolId::for_user(), Stream::new(context).unwrap());
            let kept = routed(allocator, id, 1000, &keeper).unwrap();
            for _ in 0..MANY {
                let stream = Stream::new(context).unwrap();
                free(allocator, routed(allocator, id, 1000, &stream).unwrap());
                if in_the_default_pool_too {
                    free(allocator, allocator.allocate_by_address(10 * MIB, &stream).unwrap());
                }
            }
            let blocks = if in_the_default_pool_too { 10 * MIB } else { 0 };
            assert_eq!(allocator.reserved_bytes(), 4 * MIB + blocks);
            assert!(destroyed(sim) >= MANY - 2, "{}", destroyed(sim));
            assert!(allocator.stream_segment_sizes().unwrap().len() <= 2);
            free(allocator, kept);
        });
    }
}

#[test]
fn blocks_that_somebody_has_belong_to_the_next_stream() {
    small(|sim, context, allocator| {
        let id = MempoolId::for_user();
        let blocks: Vec<u64> =
            (0..MANY).map(|_| routed(allocator, id, 1000, &Stream::new(context).unwrap()).unwrap()).collect();
        assert_eq!(allocator.reserved_bytes(), 2 * MIB);
        assert!(destroyed(sim) >= MANY - 2);
        let (next, other) = (Stream::new(context).unwrap(), Stream::new(context).unwrap());
        let last = routed(allocator, id, 1000, &next).unwrap();
        // Each comes back to the stream that has it now, behind what others do with it.
        let gate = Gate::before(&other);
        allocator.record_stream(blocks[0], &other).unwrap();
        blocks.iter().for_each(|&block| free(allocator, block));
        assert_eq!(routed(allocator, id, 1000, &next).unwrap(), blocks[1]);
        gate.open();
        other.synchronize().unwrap();
        allocator.empty_cache().unwrap();
        assert_eq!(routed(allocator, id, 1000, &next).unwrap(), blocks[0]);
        assert_eq!(allocator.reserved_bytes(), 2 * MIB);
        [last, blocks[0], blocks[1]].into_iter().for_each(|block| free(allocator, block));
    });
}

#[test]
fn a_stream_with_work_leaves_nothing_before_that_is_done() {
    small(|sim, context, allocator| {
        let (id, next) = (MempoolId::for_user(), Stream::new(context).unwrap());
        let (stream, gate) = held_up(context);
        let block = routed(allocator, id, 30 * MIB, &stream).unwrap();
        free(allocator, block);
        drop(stream);
        let other = routed(allocator, id, 24 * MIB, &next).unwrap();
        assert_eq!(allocator.reserved_bytes(), 54 * MIB, "its work runs yet");
        let opens = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            gate.open();
            gate
        });
        // Without other memory the host waits.
        assert_eq!(routed(allocator, id, 30 * MIB, &next).unwrap(), block);
        assert_eq!(destroyed(sim), 1);
        assert_eq!(allocator.statistics().num_ooms, 0);
        drop(opens.join().unwrap());
        [block, other].into_iter().for_each(|block| free(allocator, block));
    });
}

#[test]
fn a_stream_that_somebody_has_keeps_its_memory() {
    small(|sim, context, allocator| {
        let (id, next) = (MempoolId::for_user(), Stream::new(context).unwrap());
        let stream = Stream::new(context).unwrap();
        let block = routed(allocator, id, 1000, &stream).unwrap();
        free(allocator, block);
        let other = routed(allocator, id, 1000, &next).unwrap();
        assert_eq!(allocator.reserved_bytes(), 4 * MIB);
        assert_eq!(routed(allocator, id, 1000, &stream).unwrap(), block);
        assert_eq!(destroyed(sim), 0);
        [block, other].into_iter().for_each(|block| free(allocator, block));
    });
}

#[test]
fn a_pool_that_a_graph_may_use_keeps_its_memory() {
    small(|sim, context, allocator| {
        let (id, other) = (MempoolId::for_graph(), MempoolId::for_user());
        let stream = Stream::new(context).unwrap();
        let capture = Capture::begin(&stream, RELAXED);
        free(allocator, routed(allocator, id, 1000, &stream).unwrap());
        drop(capture.end().unwrap());
        drop(stream);
        for _ in 0..2 {
            let next = Stream::new(context).unwrap();
            free(allocator, routed(allocator, id, 1000, &next).unwrap());
        }
        assert_eq!(allocator.reserved_bytes(), 6 * MIB);
        // As those of another pool are.
        assert_eq!(destroyed(sim), 2);
        for _ in 0..MANY {
            let next = Stream::new(context).unwrap();
            free(allocator, routed(allocator, other, 1000, &next).unwrap());
        }
        assert_eq!(allocator.reserved_bytes(), 8 * MIB);
        assert_eq!(destroyed(sim), MANY + 2);
        for _ in 0..3 {
            allocator.release_pool(id).unwrap();
        }
        assert_eq!(allocator.empty_pool_cache(id).unwrap(), 6 * MIB);
        assert_eq!(destroyed(sim), MANY + 2);
    });
}

/// The default streams of threads are nobody's when those have ended.
#[test]
fn threads_that_come_and_go_beside_a_pool_leave_it_to_the_next_ones() {
    small(|_, context, allocator| {
        let (id, keeper) = (MempoolId::for_user(), Stream::new(context).unwrap());
        let kept = routed(allocator, id, 1000, &keeper).unwrap();
        let in_a_thread = || {
            let taken = || {
                let stream = Stream::per_thread(context).unwrap();
                routed(allocator, id, 1000, &stream).unwrap()
            };
            thread::scope(|scope| scope.spawn(taken).join()).unwrap()
        };
        // One has a block of the thread before.
        let first = in_a_thread();
        for _ in 0..MANY {
            free(allocator, in_a_thread());
        }
        assert_eq!(allocator.reserved_bytes(), 4 * MIB);
        [kept, first].into_iter().for_each(|block| free(allocator, block));
        while allocator.pool_use_count(id) > 0 {
            allocator.release_pool(id).unwrap();
        }
        assert_eq!(allocator.empty_pool_cache(id).unwrap(), 4 * MIB);
    });
}

/// What a thread leaves with work on its default stream, which nobody can name any more, is there for others once the host has waited for
/// all work of the context: of a pool in use, of a released one, of the default pool without pages, and where a tag wakes.
#[test]
fn pools_that_a_thread_leaves_with_work_in_them_serve_others_once_that_is_done() {
    let id = MempoolId::for_user();
    for (is_expandable, is_released) in [(true, false), (true, true), (false, true)] {
        small(|_, context, allocator| {
            allocator.set_expandable_segments(is_expandable).unwrap();
            let gate = leaves_work(context, |own| {
                let block = if is_expandable {
                    routed(allocator, id, 40 * MIB, own)
                } else {
                    allocator.allocate_by_address(40 * MIB, own)
                };
                free(allocator, block.unwrap());
            });
            if is_expandable && is_released {
                allocator.release_pool(id).unwrap();
            }
            let stream = Stream::new(context).unwrap();
            let ask = || match is_released {
                true => allocator.allocate_by_address(60 * MIB, &stream),
                false => routed(allocator, id, 40 * MIB, &stream),
            };
            let block = thread::scope(|scope| {
                let asked = scope.spawn(ask);
                thread::sleep(Duration::from_millis(20));
                assert!(!asked.is_finished(), "the host waits");
                gate.open();
                asked.join().unwrap().unwrap()
            });
            free(allocator, block);
        });
    }
    for is_expandable in [true, false] {
        small(|_, context, allocator| {
            let (tag, stream) = (allocator.tag("asleep").unwrap(), Stream::new(context).unwrap());
            let block = allocate_in(&tag, allocator, 40 * MIB, &stream);
            sleep(&tag, Backup::Discard);
            allocator.set_expandable_segments(is_expandable).unwrap();
            let work = |own: &Stream| drop(allocator.allocate(40 * MIB, own).unwrap());
            leaves_work(context, work).open();
            Tag::wake(&[&tag], Restore::Nothing).unwrap();
            free(allocator, block);
        });
    }
}

/// A wait for the context would end the capture.
#[test]
fn a_pool_that_a_thread_leaves_with_work_in_it_is_nobodys_beside_a_capture() {
    let beside = |is_known: bool| {
        small(|sim, context, allocator| {
            let (id, capturing) = (MempoolId::for_user(), Stream::new(context).unwrap());
            // Memory was allocated for it, or it was only lent.
            if is_known {
                drop(allocator.allocate(MIB, &capturing).unwrap());
            }
            leaves_work(context, |own| free(allocator, routed(allocator, id, 40 * MIB, own).unwrap())).open();
            allocator.release_pool(id).unwrap();
            let waits = sim.log().count("cuCtxSynchronize");
            let capture = Capture::begin(&capturing, RELAXED);
            assert_eq!(allocator.empty_pool_cache(id).unwrap(), 0);
            assert_eq!(sim.log().count("cuCtxSynchronize"), waits);
            drop(capture.end().unwrap());
            assert_eq!(allocator.empty_pool_cache(id).unwrap(), 40 * MIB);
        });
    };
    [true, false].into_iter().for_each(beside);
}

/// A thread that ends while its default stream waits behind the gate, with what it does there.
fn leaves_work(context: &Context, work: impl FnOnce(&Stream) + Send) -> Gate {
    let body = || {
        let own = Stream::per_thread(context).unwrap();
        let gate = Gate::before(&own);
        work(&own);
        gate
    };
    thread::scope(|scope| scope.spawn(body).join()).unwrap()
}

/// A segment is on its way out while another pool grows, which has streams forgotten that have no memory, and comes back.
#[test]
fn what_the_driver_refuses_of_a_thread_that_has_ended_goes_later() {
    small(|sim, context, allocator| {
        let [id, grows] = [(); 2].map(|()| MempoolId::for_user());
        thread::scope(|scope| {
            let taken = || routed(allocator, id, 1000, &Stream::per_thread(context).unwrap()).unwrap();
            free(allocator, scope.spawn(taken).join().unwrap());
        });
        allocator.release_pool(id).unwrap();
        let (stream, within) = (Stream::new(context).unwrap(), allocator.clone());
        let tracker = allocator.history().attach(move |entry| {
            if entry.action == Action::SegmentFree && within.pool_use_count(grows) == 0 {
                free(&within, routed(&within, grows, 1000, &stream).unwrap());
            }
        });
        sim.fail_call("cuMemFree", 1, CUresult::CUDA_ERROR_UNKNOWN);
        allocator.empty_pool_cache(id).unwrap_err();
        allocator.history().detach(tracker);
        assert_eq!(allocator.empty_pool_cache(id).unwrap(), 2 * MIB);
    });
}

/// Of two threads that wait for all work of the context, the second began before a stream that the first has found done was followed by
/// another thread's, which ended while it was busy: its wait says nothing of that.
#[test]
fn a_wait_that_began_before_a_stream_was_there_does_not_count_for_it() {
    small(|_, context, allocator| {
        let [first_asks, asks, held] = [(); 3].map(|()| Stream::new(context).unwrap());
        let ask = |stream: &Stream| {
            let mut block = allocator.allocate(60 * MIB, stream).ok()?;
            block.as_device_range().fill_bytes(stream, 1).unwrap();
            stream.synchronize().unwrap();
            Some(block)
        };
        let work = |own: &Stream| {
            let mut block = allocator.allocate(40 * MIB, own).unwrap();
            block.as_device_range().fill_bytes(own, 2).unwrap();
        };
        let first = leaves_work(context, work);
        thread::scope(|scope| {
            let has_asked = scope.spawn(|| assert!(ask(&first_asks).is_some()));
            thread::sleep(Duration::from_millis(50));
            let second = Gate::before(&held);
            let asked = scope.spawn(|| ask(&asks));
            thread::sleep(Duration::from_millis(50));
            assert!(!has_asked.is_finished() && !asked.is_finished(), "the host waits");
            first.open();
            has_asked.join().unwrap();
            let late = leaves_work(context, work);
            second.open();
            let given = asked.join().unwrap();
            late.open();
            assert!(given.is_none(), "what uses it has not begun");
        });
        assert!(ask(&asks).is_some());
    });
}

//! Tags beside calls of other threads, of trackers, and for pools whose names are used again.

use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, Driver, Error as CoreError, Stream};
use cuda_mem_pool::caching::{
    Asleep, Backup, CachingAllocator, CachingOptions, Restore, SleepError, Tag, TagState,
};
use cuda_mem_pool::segments::{Filter, PoolError};
use cuda_mem_pool::snapshot::Action;
use cuda_mem_pool::{Error, MemoryResource, MempoolId};
use cuda_mem_sim::Sim;

use crate::blocks::{free, routed};
use crate::caching_watchers::Bomb;
use crate::common::capture::{Capture, GLOBAL, RELAXED, THREAD_LOCAL};
use crate::common::child;
use crate::common::gate::Gate;
use crate::rig::{on, on_simulator};
use crate::sleep::{MIB, allocate_in, byte, fill, sleep};

/// Far longer than it needs.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a test in a thread, which may not wait for ever.
fn within_limit(test: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = thread::spawn(move || {
        test();
        done.send(()).unwrap();
    });
    if ended.recv_timeout(LIMIT) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("it waits for ever");
    }
    thread.join().unwrap();
}

/// The name of a pool that was given to a tag and is gone.
fn once_of(allocator: &CachingAllocator, tag: &Tag) -> MempoolId {
    let id = MempoolId::for_user();
    tag.add_pool(id).unwrap();
    allocator.release_pool(id).unwrap();
    allocator.empty_cache().unwrap();
    id
}

/// A tag with the name of a pool that it had.
fn weights_and_old_name(context: &Context) -> (CachingAllocator, Tag, MempoolId, Stream) {
    let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
    let tag = allocator.tag("weights").unwrap();
    let id = once_of(&allocator, &tag);
    (allocator, tag, id, Stream::new(context).unwrap())
}

#[test]
fn a_tag_is_made_while_another_one_refuses_memory() {
    within_limit(|| {
        on_simulator(|_, context| {
            let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
            let (tag, stream) = (allocator.tag("asleep").unwrap(), Stream::new(context).unwrap());
            let block = allocate_in(&tag, &allocator, MIB, &stream);
            sleep(&tag, Backup::Discard);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let _scope = tag.enter().unwrap();
                    for _ in 0..5_000 {
                        let refused = allocator.allocate_by_address(MIB, &stream);
                        assert!(
                            matches!(refused, Err(Error::Sleep(SleepError::Asleep { .. }))),
                            "{refused:?}"
                        );
                    }
                });
                for number in 0..300 {
                    allocator.tag(&number.to_string()).unwrap();
                }
            });
            free(&allocator, block);
        });
    });
}

#[test]
fn a_tracker_enters_a_tag_that_is_being_entered() {
    within_limit(|| {
        on_simulator(|_, context| {
            let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
            let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
            let (id, other) = (MempoolId::for_user(), Stream::new(context).unwrap());
            let block = routed(&allocator, id, MIB, &stream).unwrap();
            allocator.record_stream(block, &other).unwrap();
            free(&allocator, block);
            let (entering, entered) = (tag.clone(), mpsc::channel());
            let told = Mutex::new(entered.0);
            let tracker = allocator.history().attach(move |_| {
                drop(entering.enter().unwrap());
                told.lock().unwrap().send(()).unwrap();
            });
            drop(tag.enter().unwrap());
            assert!(entered.1.try_recv().is_ok(), "the free was told of");
            allocator.history().detach(tracker);
            allocator.release_pool(id).unwrap();
        });
    });
}

#[test]
fn a_tracker_asks_a_tag_that_gets_its_backup() {
    within_limit(|| {
        on_simulator(|_, context| {
            let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
            let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
            let block = allocate_in(&tag, &allocator, MIB, &stream);
            // Its free waits for the capture.
            let (late, other) = (allocator.allocate(MIB, &stream).unwrap(), Stream::new(context).unwrap());
            drop(late.on(&other).unwrap());
            let capture = Capture::begin(&stream, RELAXED);
            drop(late);
            drop(capture.end().unwrap());
            let (asking, asked) = (tag.clone(), mpsc::channel());
            let told = Mutex::new(asked.0);
            let tracker = allocator.history().attach(move |_| {
                assert!(!asking.state().is_asleep);
                told.lock().unwrap().send(()).unwrap();
            });
            tag.prepare().unwrap();
            assert!(asked.1.try_recv().is_ok(), "the free was told of");
            allocator.history().detach(tracker);
            free(&allocator, block);
        });
    });
}

#[test]
fn who_hears_of_a_backup_that_stays_asks_its_tag() {
    within_limit(|| {
        let sim = Sim::builder().build();
        let driver = Driver::over(sim.table()).unwrap();
        let context = driver.device(0).unwrap().primary_context().unwrap();
        let allocator = CachingAllocator::new(&context, &CachingOptions::default()).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(&context).unwrap());
        let (asking, asked) = (tag.clone(), mpsc::channel());
        let told = Mutex::new(asked.0);
        driver.on_release_failure(move |_| told.lock().unwrap().send(asking.state()).unwrap());
        let small = allocate_in(&tag, &allocator, MIB, &stream);
        tag.prepare().unwrap();
        let large = allocate_in(&tag, &allocator, 4 * MIB, &stream);
        for _ in 0..9 {
            sim.fail_call("cuMemHostUnregister", 1, CUresult::CUDA_ERROR_UNKNOWN);
        }
        tag.prepare().unwrap();
        assert!(asked.1.try_recv().is_ok(), "the release was refused");
        sim.clear_faults();
        driver.on_release_failure(|_| {});
        [small, large].into_iter().for_each(|block| free(&allocator, block));
    });
}

/// It was on its way when the tag was put to sleep, so it has nothing to be woken for.
#[test]
fn a_segment_goes_while_its_tag_wakes() {
    within_limit(|| {
        on_simulator(|sim, context| {
            let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
            let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
            let mut blocks = [64 * MIB; 2].map(|bytes| allocate_in(&tag, &allocator, bytes, &stream));
            // The one that goes is looked at last.
            blocks.sort_unstable();
            let [stays, goes] = blocks;
            fill(&stream, stays, 64 * MIB, 7);
            free(&allocator, goes);
            stream.synchronize().unwrap();
            let ((here, is_here), (go, go_on)) = (mpsc::channel(), mpsc::channel::<()>());
            let gate = Mutex::new((here, go_on));
            let tracker = allocator.history().attach(move |entry| {
                if entry.action == Action::SegmentFree {
                    let gate = gate.lock().unwrap();
                    gate.0.send(()).unwrap();
                    gate.1.recv().unwrap();
                }
            });
            thread::scope(|scope| {
                let emptied = scope.spawn(|| allocator.empty_cache());
                is_here.recv().unwrap();
                assert_eq!(sleep(&tag, Backup::Pinned).freed, 64 * MIB);
                sim.delay("cuMemMap", Duration::from_millis(300));
                let woken = scope.spawn(|| Tag::wake(&[&tag], Restore::Backup));
                thread::sleep(Duration::from_millis(100));
                go.send(()).unwrap();
                assert_eq!(emptied.join().unwrap().unwrap(), 64 * MIB);
                woken.join().unwrap().unwrap();
            });
            sim.clear_faults();
            allocator.history().detach(tracker);
            assert_eq!((byte(&stream, stays), tag.has(goes)), (7, false));
            assert_eq!((tag.state().awake_bytes, tag.state().asleep_bytes), (64 * MIB, 0));
            assert_eq!(allocator.reserved_bytes(), 64 * MIB);
            free(&allocator, stays);
        });
    });
}

#[test]
fn a_pool_of_one_tag_is_no_more_that_of_another_one_that_had_its_name() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let [before, now] = ["before", "now"].map(|name| allocator.tag(name).unwrap());
        let (id, stream) = (once_of(&allocator, &before), Stream::new(context).unwrap());
        now.add_pool(id).unwrap();
        allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
        let block = allocator.allocate(3 * MIB, &stream).unwrap();
        let asleep = Asleep::new(&allocator, vec![block], Backup::Pinned).unwrap();
        assert!(asleep.slept().freed > 0);
        before.prepare().unwrap();
        // Beside the block there is room in its segment.
        let refused = allocator.allocate(2 * MIB, &stream);
        if let Ok(unmapped) = &refused {
            unmapped.whole().fill_bytes(&stream, 1).unwrap();
            stream.synchronize().unwrap();
        }
        assert!(matches!(refused, Err(Error::Sleep(SleepError::Asleep { .. }))), "{refused:?}");
        assert_eq!((before.pools().len(), now.pools().len()), (1, 2));
        asleep.wake(Restore::Backup).unwrap();
        allocator.end_allocate_to_pool(id).unwrap();
        allocator.release_pool(id).unwrap();
    });
}

/// Its memory is cached yet.
#[test]
fn a_pool_that_was_released_is_given_to_its_tag_again() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, stream, id) =
            (allocator.tag("graphs").unwrap(), Stream::new(context).unwrap(), MempoolId::for_graph());
        let blocks = [(); 2].map(|()| {
            tag.add_pool(id).unwrap();
            let block = routed(&allocator, id, 12 * MIB, &stream).unwrap();
            assert!(tag.has(block));
            free(&allocator, block);
            allocator.release_pool(id).unwrap();
            block
        });
        assert_eq!(blocks[0], blocks[1]);
        assert_eq!((allocator.empty_cache().unwrap(), allocator.reserved_bytes()), (12 * MIB, 0));
    });
}

#[test]
fn a_pool_that_a_tag_made_lasts_as_long_as_its_users() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let stream = Stream::new(context).unwrap();
        let [tag, other] = ["graphs", "other"].map(|name| allocator.tag(name).unwrap());
        let id = MempoolId::for_graph();
        tag.add_pool(id).unwrap();
        assert_eq!(allocator.pool_use_count(id), 0);
        // Kept for its first user.
        allocator.empty_cache().unwrap();
        assert_eq!(tag.pools().len(), 2);
        let first = routed(&allocator, id, 12 * MIB, &stream).unwrap();
        tag.add_pool(id).unwrap();
        let second = routed(&allocator, id, 12 * MIB, &stream).unwrap();
        assert_eq!((tag.has(first), tag.has(second), allocator.pool_use_count(id)), (true, true, 2));
        let taken = other.add_pool(id).unwrap_err();
        assert!(matches!(taken, Error::Pool(PoolError::HasMemory { .. })), "{taken}");
        [first, second].into_iter().for_each(|block| free(&allocator, block));
        allocator.release_pool(id).unwrap();
        assert_eq!(allocator.empty_cache().unwrap(), 0, "it has a user");
        allocator.release_pool(id).unwrap();
        assert!(allocator.release_pool(id).is_err());
        assert_eq!((allocator.empty_cache().unwrap(), allocator.reserved_bytes()), (24 * MIB, 0));
        assert_eq!(tag.pools().len(), 1);
        // One that is in use already stays so.
        let own = allocator.private_pool(None).unwrap();
        tag.add_pool(own.id()).unwrap();
        assert_eq!(allocator.pool_use_count(own.id()), 1);
        // One that nobody came for is taken back.
        assert_eq!(tag.pools().len(), 2);
        let id = once_of(&allocator, &tag);
        assert!(!tag.pools().contains(&id) && tag.pools().contains(&own.id()));
    });
}

/// Else its name would be made anew by the tag's next scope, for memory that is no tag's and never sleeps.
#[test]
fn a_tag_s_own_pool_is_neither_released_nor_routed_by_its_name() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
        let own = tag.pools()[0];
        let scope = tag.enter().unwrap();
        let calls = [
            allocator.end_allocate_to_pool(own),
            allocator.release_pool(own),
            allocator.release_pool(own),
            allocator.begin_allocate_to_pool(own, Filter::this_thread()),
            allocator.create_or_incref_pool(own, None),
            allocator.tag("other").unwrap().add_pool(own),
        ];
        drop(scope);
        allocator.empty_cache().unwrap();
        let scope = tag.enter().unwrap();
        let block = allocator.allocate(3 * MIB, &stream).unwrap();
        drop(scope);
        assert!(tag.has(block.address()), "{calls:?}");
        for (call, result) in calls.into_iter().enumerate() {
            assert!(
                matches!(result, Err(Error::Pool(PoolError::OfTag { id })) if id == own),
                "{call}: {result:?}"
            );
        }
        // One that was given to the tag is its user's to release.
        let id = MempoolId::for_user();
        tag.add_pool(id).unwrap();
        allocator.release_pool(id).unwrap();
        let asleep = Asleep::new(&allocator, vec![block], Backup::Pinned).unwrap();
        assert_eq!(tag.state().awake_bytes, 0);
        drop(asleep.wake(Restore::Backup).unwrap());
    });
}

#[test]
fn what_was_prepared_for_a_sleep_that_fails_serves_the_next_one() {
    on_simulator(|sim, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let stream = Stream::new(context).unwrap();
        let tags = ["weights", "kv", "graphs"].map(|name| allocator.tag(name).unwrap());
        let blocks = tags.each_ref().map(|tag| allocate_in(tag, &allocator, 4 * MIB, &stream));
        // The last one has nothing prepared.
        tags[..2].iter().for_each(|tag| assert_eq!(tag.prepare().unwrap(), 4 * MIB));
        let backups = || tags.each_ref().map(|tag| tag.state().backup_bytes);
        let before = backups();
        assert_eq!(before, [4 * MIB, 4 * MIB, 0]);
        for (function, nth) in [("cuMemcpyAsync", 1), ("cuMemcpyAsync", 3), ("cuMemHostRegister", 1)] {
            sim.fail_call(function, nth, CUresult::CUDA_ERROR_UNKNOWN);
            // SAFETY: the test queues nothing that uses what sleeps.
            let refused = unsafe { Tag::sleep(&tags.each_ref(), Backup::Pinned) };
            sim.clear_faults();
            assert!(refused.is_err(), "{function}: {refused:?}");
            assert_eq!(backups(), before, "{function}");
        }
        sim.fail_call("cuMemHostRegister", 1, CUresult::CUDA_ERROR_UNKNOWN);
        assert_eq!(sleep(&tags[0], Backup::Pinned).saved, 4 * MIB);
        sim.clear_faults();
        assert_eq!(tags[1].release_backup().unwrap(), 4 * MIB);
        assert_eq!(backups(), [4 * MIB, 0, 0]);
        Tag::wake(&[&tags[0]], Restore::Backup).unwrap();
        blocks.into_iter().for_each(|block| free(&allocator, block));
    });
}

#[test]
fn a_pool_that_is_given_to_its_tag_again_is_saved_once() {
    on_simulator(|_, context| {
        let (allocator, tag, id, stream) = weights_and_old_name(context);
        tag.add_pool(id).unwrap();
        let block = routed(&allocator, id, 12 * MIB, &stream).unwrap();
        assert_eq!(tag.prepare().unwrap(), 12 * MIB);
        let slept = sleep(&tag, Backup::Pinned);
        assert_eq!(slept.saved, 12 * MIB);
        Tag::wake(&[&tag], Restore::Backup).unwrap();
        free(&allocator, block);
        allocator.release_pool(id).unwrap();
    });
}

#[test]
fn a_pool_without_a_tag_does_not_sleep_with_one_that_had_its_name() {
    on_simulator(|_, context| {
        let (allocator, tag, id, stream) = weights_and_old_name(context);
        allocator.create_or_incref_pool(id, None).unwrap();
        let block = {
            let _scope = tag.enter().unwrap();
            allocator.allocate(MIB, &stream).unwrap()
        };
        let other = routed(&allocator, id, MIB, &stream).unwrap();
        let asleep = Asleep::new(&allocator, vec![block], Backup::Pinned).unwrap();
        let more = routed(&allocator, id, MIB, &stream).unwrap();
        [other, more].into_iter().for_each(|block| free(&allocator, block));
        drop(asleep);
        (0..3).for_each(|_| allocator.release_pool(id).unwrap());
    });
}

#[test]
fn what_is_dropped_asleep_leaves_figures_as_they_were() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
        let block = {
            let _scope = tag.enter().unwrap();
            allocator.allocate(70 * MIB, &stream).unwrap()
        };
        let asleep = Asleep::new(&allocator, vec![block], Backup::Pinned).unwrap();
        drop(asleep);
        allocator.empty_cache().unwrap();
        assert_eq!(tag.state().asleep_bytes, 70 * MIB);
        Tag::wake(&[&tag], Restore::Backup).unwrap();
        allocator.empty_cache().unwrap();
        let statistics = allocator.statistics();
        assert_eq!((allocator.reserved_bytes(), statistics.asleep_bytes), (0, 0));
        assert_eq!(statistics.reserved_bytes.all.current, 0);
    });
}

/// A thread that puts a tag to sleep when the process is forked has what it unmaps, and does not run in the child.
#[test]
fn a_forked_child_waits_for_no_lock_of_who_puts_tags_to_sleep() {
    on_simulator(|sim, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let [tag, other] = ["weights", "other"].map(|name| allocator.tag(name).unwrap());
        let stream = Stream::new(context).unwrap();
        let block = allocate_in(&tag, &allocator, MIB, &stream);
        let kept = allocate_in(&other, &allocator, MIB, &stream);
        let (leaving, left) = mpsc::channel();
        allocator.on_backing_change(move |_| leaving.send(()).map_err(|gone| gone.to_string()));
        sim.delay("cuMemUnmap", Duration::from_secs(1));
        thread::scope(|scope| {
            scope.spawn(|| sleep(&tag, Backup::Discard));
            left.recv_timeout(LIMIT).unwrap();
            // Until it is in the call.
            thread::sleep(Duration::from_millis(100));
            child::forked(|| {
                let forked = |error: Error| matches!(error, Error::Core(CoreError::Forked));
                let refused = [
                    tag.enter().map(drop),
                    tag.add_pool(MempoolId::for_user()),
                    other.keep(kept, 1, "a registration").map(drop),
                    other.prepare().map(drop),
                    other.release_backup().map(drop),
                    tag.read_backup(block, &mut [0]).map(drop),
                    Tag::wake(&[&tag], Restore::Nothing).map(drop),
                    Asleep::new(&allocator, Vec::new(), Backup::Discard)
                        .map(drop)
                        .map_err(|refused| refused.0),
                ];
                for (call, result) in refused.into_iter().enumerate() {
                    if !result.is_err_and(forked) {
                        return Err(format!("call {call} in a forked child"));
                    }
                }
                let told = (tag.state(), tag.has(block), tag.is_asleep_at(block));
                match (tag.pools().len(), allocator.tags().len(), told) {
                    (0, 0, told) if told == (TagState::default(), false, false) => Ok(()),
                    told => Err(format!("{told:?} in a forked child")),
                }
            });
        });
        sim.clear_faults();
        [block, kept].into_iter().for_each(|block| free(&allocator, block));
    });
}

/// Two tags wake together: what a registrant of the first change does keeps the second from nothing.
#[test]
fn a_registrant_that_ends_itself_may_panic_as_it_goes() {
    within_limit(|| {
        on_simulator(|_, context| {
            let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
            let stream = Stream::new(context).unwrap();
            let tags = ["one", "two"].map(|name| allocator.tag(name).unwrap());
            let blocks = tags.each_ref().map(|tag| allocate_in(tag, &allocator, 4 * MIB, &stream));
            for is_leaving in [true, false] {
                let (went, own) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None)));
                let (bomb, id, of) = (Bomb(Arc::clone(&went)), Arc::clone(&own), allocator.clone());
                *own.lock().unwrap() = Some(allocator.on_backing_change(move |_| {
                    let _ = &bomb;
                    assert!(id.lock().unwrap().take().is_none_or(|id| of.detach(id)));
                    Ok(())
                }));
                let both = [&tags[0], &tags[1]];
                let told = if is_leaving {
                    // SAFETY: nothing uses the blocks.
                    unsafe { Tag::sleep(&both, Backup::Discard) }.unwrap().notices
                } else {
                    Tag::wake(&both, Restore::Nothing).unwrap()
                };
                assert_eq!((told.len(), went.load(Ordering::SeqCst)), (1, 1));
                assert!(tags.iter().all(|tag| tag.state().is_asleep == is_leaving));
            }
            blocks.into_iter().for_each(|block| free(&allocator, block));
        });
    });
}

#[test]
fn a_pool_that_gets_its_first_memory_while_it_is_given_to_a_tag_has_it_of_the_tag() {
    within_limit(|| {
        on_simulator(|sim, context| {
            let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
            let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
            let pool = allocator.private_pool(None).unwrap();
            sim.delay("cuMemAlloc", Duration::from_millis(300));
            let block = thread::scope(|scope| {
                let asked = scope.spawn(|| {
                    let _route = pool.route_this_thread().unwrap();
                    allocator.allocate(MIB, &stream).unwrap()
                });
                thread::sleep(Duration::from_millis(100));
                tag.add_pool(pool.id()).unwrap();
                asked.join().unwrap()
            });
            assert!(tag.has(block.address()) && tag.pools().contains(&pool.id()));
            assert_eq!(sim.log().count("cuMemFree"), 1, "what had come for the pool without a tag");
        });
    });
}

/// Its last work may come behind the wait for its stream.
#[test]
fn memory_that_is_freed_while_its_tag_is_put_to_sleep_stays() {
    within_limit(|| {
        on(Sim::builder().devices(2), |_, context| {
            let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
            let (tag, stream) = (allocator.tag("activations").unwrap(), Stream::new(context).unwrap());
            let peer = context.driver().device(1).unwrap();
            allocator.enable_peer_access(peer).unwrap();
            let scope = tag.enter().unwrap();
            let [mine, theirs] = [(); 2].map(|()| allocator.allocate(3 * MIB, &stream).unwrap());
            drop(scope);
            // The own context is waited for first.
            let remote = Stream::new(&peer.primary_context().unwrap()).unwrap();
            let (on_peer, gate, address) = (Gate::before(&remote), Gate::new(context), theirs.address());
            thread::scope(|scope| {
                let sleeping = scope.spawn(|| Asleep::new(&allocator, vec![mine], Backup::Discard));
                thread::sleep(Duration::from_millis(50));
                gate.hold(&stream);
                theirs.whole().fill_bytes(&stream, 1).unwrap();
                drop(theirs);
                on_peer.open();
                let Err((refused, _mine)) = sleeping.join().unwrap() else { panic!("the stream has work") };
                assert!(
                    matches!(refused, Error::Sleep(SleepError::NotOwned { address: of }) if of == address),
                    "{refused}"
                );
                assert!(!tag.state().is_asleep && tag.state().asleep_bytes == 0);
                gate.open();
                stream.synchronize().unwrap();
            });
        });
    });
}

/// Also while it is put to sleep, as who is told of its memory sees.
#[test]
fn a_tag_whose_memory_is_refused_says_that_it_sleeps() {
    within_limit(|| {
        on_simulator(|_, context| {
            let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
            let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
            let block = allocate_in(&tag, &allocator, MIB, &stream);
            let (asking, told) = (tag.clone(), Arc::new(Mutex::new(Vec::new())));
            let tell = Arc::clone(&told);
            let registrant = allocator.on_backing_change(move |event| {
                tell.lock().unwrap().push((event.is_leaving, asking.state().is_asleep));
                Ok(())
            });
            sleep(&tag, Backup::Discard);
            Tag::wake(&[&tag], Restore::Nothing).unwrap();
            assert_eq!(*told.lock().unwrap(), [(true, true), (false, false)]);
            assert!(!tag.state().is_asleep);
            allocator.detach(registrant);
            free(&allocator, block);
        });
    });
}

/// A guest is asked by its visitors alone; that it captures is known from the last of them.
#[test]
fn a_guest_that_captures_is_not_disturbed_by_a_sleep() {
    on_simulator(|sim, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, id, table) = (allocator.tag("weights").unwrap(), MempoolId::for_graph(), sim.table());
        let mut raw = ptr::null_mut();
        // SAFETY: one handle to write; the context is current.
        let made = context.with_current(|| unsafe { table.cuStreamCreate().unwrap()(&mut raw, 1) });
        assert_eq!(made.unwrap(), CUresult::CUDA_SUCCESS);
        // SAFETY: it is there during the call.
        let guest = unsafe { Stream::guest(context, raw.cast()) }.unwrap();
        // SAFETY: the stream is destroyed at the end.
        let visiting = |body: &dyn Fn() -> u64| unsafe { guest.id().visit(body) };
        let of_tag = visiting(&|| allocate_in(&tag, &allocator, MIB, &guest));
        let capture = Capture::begin(&guest, RELAXED);
        let captured = visiting(&|| routed(&allocator, id, MIB, &guest).unwrap());
        // SAFETY: nothing uses the tag.
        let refused = unsafe { Tag::sleep(&[&tag], Backup::Discard) }.unwrap_err();
        assert!(matches!(refused, Error::Core(CoreError::Capturing { .. })), "{refused}");
        assert!(!tag.state().is_asleep);
        drop(capture.end().unwrap());
        visiting(&|| u64::from(guest.is_capturing().unwrap()));
        sleep(&tag, Backup::Discard);
        Tag::wake(&[&tag], Restore::Nothing).unwrap();
        [of_tag, captured].into_iter().for_each(|block| free(&allocator, block));
        drop((tag, allocator, guest));
        // SAFETY: made above, destroyed once.
        assert_eq!(unsafe { table.cuStreamDestroy().unwrap()(raw) }, CUresult::CUDA_SUCCESS);
    });
}

/// Whatever scopes of the tag there are elsewhere.
#[test]
fn of_the_scopes_and_routes_of_a_thread_the_one_that_was_begun_last_decides() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
        let ask = || allocator.allocate(MIB, &stream).unwrap();
        for is_elsewhere in [false, true] {
            let pool = allocator.private_pool(None).unwrap();
            let is_of_tag = || tag.has(ask().address());
            let nested = || {
                let route = pool.route_this_thread().unwrap();
                assert!(!is_of_tag());
                let inner = tag.enter().unwrap();
                assert!(is_of_tag(), "{is_elsewhere}");
                drop(inner);
                assert!(!is_of_tag());
                drop(route);
            };
            let outer = tag.enter().unwrap();
            if is_elsewhere {
                thread::scope(|scope| scope.spawn(nested).join()).unwrap();
            } else {
                nested();
            }
            assert!(is_of_tag());
            let inner = tag.enter().unwrap();
            let route = pool.route_this_thread().unwrap();
            drop(outer);
            assert!(!is_of_tag());
            drop(route);
            assert!(is_of_tag(), "a scope ends with its own handle");
            drop(inner);
            assert!(!is_of_tag());
        }
    });
}

/// Copies of a wake that could not be waited for end before memory that they fill is taken away, or filled in another way.
#[test]
fn a_second_wake_comes_behind_the_copies_of_the_first_one() {
    // What the copies fill stays for ever, and the simulator would call it a leak.
    let sim = Sim::builder().record(true).build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let allocator = CachingAllocator::new(&context, &CachingOptions::default()).unwrap();
    let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(&context).unwrap());
    let address = allocate_in(&tag, &allocator, 40 * MIB, &stream);
    fill(&stream, address, 40 * MIB, 7);
    sleep(&tag, Backup::Pinned);
    context.driver().set_patience(Duration::ZERO);
    let fail = |function: &str| sim.fail_call(function, 1, CUresult::CUDA_ERROR_UNKNOWN);
    let waits = ["cuStreamSynchronize", "cuStreamQuery", "cuEventSynchronize", "cuStreamSynchronize"];
    waits.into_iter().for_each(fail);
    Tag::wake(&[&tag], Restore::Backup).unwrap_err();
    assert_eq!(sim.struck().len(), waits.len());
    sim.clear_faults();
    fail("cuMemSetAccess");
    Tag::wake(&[&tag], Restore::Nothing).unwrap_err();
    Tag::wake(&[&tag], Restore::Backup).unwrap();
    assert_eq!(byte(&stream, address), 7);
    free(&allocator, address);
    drop((tag, allocator));
    assert!(sim.misuse().is_empty(), "{:?}", sim.misuse());
}

/// Nothing of it was handed out: it is ordinary memory, as it was.
#[test]
fn a_request_that_fails_in_a_capture_leaves_its_tag_no_graphs() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, stream) = (allocator.tag("weights").unwrap(), Stream::new(context).unwrap());
        free(&allocator, allocate_in(&tag, &allocator, 40 * MIB, &stream));
        stream.synchronize().unwrap();
        allocator.set_limit(41 * MIB).unwrap();
        let capture = Capture::begin(&stream, RELAXED);
        let scope = tag.enter().unwrap();
        let refused = allocator.allocate_by_address(60 * MIB, &stream);
        assert!(matches!(refused, Err(Error::DeviceOutOfMemory(_))), "{refused:?}");
        drop((scope, capture.end().unwrap()));
        assert_eq!(allocator.empty_cache().unwrap(), 40 * MIB);
    });
}

/// They begin after it was looked whether any stream captures.
#[test]
fn captures_that_begin_while_a_tag_is_put_to_sleep_go_on() {
    on_simulator(|_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let (tag, slept) = (allocator.tag("weights").unwrap(), AtomicUsize::new(0));
        let [own, captured] = [(); 2].map(|()| Stream::new(context).unwrap());
        let block = allocate_in(&tag, &allocator, 4 * MIB, &own);
        drop(allocator.allocate(MIB, &captured).unwrap());
        let (running, modes) = (Arc::new(()), [RELAXED, THREAD_LOCAL, GLOBAL]);
        let seen = Arc::downgrade(&running);
        thread::scope(|scope| {
            scope.spawn(|| {
                while seen.strong_count() > 0 {
                    // SAFETY: nothing uses the tag's memory.
                    if unsafe { Tag::sleep(&[&tag], Backup::Discard) }.is_ok() {
                        Tag::wake(&[&tag], Restore::Backup).unwrap();
                        slept.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
            for mode in
                modes.into_iter().cycle().take(100_000).take_while(|_| slept.load(Ordering::SeqCst) < 100)
            {
                let (capture, id) = (Capture::begin(&captured, mode), MempoolId::for_graph());
                free(&allocator, routed(&allocator, id, 4 * MIB, &captured).unwrap());
                drop(capture.end().unwrap());
                allocator.release_pool(id).unwrap();
                allocator.empty_cache().unwrap();
            }
            drop(running);
        });
        assert!(slept.load(Ordering::SeqCst) >= 100);
        free(&allocator, block);
    });
}

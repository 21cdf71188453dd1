#![cfg_attr(loom, allow(unused_imports, reason = "the models use some"))]

use super::*;

fn drained(frees: &RemoteFrees) -> Vec<u32> {
    let mut out = Vec::new();
    frees.drain(|record| out.push(record));
    out.sort_unstable();
    out
}

#[cfg(not(loom))]
mod alone {
    use super::*;
    use crate::caching::shared::number_of;
    use crate::caching::{CachingAllocator, CachingOptions};
    use cuda_mem_core::{Driver, Stream};
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn frees_of_all_threads_come_out_once() {
        const EACH: u32 = 20_000;
        let frees = RemoteFrees::new();
        let running = AtomicUsize::new(3);
        let mut out = Vec::new();
        std::thread::scope(|scope| {
            for thread in 0..3 {
                let (frees, running) = (&frees, &running);
                scope.spawn(move || {
                    for record in 0..EACH {
                        while frees.push(thread * EACH + record).is_err() {
                            std::thread::yield_now();
                        }
                    }
                    running.fetch_sub(1, Ordering::Release);
                });
            }
            while running.load(Ordering::Acquire) > 0 {
                frees.drain(|record| out.push(record));
            }
        });
        frees.drain(|record| out.push(record));
        out.sort_unstable();
        assert!(out.into_iter().eq(0..3 * EACH));
    }

    #[test]
    fn a_full_ring_refuses_until_it_is_drained() {
        let frees = RemoteFrees::new();
        assert!(frees.is_empty());
        for round in 0..3 {
            for record in 0..DEPTH as u32 {
                assert_eq!(frees.push(round + record), Ok(()));
                assert!(!frees.is_empty());
            }
            assert_eq!(frees.push(0), Err(Full));
            assert!(drained(&frees).into_iter().eq(round..round + DEPTH as u32));
            assert!(frees.is_empty());
        }
    }

    #[test]
    fn counters_wrap() {
        let frees = RemoteFrees::new();
        let mut pusher = frees.pusher();
        (pusher.pushed, pusher.drained) = (u32::MAX - 1, u32::MAX - 1);
        pusher.ring.pushed.0.store(u32::MAX - 1, Ordering::Relaxed);
        pusher.ring.drained.0.store(u32::MAX - 1, Ordering::Relaxed);
        for record in 0..DEPTH as u32 {
            assert_eq!(pusher.push(record), Ok(()));
        }
        assert_eq!(pusher.push(0), Err(Full));
        assert!(drained(&frees).into_iter().eq(0..DEPTH as u32));
        assert_eq!(pusher.push(7), Ok(()));
        assert_eq!(drained(&frees), [7]);
    }

    /// A push during a drain may leave a free that nothing points to.
    #[test]
    fn a_free_that_the_last_drain_missed_goes_back() {
        let sim = cuda_mem_sim::Sim::builder().build();
        let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
        let stream = Stream::new(&context).unwrap();
        let allocator = CachingAllocator::new(&context, &CachingOptions::default()).unwrap();
        let address = allocator.allocate_by_address(4 << 20, &stream).unwrap();
        let found = allocator.shared().map.find(address).unwrap();
        let remote = &allocator.shared().slots.get(found.owner).unwrap().remote;
        remote.push(number_of(found).0).unwrap();
        remote.pending.store(false, Ordering::Relaxed);
        stream.synchronize().unwrap();
        assert!(allocator.empty_cache().unwrap() > 0);
        assert_eq!(allocator.reserved_bytes(), 0);
    }

    #[test]
    fn threads_and_heaps_that_end_leave_nothing() {
        let frees = RemoteFrees::new();
        std::thread::scope(|scope| scope.spawn(|| frees.push(5)).join().unwrap()).unwrap();
        let with_ring = frees.metadata_bytes();
        assert_eq!(drained(&frees), [5]);
        assert!(frees.metadata_bytes() < with_ring);
        assert!(drained(&frees).is_empty());

        for record in 0..10 {
            RemoteFrees::new().push(record).unwrap();
        }
        frees.push(6).unwrap();
        // Only the ring of the heap that is still there.
        let mut count = 0;
        LOCAL.with(|local| {
            local.borrow_mut().entries.retain(|_| {
                count += 1;
                true
            });
        });
        assert_eq!(count, 1);
    }
}

#[cfg(loom)]
mod models {
    use super::*;
    use loom::thread;

    fn push(frees: &RemoteFrees, pusher: &mut Pusher, record: u32) -> Option<u32> {
        let refused = pusher.push(record).is_err();
        if !refused {
            frees.note();
        }
        refused.then_some(record)
    }

    /// Two threads push, more than there is room for, and end, while a third drains: each free comes out once or is
    /// refused.
    #[test]
    fn no_free_is_lost_or_comes_out_twice() {
        loom::model(|| {
            let frees = Arc::new(RemoteFrees::new());
            let pushing = [[1, 2, 3], [4, 0, 0]].map(|records| {
                let frees = Arc::clone(&frees);
                thread::spawn(move || {
                    let mut pusher = frees.pusher();
                    let records = records.into_iter().filter(|record| *record > 0);
                    records.filter_map(|record| push(&frees, &mut pusher, record)).collect::<Vec<_>>()
                })
            });
            let mut out = drained(&frees);
            for thread in pushing {
                out.extend(thread.join().unwrap());
            }
            out.extend(drained(&frees));
            out.sort_unstable();
            assert_eq!(out, [1, 2, 3, 4]);
            assert_eq!(lock(&frees.rings).len(), 0, "an ended thread left its ring");
        });
    }

    /// What was pushed before, as the drainer was told by others, is there.
    #[test]
    fn a_drain_misses_nothing() {
        loom::model(|| {
            let frees = Arc::new(RemoteFrees::new());
            let told = Arc::new(AtomicBool::new(false));
            let pushing = thread::spawn({
                let (frees, told) = (Arc::clone(&frees), Arc::clone(&told));
                move || {
                    let mut pusher = frees.pusher();
                    assert_eq!(push(&frees, &mut pusher, 1), None);
                    told.store(true, Ordering::Release);
                    assert_eq!(push(&frees, &mut pusher, 2), None);
                }
            });
            let before = drained(&frees);
            let told = told.load(Ordering::Acquire);
            let after = drained(&frees);
            assert!(!told || before.iter().chain(&after).any(|record| *record == 1));
            pushing.join().unwrap();
            let last = drained(&frees);
            let all: Vec<u32> = before.into_iter().chain(after).chain(last).collect();
            assert_eq!(all, [1, 2]);
        });
    }

    /// What the freeing thread did before is done for who gets the free.
    #[test]
    fn a_free_carries_what_came_before() {
        loom::model(|| {
            let frees = Arc::new(RemoteFrees::new());
            let block = Arc::new(loom::cell::UnsafeCell::new(0));
            let pushing = thread::spawn({
                let (frees, block, mut pusher) = (Arc::clone(&frees), Arc::clone(&block), frees.pusher());
                move || {
                    block.with_mut(|_| ());
                    assert_eq!(push(&frees, &mut pusher, 1), None);
                }
            });
            // The model checker refuses if this is not ordered behind the other.
            frees.drain(|_| block.with_mut(|_| ()));
            pushing.join().unwrap();
        });
    }
}

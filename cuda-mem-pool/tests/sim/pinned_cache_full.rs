//! What `PinnedCachingAllocator` does at its limit.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use cuda_mem_core::{Context, FenceLine, Stream};
use cuda_mem_pool::pinned_cache::PinnedCacheOptions;
use cuda_mem_pool::{Error, PinnedCachingAllocator};

use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::rig::on_simulator;

const MIB: usize = 1 << 20;

/// May hold 8 MiB.
fn allocator(context: &Context) -> PinnedCachingAllocator {
    let options = PinnedCacheOptions::default().with_returns_surplus(false).with_max_bytes(8 * MIB);
    PinnedCachingAllocator::with_options(context, options)
}

/// Nothing is free that the driver would wait for before it unpins. What a stream did before it began to capture ends beside that.
#[test]
fn a_request_at_the_limit_waits_for_streams_that_use_freed_blocks() {
    for captures in [false, true] {
        on_simulator(|_, context| {
            let (allocator, stream) = (allocator(context), Stream::new(context).unwrap());
            let used = allocator.allocate(8 * MIB).unwrap();
            let gate = Gate::before(&stream);
            used.record_stream(&stream).unwrap();
            drop(used);
            let capture = captures.then(|| Capture::begin(&stream, RELAXED));
            let block = thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(300));
                    gate.open();
                });
                allocator.allocate(8 * MIB)
            });
            // It is the same memory, which was not pinned anew.
            assert_eq!((block.unwrap().len(), allocator.statistics().num_host_alloc), (8 * MIB, 1));
            assert!(capture.is_none_or(|capture| capture.end().unwrap().len() == 0));
        });
    }
}

/// A small block has a segment of 2 MiB as a rule.
#[test]
fn what_is_cached_stays_while_a_request_fits_beside_it() {
    on_simulator(|_, context| {
        let allocator = allocator(context);
        let used = allocator.allocate(2 * MIB).unwrap();
        drop([(); 5].map(|()| allocator.allocate(MIB).unwrap()));
        let small = allocator.allocate(1000).unwrap();
        let figures = allocator.statistics();
        assert_eq!((figures.num_host_alloc, figures.num_host_free), (7, 0), "{figures}");
        assert_eq!(figures.allocated_bytes.current, 8 * MIB as u64, "all that was left");
        drop((used, small));
    });
}

/// The thread that asks may be the one to reach it.
#[test]
fn a_request_at_the_limit_does_not_wait_for_a_fence() {
    on_simulator(|_, context| {
        let (allocator, stream) = (allocator(context), Stream::new(context).unwrap());
        let used = allocator.allocate(8 * MIB).unwrap();
        let line = FenceLine::new(context).unwrap();
        line.fence(1).unwrap().make_wait(&stream).unwrap();
        used.record_stream(&stream).unwrap();
        drop(used);
        let (tell, told) = channel();
        let refused = thread::scope(|scope| {
            scope.spawn(|| tell.send(allocator.allocate(8 * MIB)));
            let refused = told.recv_timeout(Duration::from_secs(5));
            line.poison();
            refused.expect("it waits for the fence").unwrap_err()
        });
        assert!(refused.is_out_of_memory(), "{refused}");
        stream.synchronize().unwrap();
        drop(allocator.allocate(8 * MIB).unwrap());
    });
}

#[test]
fn a_request_at_the_limit_does_not_wait_for_what_a_stream_captures() {
    on_simulator(|_, context| {
        let (allocator, stream) = (allocator(context), Stream::new(context).unwrap());
        let used = allocator.allocate(8 * MIB).unwrap();
        used.record_stream(&stream).unwrap();
        let capture = Capture::begin(&stream, RELAXED);
        drop(used);
        let refused = allocator.allocate(8 * MIB).unwrap_err();
        assert!(refused.is_out_of_memory(), "{refused}");
        assert_eq!(capture.end().unwrap().len(), 0);
        drop(allocator.allocate(8 * MIB).unwrap());
    });
}

/// It could never be served: nothing is given back for it.
#[test]
fn a_request_above_the_limit_is_refused_at_once() {
    on_simulator(|_, context| {
        let allocator = allocator(context);
        drop(allocator.allocate(4 * MIB).unwrap());
        let held = 4 << 20;
        let refused = allocator.allocate(9 * MIB).unwrap_err();
        let Error::OutOfMemory { requested, used, limit, source: None } = refused else {
            panic!("{refused}")
        };
        assert_eq!((requested, used, limit), (9 * MIB, held, 8 << 20));
        let statistics = allocator.statistics();
        assert_eq!((statistics.allocated_bytes.current, statistics.num_host_free), (held, 0));
    });
}

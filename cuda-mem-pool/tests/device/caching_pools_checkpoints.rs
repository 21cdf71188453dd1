//! Layouts of private pools of `CachingAllocator`, kept and brought back.

use std::collections::HashSet;
use std::thread;
use std::time::Duration;

use cuda_mem_core::{Event, Stream};
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::segments::{Filter, PoolError, SegmentError};
use cuda_mem_pool::{Error, MempoolId};

use crate::common::World;
use crate::common::capture::{Capture, GLOBAL, RELAXED, THREAD_LOCAL};
use crate::common::gate::Gate;

const MIB: usize = 1 << 20;

fn allocator(world: &World) -> CachingAllocator {
    CachingAllocator::new(&world.context, &CachingOptions::default()).unwrap()
}

fn on(stream: &Stream) -> Filter {
    Filter::stream(stream.id().as_raw())
}

fn free(allocator: &CachingAllocator, address: u64) {
    // SAFETY: tests free what they allocated, once; no graph is launched.
    unsafe { allocator.free_by_address(address) }.unwrap();
}

/// Has `later` come behind all that `earlier` was given.
fn join(earlier: &Stream, later: &Stream) {
    let event = Event::new(earlier.context()).unwrap();
    earlier.record(&event).unwrap();
    later.wait(&event).unwrap();
}

/// What graph trees do after each recording.
#[test]
fn a_capture_in_which_another_stream_used_a_freed_block_can_be_followed_by_a_checkpoint() {
    let world = World::new();
    for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
        let (allocator, id) = (allocator(&world), MempoolId::for_graph());
        let (stream, side) = (world.new_stream(), world.new_stream());
        allocator.begin_allocate_to_pool(id, on(&stream)).unwrap();
        let capture = Capture::begin(&stream, mode);
        let [kept, block] = [(); 2].map(|()| allocator.allocate_by_address(MIB, &stream).unwrap());
        join(&stream, &side);
        allocator.record_stream(block, &side).unwrap();
        join(&side, &stream);
        free(&allocator, block);
        let refused = allocator.checkpoint_pool(id).map(drop).unwrap_err();
        let pending = PoolError::Segment(SegmentError::Pending { address: block });
        assert!(matches!(&refused, Error::Pool(error) if *error == pending), "{refused}: it captures yet");
        drop(capture.end().expect("the capture survives"));
        allocator.end_allocate_to_pool(id).unwrap();
        let checkpoint = allocator.checkpoint_pool(id).unwrap();
        assert_eq!(allocator.statistics().active.all.current, 1);
        free(&allocator, kept);
        // SAFETY: nothing uses the block that comes back.
        let restored = unsafe { allocator.restore_pool(id, &checkpoint) }.unwrap();
        let allocated: Vec<u64> = restored.allocated.iter().map(|block| block.address()).collect();
        assert_eq!(allocated, [kept]);
        free(&allocator, kept);
        allocator.release_pool(id).unwrap();
    }
}

#[test]
fn uses_outside_of_captures_are_waited_for() {
    let world = World::new();
    let (allocator, id) = (allocator(&world), MempoolId::for_graph());
    let (stream, side) = (world.new_stream(), world.new_stream());
    allocator.begin_allocate_to_pool(id, on(&stream)).unwrap();
    let take = || allocator.allocate_by_address(MIB, &stream).unwrap();
    let blocks = [take(), take()];
    allocator.end_allocate_to_pool(id).unwrap();
    let used = |block: u64| {
        let gate = Gate::before(&side);
        allocator.record_stream(block, &side).unwrap();
        free(&allocator, block);
        gate
    };
    let meanwhile = |gate: Gate, call: &dyn Fn()| {
        thread::scope(|scope| {
            scope.spawn(|| {
                // So that the wait has begun, if there is one.
                thread::sleep(Duration::from_millis(20));
                gate.open();
            });
            call();
        });
        assert!(side.is_idle().unwrap());
    };
    let gate = used(blocks[0]);
    meanwhile(gate, &|| drop(allocator.checkpoint_pool(id).unwrap()));
    let checkpoint = allocator.checkpoint_pool(id).unwrap();
    let gate = used(blocks[1]);
    meanwhile(gate, &|| {
        // SAFETY: nothing uses the block that comes back but what was recorded.
        let restored = unsafe { allocator.restore_pool(id, &checkpoint) }.unwrap();
        assert!(restored.freed.is_empty());
    });
    assert!(allocator.check_pool_live_allocations(id, &HashSet::from([blocks[1]])).unwrap());
    free(&allocator, blocks[1]);
    allocator.release_pool(id).unwrap();
}

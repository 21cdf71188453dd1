//! Captures that begin in another thread between two calls: once a stream was said to capture nothing.

use cuda_mem_core::Stream;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::pinned_cache::PinnedCacheOptions;
use cuda_mem_pool::segments::Filter;
use cuda_mem_pool::{MemoryResource, MempoolId, PinnedCachingAllocator};
use cuda_mem_sim::Sim;

use crate::interrupted::{LIMIT, begin_to_capture, beside_legacy, capture_around_record, interrupted, until};

const MIB: usize = 1 << 20;

/// What one stream has freed another gets behind an event, for which the first one is not asked.
#[test]
fn a_stream_whose_memory_another_gets_may_begin_to_capture_meanwhile() {
    interrupted(Sim::builder().memory(64 << 20), |_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let [captures, other] = [(); 2].map(|()| Stream::new(context).unwrap());
        assert!(!captures.as_raw().is_null());
        drop(allocator.allocate(60 * MIB, &captures).unwrap());
        let captured = begin_to_capture(&captures);
        // Whether there is memory for it, with a stream that captures, is another matter.
        let block = allocator.allocate(60 * MIB, &other);
        let capture = captured.recv_timeout(LIMIT).unwrap();
        assert!(!other.is_capturing().unwrap());
        assert_eq!(capture.end().unwrap().len(), 0);
        drop(block);
        drop(allocator.allocate(60 * MIB, &other).unwrap());
    });
}

/// What looks for the end of the legacy stream's work names it, if it does not see to that, and a blocking stream's capture ends by it.
#[test]
fn a_blocking_stream_may_begin_to_capture_beside_memory_of_the_legacy_one() {
    interrupted(Sim::builder().memory(64 << 20), |sim, context| {
        beside_legacy(sim, context, |legacy, captures| {
            let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
            let other = Stream::new(context).unwrap();
            let beside_capture = |act: &dyn Fn()| {
                let captured = begin_to_capture(captures);
                act();
                let capture = captured.recv_timeout(LIMIT).unwrap();
                assert_eq!(capture.end().unwrap().len(), 0);
            };
            // Another stream gets what it has freed.
            drop(allocator.allocate(60 * MIB, legacy).unwrap());
            beside_capture(&|| {
                // It may cost an attempt.
                let _ = allocator.allocate(60 * MIB, &other);
            });
            drop(allocator.allocate(60 * MIB, &other).unwrap());
            // A block is freed that it used.
            let address = allocator.allocate_by_address(4 * MIB, &other).unwrap();
            allocator.record_stream(address, legacy).unwrap();
            beside_capture(&|| {
                // SAFETY: nothing uses the block.
                unsafe { allocator.free_by_address(address) }.unwrap();
            });
            until("the block is back", || {
                let again = allocator.allocate_by_address(4 * MIB, &other).unwrap();
                // SAFETY: as above.
                unsafe { allocator.free_by_address(again) }.unwrap();
                again == address
            });
            // It is allocated for no more.
            drop(allocator.allocate(4 * MIB, legacy).unwrap());
            beside_capture(&|| {
                // No capture has an event behind it.
                // SAFETY: it is given nothing more.
                unsafe { allocator.forget_stream(legacy) }.unwrap();
            });
        });
    });
}

/// A pool's memory goes back behind a wait for its streams.
#[test]
fn a_stream_that_a_pool_waits_for_may_begin_to_capture_meanwhile() {
    interrupted(Sim::builder(), |_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let stream = Stream::new(context).unwrap();
        assert!(!stream.as_raw().is_null());
        let id = MempoolId::for_graph();
        allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
        drop(allocator.allocate(4 * MIB, &stream).unwrap());
        allocator.end_allocate_to_pool(id).unwrap();
        allocator.release_pool(id).unwrap();
        let empty =
            |waits: bool| if waits { allocator.empty_pool_cache(id) } else { allocator.empty_cache() };
        for waits in [true, false] {
            let captured = begin_to_capture(&stream);
            empty(waits).unwrap();
            let capture = captured.recv_timeout(LIMIT).unwrap();
            assert!(allocator.reserved_bytes() > 0, "its stream captures");
            assert_eq!(capture.end().unwrap().len(), 0);
        }
        until("its stream is done", || empty(false).unwrap() > 0);
        assert_eq!(allocator.reserved_bytes(), 0);
    });
}

/// The point behind what a stream has freed is that of a capture, and says nothing once that has ended.
#[test]
fn memory_is_moved_although_a_capture_had_the_point_behind_its_uses() {
    interrupted(Sim::builder().memory(64 << 20), |_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let [captures, other] = [(); 2].map(|()| Stream::new(context).unwrap());
        assert!(!captures.as_raw().is_null());
        drop(allocator.allocate(60 * MIB, &captures).unwrap());
        capture_around_record(&captures);
        // It may cost an attempt.
        let _ = allocator.allocate(60 * MIB, &other);
        drop(allocator.allocate(60 * MIB, &other).unwrap());
    });
}

/// As above, of a block that another stream used too.
#[test]
fn a_block_comes_back_although_a_capture_had_the_point_behind_its_uses() {
    interrupted(Sim::builder(), |_, context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let [stream, captures] = [(); 2].map(|()| Stream::new(context).unwrap());
        assert!(!captures.as_raw().is_null());
        let address = allocator.allocate_by_address(4 * MIB, &stream).unwrap();
        allocator.record_stream(address, &captures).unwrap();
        capture_around_record(&captures);
        // SAFETY: nothing uses the block.
        unsafe { allocator.free_by_address(address) }.unwrap();
        until("the block is back", || {
            let again = allocator.allocate_by_address(4 * MIB, &stream).unwrap();
            // SAFETY: as above.
            unsafe { allocator.free_by_address(again) }.unwrap();
            again == address
        });
    });
}

/// As above, of pinned memory: the block and all behind it in its stream's queue waited for ever.
#[test]
fn pinned_blocks_come_back_although_a_capture_had_the_point_behind_their_uses() {
    interrupted(Sim::builder(), |_, context| {
        let options = PinnedCacheOptions::default().with_returns_surplus(false).with_max_bytes(8 * MIB);
        let allocator = PinnedCachingAllocator::with_options(context, options);
        let captures = Stream::new(context).unwrap();
        assert!(!captures.as_raw().is_null());
        let blocks = [(); 2].map(|()| allocator.allocate(4 * MIB).unwrap());
        blocks.iter().for_each(|block| block.record_stream(&captures).unwrap());
        capture_around_record(&captures);
        drop(blocks);
        // There is no more memory than they have.
        until("both are back", || {
            let again = [(); 2].map(|()| allocator.allocate(4 * MIB));
            again.iter().all(Result::is_ok)
        });
    });
}

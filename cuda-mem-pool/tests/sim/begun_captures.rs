//! Captures that begin in another thread between two calls: once a stream was said to capture nothing.

use cuda_mem_core::Stream;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::segments::Filter;
use cuda_mem_pool::{MemoryResource, MempoolId};
use cuda_mem_sim::Sim;

use crate::interrupted::{LIMIT, begin_to_capture, interrupted};

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
        let captured = begin_to_capture(&stream);
        allocator.empty_pool_cache(id).unwrap();
        let capture = captured.recv_timeout(LIMIT).unwrap();
        assert!(allocator.reserved_bytes() > 0, "its stream captures");
        assert_eq!(capture.end().unwrap().len(), 0);
        allocator.empty_pool_cache(id).unwrap();
        assert_eq!(allocator.reserved_bytes(), 0);
    });
}

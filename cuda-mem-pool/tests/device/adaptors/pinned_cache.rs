//! Adaptors over the pinned cache: its statistics and theirs.

use cuda_mem_pool::{Error, LimitingAdaptor, MemoryResource, TrackingAdaptor};

use crate::common::World;
use crate::pinned_cache_resource::out;
use crate::support::cached;

#[test]
fn adaptors_agree_with_the_allocator() {
    let world = World::new();
    let base = cached(&world);
    let tracking = TrackingAdaptor::new(base.clone(), false);
    let statistics = TrackingAdaptor::new(tracking.clone(), false);
    let limited = LimitingAdaptor::new(statistics.clone(), 100_000);
    // What is asked for has the sizes of classes, so that all count the same.
    let sizes = [256, 5120, 65_536];
    let blocks = sizes.map(|bytes| limited.allocate(bytes, &world.stream).unwrap());
    let sum = sizes.iter().sum::<usize>() as u64;
    assert_eq!(out(&base), (3, sum));
    assert_eq!((tracking.bytes().current, limited.allocated_bytes()), (sum, sum));
    assert_eq!(statistics.bytes().current, sum);
    assert!(matches!(limited.allocate(65_536, None), Err(Error::OutOfMemory { limit: 100_000, .. })));
    drop(blocks);
    let stats = base.statistics();
    assert_eq!((stats.active_requests.allocated, stats.active_requests.freed), (3, 3));
    assert_eq!(statistics.allocations().allocated, 3);
    assert_eq!((limited.allocated_bytes(), out(&base)), (0, (0, 0)));
}

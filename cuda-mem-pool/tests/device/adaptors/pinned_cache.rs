//! Adaptors over the pinned cache: its statistics and theirs.

use cuda_mem_pool::{MemoryResource, TrackingAdaptor};

use crate::common::World;
use crate::pinned_cache_resource::out;
use crate::support::cached;

#[test]
fn adaptors_agree_with_the_allocator() {
    let world = World::new();
    let base = cached(&world);
    let tracking = TrackingAdaptor::new(base.clone(), false);
    let statistics = TrackingAdaptor::new(tracking.clone(), false);
    // What is asked for has the sizes of classes, so that all count the same.
    let sizes = [256, 5120, 65_536];
    let blocks = sizes.map(|bytes| statistics.allocate(bytes, &world.stream).unwrap());
    let sum = sizes.iter().sum::<usize>() as u64;
    assert_eq!(out(&base), (3, sum));
    assert_eq!((tracking.bytes().current, statistics.bytes().current), (sum, sum));
    drop(blocks);
    let stats = base.statistics();
    assert_eq!((stats.active_requests.allocated, stats.active_requests.freed), (3, 3));
    assert_eq!(statistics.allocations().allocated, 3);
    assert_eq!((statistics.bytes().current, out(&base)), (0, (0, 0)));
}

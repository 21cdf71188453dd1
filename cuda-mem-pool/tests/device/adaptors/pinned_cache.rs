//! Adaptors over the pinned cache: its statistics and theirs.

use std::sync::mpsc;

use cuda_mem_pool::{
    AlignedAdaptor, Error, FailureCallbackAdaptor, LimitingAdaptor, MemoryResource, TrackingAdaptor,
};

use crate::common::World;
use crate::pinned_cache_resource::out;
use crate::support::cached;

const MIB: usize = 1 << 20;

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
    assert_eq!((tracking.allocated_bytes(), limited.allocated_bytes()), (sum, sum));
    assert_eq!(statistics.statistics().bytes.current, i64::try_from(sum).unwrap());
    assert!(matches!(limited.allocate(65_536, None), Err(Error::OutOfMemory { limit: 100_000, .. })));
    drop(blocks);
    let stats = base.statistics();
    assert_eq!((stats.active_requests.allocated, stats.active_requests.freed), (3, 3));
    assert_eq!(statistics.statistics().allocations.total, 3);
    assert_eq!((limited.allocated_bytes(), out(&base)), (0, (0, 0)));
    let aligned = AlignedAdaptor::new(limited, 4096, 0).unwrap();
    assert_eq!(aligned.allocate(5000, None).unwrap().address() % 4096, 0);
}

#[test]
fn a_failure_callback_is_told_how_much_there_was() {
    let world = World::new();
    let base = cached(&world);
    let (sender, receiver) = mpsc::channel();
    let resource = FailureCallbackAdaptor::new(base, move |bytes, error| {
        let Error::OutOfMemory { requested, used, .. } = error else { panic!("{error}") };
        sender.send((bytes, *requested, *used)).unwrap();
        false
    });
    let kept = resource.allocate(3 * MIB, None).unwrap();
    assert!(matches!(resource.allocate(1 << 45, None), Err(Error::OutOfMemory { .. })));
    assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [(1 << 45, 1 << 45, 3 << 20)]);
    drop(kept);
}

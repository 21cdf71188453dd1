//! Memory that is dropped while its stream captures: every adaptor books the free once, when it happens.

use cuda_mem_core::Stream;
use cuda_mem_pool::{
    AlignedAdaptor, Error, FailureCallbackAdaptor, LimitingAdaptor, LoggingAdaptor, MemoryResource,
    TrackingAdaptor,
};

use super::logging::Shared;
use crate::common::World;
use crate::common::capture::{Capture, THREAD_LOCAL};
use crate::support::device;

#[test]
fn a_free_that_waits_for_a_capture_is_booked_once() {
    let world = World::new();
    let log = Shared::default();
    let pool = device(&world);
    let aligned = AlignedAdaptor::new(pool.clone(), 4096, 0).unwrap();
    let tracking = TrackingAdaptor::new(aligned, false);
    let limiting = LimitingAdaptor::new(tracking, 1 << 20);
    let statistics = TrackingAdaptor::new(limiting, false);
    let logging = LoggingAdaptor::new(statistics, log.clone());
    let resource = FailureCallbackAdaptor::new(logging, |_, _| false);
    let statistics = resource.upstream().upstream();
    let (limiting, tracking) = (statistics.upstream(), statistics.upstream().upstream());

    let stream = Stream::new(&world.context).unwrap();
    let block = resource.allocate(5000, &stream).unwrap();
    let capture = Capture::begin(&stream, THREAD_LOCAL);
    assert!(matches!(resource.allocate(10, &stream), Err(Error::Capturing)));
    let block = block.close().unwrap_err();
    assert!(matches!(block.error, cuda_mem_core::Error::Capturing { .. }));
    drop(block);
    // Each try to reclaim it is refused, and books nothing.
    assert_eq!(world.driver.reclaim(), 1);
    assert_eq!(world.driver.reclaim(), 1);
    assert_eq!(tracking.allocated_bytes(), 5000);
    assert_eq!(limiting.allocated_bytes(), 5000);
    assert_eq!(statistics.statistics().bytes.current, 5000);
    let actions = |log: &Shared| log.rows().into_iter().map(|row| row.action).collect::<Vec<_>>();
    assert_eq!(actions(&log), ["allocate", "allocate failure"]);
    capture.end().unwrap();

    // The next allocation reclaims it, through the same adaptors, in the middle of its own way through them.
    let other = resource.allocate(100, &world.stream).unwrap();
    assert_eq!(tracking.allocated_bytes(), 100);
    assert_eq!(limiting.allocated_bytes(), 100);
    assert_eq!(statistics.statistics().bytes.current, 100);
    assert_eq!(statistics.statistics().allocations.total, 2);
    assert_eq!(actions(&log), ["allocate", "allocate failure", "free", "allocate"]);
    drop(other);
    assert_eq!(actions(&log).len(), 5);
    assert_eq!(world.driver.reclaim(), 0);
    world.context.synchronize().unwrap();
    assert_eq!(pool.attributes().used_mem_current().unwrap(), 0);
}

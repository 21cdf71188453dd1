//! Memory that is dropped while its stream captures: every adaptor books the free once, when it happens.

use cuda_mem_core::Stream;
use cuda_mem_pool::{Error, MemoryResource, TrackingAdaptor};

use crate::common::World;
use crate::common::capture::{Capture, THREAD_LOCAL};
use crate::support::device;

#[test]
fn a_free_that_waits_for_a_capture_is_booked_once() {
    let world = World::new();
    let pool = device(&world);
    let tracking = TrackingAdaptor::new(pool.clone(), false);
    let resource = TrackingAdaptor::new(tracking.clone(), false);

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
    assert_eq!(tracking.bytes().current, 5000);
    assert_eq!(resource.bytes().current, 5000);
    capture.end().unwrap();

    // The next allocation reclaims it, through the same adaptors, in the middle of its own way through them.
    let other = resource.allocate(100, &world.stream).unwrap();
    assert_eq!(tracking.bytes().current, 100);
    assert_eq!(resource.bytes().current, 100);
    assert_eq!(resource.allocations().allocated, 2);
    drop(other);
    assert_eq!(world.driver.reclaim(), 0);
    world.context.synchronize().unwrap();
    assert_eq!(pool.attributes().used_mem_current().unwrap(), 0);
}

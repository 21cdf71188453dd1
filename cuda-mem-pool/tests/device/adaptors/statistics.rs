//! Counters of `TrackingAdaptor`.

use cuda_mem_pool::statistics::Stat;
use cuda_mem_pool::{MemoryResource, TrackingAdaptor};

use super::faulty::Faulty;
use crate::common::World;
use crate::support::device;

/// What was counted of bytes and of allocations.
fn of<R: MemoryResource>(tracking: &TrackingAdaptor<R>) -> [Stat; 2] {
    [tracking.bytes(), tracking.allocations()]
}

/// Now, at most, and in all.
fn statistics(bytes: [u64; 3], allocations: [u64; 3]) -> [Stat; 2] {
    [bytes, allocations].map(|[current, peak, allocated]| Stat {
        current,
        peak,
        allocated,
        freed: allocated - current,
    })
}

#[test]
fn it_begins_at_zero() {
    let world = World::new();
    let resource = TrackingAdaptor::new(device(&world), false);
    assert_eq!(of(&resource), [Stat::default(); 2]);
}

#[test]
fn all_freed_leaves_the_peak_and_the_total() {
    let world = World::new();
    let resource = TrackingAdaptor::new(device(&world), false);
    let blocks = (0..10).map(|_| resource.allocate(1000, &world.stream).unwrap()).collect::<Vec<_>>();
    drop(blocks);
    drop(resource.allocate(500, &world.stream).unwrap());
    assert_eq!(of(&resource), statistics([0, 10_000, 10_500], [0, 10, 11]));
}

#[test]
fn the_peak_is_of_what_was_out_at_a_time() {
    let world = World::new();
    let resource = TrackingAdaptor::new(device(&world), false);
    let mut out = Vec::new();
    for index in 0..10 {
        out.push(resource.allocate(100, &world.stream).unwrap());
        if index % 2 == 0 {
            out.remove(0);
        }
    }
    assert_eq!(of(&resource), statistics([500, 500, 1000], [5, 5, 10]));
    out.truncate(2);
    assert_eq!(of(&resource), statistics([200, 500, 1000], [2, 5, 10]));
    drop(out);
}

#[test]
fn one_over_another_counts_its_own() {
    let world = World::new();
    let inner = TrackingAdaptor::new(device(&world), false);
    let outer = TrackingAdaptor::new(inner.clone(), false);
    let below = inner.allocate(10, &world.stream).unwrap();
    let above = outer.allocate(20, &world.stream).unwrap();
    assert_eq!(of(&outer), statistics([20, 20, 20], [1, 1, 1]));
    assert_eq!(of(&inner), statistics([30, 30, 30], [2, 2, 2]));
    assert_eq!(of(outer.upstream()), of(&inner));
    drop(above);
    assert_eq!(of(&outer), statistics([0, 20, 20], [0, 1, 1]));
    assert_eq!(of(&inner), statistics([10, 30, 30], [1, 2, 2]));
    drop(below);
}

#[test]
fn what_failed_does_not_count() {
    let world = World::new();
    let upstream = Faulty::new(&world);
    let resource = TrackingAdaptor::new(upstream.clone(), false);
    upstream.refuse_allocations(1);
    assert!(resource.allocate(100, &world.stream).is_err());
    assert_eq!(of(&resource), [Stat::default(); 2]);
    assert!(resource.allocate(0, &world.stream).unwrap().is_empty());
    assert_eq!(of(&resource), [Stat::default(); 2]);
    let block = resource.allocate(100, &world.stream).unwrap();
    upstream.refuse_frees(1);
    let block = block.close().unwrap_err().owner;
    assert_eq!(of(&resource), statistics([100, 100, 100], [1, 1, 1]));
    block.close().unwrap();
    assert_eq!(of(&resource), statistics([0, 100, 100], [0, 1, 1]));
}

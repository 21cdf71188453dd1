//! Counters of `TrackingAdaptor`.

use cuda_mem_pool::{Counter, MemoryResource, Statistics, TrackingAdaptor};

use super::faulty::Faulty;
use crate::common::World;
use crate::support::device;

fn statistics(bytes: [i64; 3], allocations: [i64; 3]) -> Statistics {
    let counter = |[current, peak, total]: [i64; 3]| Counter { current, peak, total };
    Statistics { bytes: counter(bytes), allocations: counter(allocations) }
}

#[test]
fn it_begins_at_zero() {
    let world = World::new();
    let resource = TrackingAdaptor::new(device(&world), false);
    assert_eq!(resource.statistics(), Statistics::default());
    assert_eq!(resource.pop_counters(), None);
}

#[test]
fn all_freed_leaves_the_peak_and_the_total() {
    let world = World::new();
    let resource = TrackingAdaptor::new(device(&world), false);
    let blocks = (0..10).map(|_| resource.allocate(1000, &world.stream).unwrap()).collect::<Vec<_>>();
    drop(blocks);
    drop(resource.allocate(500, &world.stream).unwrap());
    assert_eq!(resource.statistics(), statistics([0, 10_000, 10_500], [0, 10, 11]));
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
    assert_eq!(resource.statistics(), statistics([500, 500, 1000], [5, 5, 10]));
    out.truncate(2);
    assert_eq!(resource.statistics(), statistics([200, 500, 1000], [2, 5, 10]));
    drop(out);
}

#[test]
fn one_over_another_counts_its_own() {
    let world = World::new();
    let inner = TrackingAdaptor::new(device(&world), false);
    let outer = TrackingAdaptor::new(inner.clone(), false);
    let below = inner.allocate(10, &world.stream).unwrap();
    let above = outer.allocate(20, &world.stream).unwrap();
    assert_eq!(outer.statistics(), statistics([20, 20, 20], [1, 1, 1]));
    assert_eq!(inner.statistics(), statistics([30, 30, 30], [2, 2, 2]));
    assert_eq!(outer.upstream().statistics(), inner.statistics());
    drop(above);
    assert_eq!(outer.statistics(), statistics([0, 20, 20], [0, 1, 1]));
    assert_eq!(inner.statistics(), statistics([10, 30, 30], [1, 2, 2]));
    drop(below);
}

#[test]
fn a_scope_starts_at_zero_and_is_added_to_the_one_around_it() {
    let world = World::new();
    let resource = TrackingAdaptor::new(device(&world), false);
    let before = resource.allocate(100, &world.stream).unwrap();
    assert_eq!(resource.push_counters(), statistics([100, 100, 100], [1, 1, 1]));
    assert_eq!(resource.statistics(), Statistics::default());
    let within = resource.allocate(30, &world.stream).unwrap();
    assert_eq!(resource.push_counters(), statistics([30, 30, 30], [1, 1, 1]));
    drop(resource.allocate(50, &world.stream).unwrap());
    drop(within);
    // What came from around it and is freed in it takes it below zero.
    assert_eq!(resource.pop_counters(), Some(statistics([-30, 50, 50], [-1, 1, 1])));
    assert_eq!(resource.statistics(), statistics([0, 80, 80], [0, 2, 2]));
    drop(resource.allocate(60, &world.stream).unwrap());
    drop(before);
    assert_eq!(resource.pop_counters(), Some(statistics([-100, 80, 140], [-1, 2, 3])));
    assert_eq!(resource.statistics(), statistics([0, 180, 240], [0, 3, 4]));
    assert_eq!(resource.pop_counters(), None);
    assert_eq!(resource.statistics(), statistics([0, 180, 240], [0, 3, 4]));
}

#[test]
fn an_inner_peak_below_the_outer_one_leaves_it() {
    let world = World::new();
    let resource = TrackingAdaptor::new(device(&world), false);
    drop(resource.allocate(1000, &world.stream).unwrap());
    resource.push_counters();
    drop(resource.allocate(10, &world.stream).unwrap());
    assert_eq!(resource.pop_counters(), Some(statistics([0, 10, 10], [0, 1, 1])));
    assert_eq!(resource.statistics(), statistics([0, 1000, 1010], [0, 1, 2]));
}

#[test]
fn what_failed_does_not_count() {
    let world = World::new();
    let upstream = Faulty::new(&world);
    let resource = TrackingAdaptor::new(upstream.clone(), false);
    upstream.refuse_allocations(1);
    assert!(resource.allocate(100, &world.stream).is_err());
    assert_eq!(resource.statistics(), Statistics::default());
    assert!(resource.allocate(0, &world.stream).unwrap().is_empty());
    assert_eq!(resource.statistics(), Statistics::default());
    let block = resource.allocate(100, &world.stream).unwrap();
    upstream.refuse_frees(1);
    let block = block.close().unwrap_err().owner;
    assert_eq!(resource.statistics(), statistics([100, 100, 100], [1, 1, 1]));
    block.close().unwrap();
    assert_eq!(resource.statistics(), statistics([0, 100, 100], [0, 1, 1]));
}

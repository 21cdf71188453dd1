//! Uses as points, and of parts as those of the whole.

use cuda_mem_core::Uses;
use cuda_mem_core::host::{RegisterFlags, Registered, SharedMapping};

use crate::common::World;
use crate::common::gate::Gate;

#[test]
fn a_stream_is_ordered_behind_a_point_and_not_behind_what_came_after() {
    let world = World::new();
    let (held, other, third) = (world.new_stream(), world.new_stream(), world.new_stream());
    let mut uses = Uses::new();
    let first = Gate::before(&held);
    uses.record_stream(&held).unwrap();
    let points = uses.points().unwrap();
    let second = Gate::before(&held);
    for point in &points {
        point.order(&other).unwrap();
        point.order(&held).unwrap();
    }
    assert!(!other.is_idle().unwrap());
    first.open();
    other.synchronize().unwrap();
    assert!(points.iter().all(|point| point.is_reached().unwrap()));
    assert!(!held.is_idle().unwrap());
    // The uses themselves stand for all that the stream was given.
    uses.order(&third).unwrap();
    assert!(!third.is_idle().unwrap());
    second.open();
    third.synchronize().unwrap();
}

#[test]
fn uses_of_parts_are_waited_for_however_many_there_were() {
    let world = World::new();
    let (held, other) = (world.new_stream(), world.new_stream());
    let memory = SharedMapping::create(4096).unwrap();
    let flags = RegisterFlags::PORTABLE | RegisterFlags::MAPPED;
    let registered = Registered::new(&world.context, memory, flags).unwrap();
    assert_eq!(registered.device_address().unwrap(), registered.on(&other).unwrap().address());
    let gate = Gate::before(&held);
    for stream in [&other, &held, &other].into_iter().cycle().take(300) {
        let uses = Uses::new();
        uses.record_stream(stream).unwrap();
        registered.absorb_uses(uses);
    }
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| registered.close().map(drop));
        assert!(!held.is_idle().unwrap() && !closing.is_finished());
        gate.open();
        closing.join().unwrap().unwrap();
        assert!(held.is_idle().unwrap());
    });
}

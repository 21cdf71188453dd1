//! Streams: their order, their names, and the two default ones.

use std::collections::HashSet;
use std::ptr;

use cuda_mem_core::sys::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
use cuda_mem_core::{DeviceBuffer, Error, Stream};

use crate::common::World;
use crate::common::gate::Gate;
use crate::common::outcome::record;

#[test]
fn work_of_a_stream_runs_in_order() {
    let world = World::new();
    let buffer = DeviceBuffer::<u8>::zeroed(&world.stream, 1000).unwrap();
    for value in 0..200 {
        buffer.whole().fill_bytes(&world.stream, value).unwrap();
        buffer
            .range(usize::from(value)..usize::from(value) + 1)
            .unwrap()
            .fill_bytes(&world.stream, !value)
            .unwrap();
    }
    let bytes = buffer.to_vec(&world.stream).unwrap();
    record!("bytes", &bytes);
    assert!(bytes.iter().enumerate().all(|(index, byte)| *byte == if index == 199 { !199 } else { 199 }));
}

#[test]
fn a_stream_is_idle_when_its_work_is_done() {
    let world = World::new();
    let stream = world.new_stream();
    assert!(stream.is_idle().unwrap());
    let gate = Gate::before(&stream);
    assert!(!stream.is_idle().unwrap());
    gate.open();
    stream.synchronize().unwrap();
    assert!(stream.is_idle().unwrap());
}

#[test]
fn ids_are_never_used_again() {
    let world = World::new();
    let mut ids = HashSet::new();
    for _ in 0..100 {
        let stream = world.new_stream();
        assert!(ids.insert(stream.id()), "{stream:?} has the id of a stream that was destroyed");
    }
}

#[test]
fn clones_are_the_same_stream_and_keep_it_alive() {
    let world = World::new();
    let stream = world.new_stream();
    let clone = stream.clone();
    assert_eq!(stream, clone);
    drop(stream);
    let buffer = DeviceBuffer::from_slice(&clone, &[5u8; 10]).unwrap();
    assert_eq!(buffer.to_vec(&clone).unwrap(), [5; 10]);
}

#[test]
fn a_destroyed_stream_finishes_its_work() {
    let world = World::new();
    let buffer = DeviceBuffer::<u8>::zeroed(&world.stream, 100).unwrap();
    let stream = world.new_stream();
    let gate = Gate::before(&stream);
    buffer.whole().fill_bytes(&stream, 8).unwrap();
    drop(stream);
    gate.open();
    assert_eq!(buffer.to_vec(&world.stream).unwrap(), [8; 100]);
}

#[test]
fn priorities_beyond_the_devices_range_are_clamped() {
    let world = World::new();
    for priority in [-100, -1, 0, 100] {
        let result = Stream::with_priority(&world.context, priority);
        record!(&format!("priority {priority}"), &result);
        result.unwrap().synchronize().unwrap();
    }
}

#[test]
fn a_context_has_one_legacy_stream() {
    let world = World::new();
    let (one, two) = (Stream::legacy(&world.context).unwrap(), Stream::legacy(&world.context).unwrap());
    assert_eq!(one, two);
    assert_ne!(one, world.new_stream());
    let buffer = DeviceBuffer::from_slice(&one, &[1u8, 2, 3]).unwrap();
    assert_eq!(buffer.to_vec(&two).unwrap(), [1, 2, 3]);
    assert!(!one.is_capturing().unwrap());
}

#[test]
fn new_streams_do_not_wait_for_the_legacy_one() {
    let world = World::new();
    let (legacy, stream) = (Stream::legacy(&world.context).unwrap(), world.new_stream());
    let gate = Gate::before(&legacy);
    let buffer = DeviceBuffer::from_slice(&stream, &[4u8; 100]).unwrap();
    assert_eq!(buffer.to_vec(&stream).unwrap(), [4; 100]);
    gate.open();
}

#[test]
fn each_thread_has_a_default_stream_of_its_own() {
    let world = World::new();
    let here = Stream::per_thread(&world.context).unwrap();
    assert_eq!(here, Stream::per_thread(&world.context).unwrap());
    let there =
        std::thread::scope(|scope| scope.spawn(|| Stream::per_thread(&world.context).unwrap().id()).join());
    assert_ne!(here.id(), there.unwrap());
}

#[test]
fn another_threads_default_stream_is_an_error_and_not_another_stream() {
    let world = World::new();
    let stream = Stream::per_thread(&world.context).unwrap();
    let buffer = DeviceBuffer::from_slice(&stream, &[1u8; 100]).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let results = [
                ("synchronize", stream.synchronize()),
                ("is_idle", stream.is_idle().map(drop)),
                ("uninit", DeviceBuffer::<u8>::uninit(&stream, 1).map(drop)),
                ("fill_bytes", buffer.whole().fill_bytes(&stream, 0)),
                ("on", buffer.on(&stream).map(drop)),
                ("to_vec", buffer.to_vec(&stream).map(drop)),
            ];
            for (call, result) in results {
                record!(call, &result);
                assert!(matches!(result, Err(Error::WrongThread)), "{call}: {result:?}");
            }
        });
    });
    assert_eq!(buffer.to_vec(&stream).unwrap(), [1; 100]);
}

#[test]
fn handles_of_default_streams_are_recognised() {
    let world = World::new();
    // SAFETY: the names of default streams are always valid.
    let borrow = |raw| unsafe { Stream::borrow_raw(&world.context, raw) }.unwrap();
    let legacy = Stream::legacy(&world.context).unwrap();
    assert_eq!(borrow(ptr::null_mut()), legacy);
    assert_eq!(borrow(CU_STREAM_LEGACY.cast()), legacy);
    assert_eq!(borrow(CU_STREAM_PER_THREAD.cast()), Stream::per_thread(&world.context).unwrap());
}

#[test]
fn a_borrowed_stream_is_not_destroyed() {
    let world = World::new();
    let stream = world.new_stream();
    // SAFETY: the stream outlives what borrows it.
    let borrowed = unsafe { Stream::borrow_raw(&world.context, stream.as_raw()) }.unwrap();
    assert_eq!(borrowed, stream);
    drop(borrowed);
    stream.synchronize().unwrap();
}

#[test]
fn wait_stream_orders_behind_what_the_other_was_given_so_far() {
    let world = World::new();
    let (one, two) = (world.new_stream(), world.new_stream());
    let gate = Gate::before(&one);
    two.wait_stream(&one).unwrap();
    assert!(!two.is_idle().unwrap());
    gate.open();
    two.synchronize().unwrap();
    let later = Gate::before(&one);
    two.synchronize().unwrap();
    later.open();
    one.wait_stream(&one).unwrap();
}

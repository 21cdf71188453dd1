//! Events: points in a stream's work.

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Error, Event};

use crate::common::World;
use crate::common::gate::Gate;
use crate::common::outcome::record;

#[test]
fn an_event_is_complete_until_it_is_recorded() {
    let world = World::new();
    let (stream, event) = (world.new_stream(), Event::new(&world.context).unwrap());
    assert!(event.is_complete().unwrap());
    event.synchronize().unwrap();
    let gate = Gate::before(&stream);
    stream.record(&event).unwrap();
    assert!(!event.is_complete().unwrap());
    gate.open();
    event.synchronize().unwrap();
    assert!(event.is_complete().unwrap());
}

#[test]
fn a_stream_waits_for_an_event_of_another() {
    let world = World::new();
    let (one, two) = (world.new_stream(), world.new_stream());
    let event = Event::new(&world.context).unwrap();
    let gate = Gate::before(&one);
    one.record(&event).unwrap();
    two.wait(&event).unwrap();
    assert!(!two.is_idle().unwrap());
    gate.open();
    two.synchronize().unwrap();
}

#[test]
fn who_waits_for_an_event_waits_for_the_point_it_stood_for() {
    let world = World::new();
    let (held, waiting, free) = (world.new_stream(), world.new_stream(), world.new_stream());
    let event = Event::new(&world.context).unwrap();
    let gate = Gate::before(&held);
    held.record(&event).unwrap();
    waiting.wait(&event).unwrap();
    free.record(&event).unwrap();
    event.synchronize().unwrap();
    assert!(!waiting.is_idle().unwrap(), "the second record moved the first wait");
    gate.open();
    waiting.synchronize().unwrap();
}

#[test]
fn an_event_may_be_dropped_while_it_is_waited_for() {
    let world = World::new();
    let (one, two) = (world.new_stream(), world.new_stream());
    let gate = Gate::before(&one);
    let event = Event::new(&world.context).unwrap();
    one.record(&event).unwrap();
    two.wait(&event).unwrap();
    drop(event);
    assert!(!two.is_idle().unwrap());
    gate.open();
    two.synchronize().unwrap();
}

#[test]
fn timed_events_measure_and_others_do_not() {
    let world = World::new();
    let timed = || Event::with_timing(&world.context).unwrap();
    let (start, end, never) = (timed(), timed(), timed());
    let stream = world.new_stream();
    stream.record(&start).unwrap();
    let gate = Gate::before(&stream);
    stream.record(&end).unwrap();
    let early = end.elapsed_since(&start);
    record!("not reached", &early);
    assert_eq!(early.unwrap_err().code(), Some(CUresult::CUDA_ERROR_NOT_READY));
    std::thread::sleep(std::time::Duration::from_millis(20));
    gate.open();
    end.synchronize().unwrap();
    let elapsed = end.elapsed_since(&start).unwrap();
    assert!(elapsed.as_millis() >= 19, "{elapsed:?}");

    let unrecorded = never.elapsed_since(&start);
    record!("never recorded", &unrecorded);
    assert_eq!(unrecorded.unwrap_err().code(), Some(CUresult::CUDA_ERROR_INVALID_HANDLE));
    let untimed = Event::new(&world.context).unwrap();
    stream.record(&untimed).unwrap();
    untimed.synchronize().unwrap();
    let untimed = untimed.elapsed_since(&start);
    record!("without timing", &untimed);
    assert_eq!(untimed.unwrap_err().code(), Some(CUresult::CUDA_ERROR_INVALID_HANDLE));
}

#[test]
fn another_threads_default_stream_cannot_be_recorded() {
    let world = World::new();
    let stream = cuda_mem_core::Stream::per_thread(&world.context).unwrap();
    let event = Event::new(&world.context).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(matches!(stream.record(&event), Err(Error::WrongThread)));
            assert!(matches!(stream.wait(&event), Err(Error::WrongThread)));
        });
    });
}

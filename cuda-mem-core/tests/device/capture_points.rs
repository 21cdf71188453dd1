//! Places in captures, and what comes before them.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ptr;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{CapturePast, CapturePoint, Event, Stream};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::common::World;
use crate::common::capture::{Capture, GLOBAL, RELAXED, THREAD_LOCAL, raw};

unsafe extern "C" fn nothing(_: *mut c_void) {}

/// Gives the stream a node.
fn work(stream: &Stream) {
    let launch = stream.context().driver().table().cuLaunchHostFunc().expect("cuLaunchHostFunc");
    // SAFETY: a live stream, and a function that does nothing.
    assert_eq!(unsafe { launch(raw(stream), Some(nothing), ptr::null_mut()) }, CUresult::CUDA_SUCCESS);
}

/// Has `to` come after all that `from` was given.
fn join(from: &Stream, to: &Stream) {
    let event = Event::new(from.context()).unwrap();
    from.record(&event).unwrap();
    // SAFETY: nobody else works at the captures of this test, and its graphs are not launched.
    unsafe { to.join_capture(&event) }.unwrap();
}

fn point(stream: &Stream) -> Option<CapturePoint> {
    // SAFETY: the captures of these tests are each one thread's.
    unsafe { stream.capture_point() }.unwrap()
}

fn advance(past: &mut CapturePast, stream: &Stream) {
    // SAFETY: as above.
    unsafe { past.advance(&point(stream).unwrap()) }.unwrap();
}

#[test]
fn only_what_captures_has_a_place() {
    let world = World::new();
    let (stream, other) = (world.new_stream(), world.new_stream());
    assert!(point(&stream).is_none());
    let mut names = BTreeSet::new();
    for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
        let capture = Capture::begin(&stream, mode);
        let id = stream.capture_id().unwrap().unwrap();
        assert_eq!(point(&stream).unwrap().capture(), id);
        assert!(names.insert(id), "a new name");
        assert_eq!(other.capture_id().unwrap(), None);
        join(&stream, &other);
        assert_eq!(other.capture_id().unwrap(), Some(id));
        assert!(point(&other).is_some());
        join(&other, &stream);
        drop(capture.end().expect("to ask leaves a capture alone"));
        assert_eq!((stream.capture_id().unwrap(), other.capture_id().unwrap()), (None, None));
    }
}

#[test]
fn an_invalidated_capture_has_no_places() {
    let world = World::new();
    let stream = world.new_stream();
    let capture = Capture::begin(&stream, RELAXED);
    assert!(stream.synchronize().is_err());
    assert_eq!(stream.capture_id().unwrap(), None);
    assert!(point(&stream).is_none());
    assert!(capture.end().is_err());
}

#[test]
fn places_of_one_capture_are_not_compared_with_another() {
    let world = World::new();
    let stream = world.new_stream();
    let mut past = CapturePast::new();
    let capture = Capture::begin(&stream, GLOBAL);
    let first = point(&stream).unwrap();
    assert!(!past.contains(&first), "of no place");
    advance(&mut past, &stream);
    assert!(past.contains(&first));
    drop(capture.end().unwrap());
    let capture = Capture::begin(&stream, GLOBAL);
    advance(&mut past, &stream);
    assert!(!past.contains(&first));
    drop(capture.end().unwrap());
}

#[test]
fn a_node_may_come_after_many() {
    let world = World::new();
    let stream = world.new_stream();
    let others: Vec<Stream> = (0..20).map(|_| world.new_stream()).collect();
    let capture = Capture::begin(&stream, GLOBAL);
    work(&stream);
    others.iter().for_each(|other| join(&stream, other));
    others.iter().for_each(work);
    let places: Vec<CapturePoint> = others.iter().map(|other| point(other).unwrap()).collect();
    others.iter().for_each(|other| join(other, &stream));
    work(&stream);
    let mut past = CapturePast::new();
    advance(&mut past, &stream);
    assert!(places.iter().all(|place| past.contains(place)));
    drop(capture.end().unwrap());
}

#[test]
fn a_stream_that_is_set_elsewhere_forgets_what_came_before() {
    let world = World::new();
    let (stream, other) = (world.new_stream(), world.new_stream());
    let set = world.context.driver().table().cuStreamUpdateCaptureDependencies().expect("it is of CUDA 11.3");
    let capture = Capture::begin(&stream, GLOBAL);
    let mut past = CapturePast::new();
    work(&stream);
    let place = point(&stream).unwrap();
    join(&stream, &other);
    advance(&mut past, &stream);
    assert!(past.contains(&place));
    // SAFETY: a live stream, which comes after nothing from here on.
    assert_eq!(unsafe { set(raw(&stream), ptr::null_mut(), 0, 1) }, CUresult::CUDA_SUCCESS);
    work(&stream);
    advance(&mut past, &stream);
    assert!(!past.contains(&place));
    join(&other, &stream);
    advance(&mut past, &stream);
    assert!(past.contains(&place));
    drop(capture.end().unwrap());
}

/// What is done with streams of a capture, by their numbers.
#[derive(Debug, Clone)]
enum Op {
    Work(usize),
    Join(usize, usize),
    /// Remembers where a stream stands.
    Mark(usize),
    /// Compares all that was remembered with where a stream stands.
    Ask(usize),
}

fn ops() -> impl Strategy<Value = (usize, Vec<Op>)> {
    (2..5usize).prop_flat_map(|streams| {
        let op = prop_oneof![
            3 => (0..streams).prop_map(Op::Work),
            3 => (0..streams, 0..streams).prop_map(|(from, to)| Op::Join(from, to)),
            2 => (0..streams).prop_map(Op::Mark),
            3 => (0..streams).prop_map(Op::Ask),
        ];
        (Just(streams), vec(op, 1..60))
    })
}

/// A stream, and the numbers of all work that comes before where it stands; none while it is outside the capture.
struct Lane {
    stream: Stream,
    knows: Option<BTreeSet<usize>>,
    past: CapturePast,
}

fn run(world: &World, streams: usize, ops: &[Op]) {
    let mut lanes: Vec<Lane> = (0..streams)
        .map(|_| Lane { stream: world.new_stream(), knows: None, past: CapturePast::new() })
        .collect();
    let capture = Capture::begin(&lanes[0].stream, GLOBAL);
    lanes[0].knows = Some(BTreeSet::new());
    let mut marks = Vec::new();
    for (number, op) in ops.iter().enumerate() {
        match *op {
            Op::Work(at) => {
                if let Lane { stream, knows: Some(knows), .. } = &mut lanes[at] {
                    work(stream);
                    knows.insert(number);
                }
            }
            Op::Join(from, to) => {
                if let Some(known) = lanes[from].knows.clone().filter(|_| from != to) {
                    join(&lanes[from].stream, &lanes[to].stream);
                    lanes[to].knows.get_or_insert_default().extend(known);
                }
            }
            Op::Mark(at) => {
                let Lane { stream, knows, .. } = &lanes[at];
                let place = point(stream);
                assert_eq!(place.is_some(), knows.is_some());
                marks.extend(place.zip(knows.clone()));
            }
            Op::Ask(at) => {
                let Lane { stream, knows: Some(knows), past } = &mut lanes[at] else { continue };
                advance(past, stream);
                for (place, before) in &marks {
                    assert_eq!(
                        past.contains(place),
                        before.is_subset(knows),
                        "{number}: {before:?} {knows:?}"
                    );
                }
            }
        }
    }
    let (origin, others) = lanes.split_first().expect("two streams at least");
    others.iter().filter(|lane| lane.knows.is_some()).for_each(|lane| join(&lane.stream, &origin.stream));
    drop(capture.end().expect("to ask leaves a capture alone"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_comes_before_a_place_is_what_was_joined_into_it((streams, ops) in ops()) {
        run(&World::new(), streams, &ops);
    }
}

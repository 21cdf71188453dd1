//! Captures that begin in another thread between two calls: once a stream was said to capture nothing.

use std::time::Duration;

use cuda_mem_core::{Context, Error, Fence, Stream, Uses};

use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::interrupted::{
    LIMIT, begin_to_capture, beside_legacy, capture_around_record, meanwhile, on_interrupted, until,
};

/// A stream, one that others have, and the context's legacy stream beside a blocking one that begins to capture.
fn on_each(test: impl Fn(&Stream, &Stream)) {
    on_interrupted(|sim, context| {
        let stream = Stream::new(context).unwrap();
        // SAFETY: the stream outlives what is borrowed of it.
        let lent = unsafe { Stream::borrow_raw(context, stream.as_raw()) }.unwrap();
        test(&stream, &stream);
        test(&lent, &lent);
        beside_legacy(sim, context, &test);
    });
}

/// Who looks whether memory is in use is nobody whom the stream's owner knows of.
#[test]
fn a_look_at_uses_leaves_a_capture_that_begins_meanwhile_alone() {
    on_each(|used, captures| {
        let mut uses = Uses::new();
        uses.record_stream(used).unwrap();
        let captured = begin_to_capture(captures);
        let answer = uses.are_over();
        let capture = captured.recv_timeout(LIMIT).unwrap();
        assert!(matches!(answer, Ok(_) | Err(Error::Capturing { .. })), "{answer:?}");
        assert_eq!(capture.end().unwrap().len(), 0);
        until("the use is over", || uses.are_over().unwrap());
        // On the same driver, for which simulators of a process are few.
        a_point_behind_uses_leaves_a_capture_that_begins_meanwhile_alone(used, captures);
        if used.id() != captures.id() {
            a_wait_for_uses_of_the_legacy_stream_leaves_a_capture_alone(used, captures);
        }
    });
}

/// Who has the point knows when the memory is free.
fn a_point_behind_uses_leaves_a_capture_that_begins_meanwhile_alone(used: &Stream, captures: &Stream) {
    let mut uses = Uses::new();
    uses.record_stream(used).unwrap();
    let captured = begin_to_capture(captures);
    let points = uses.points();
    let capture = captured.recv_timeout(LIMIT).unwrap();
    assert!(matches!(points, Ok(_) | Err(Error::Capturing { .. })), "{points:?}");
    assert_eq!(capture.end().unwrap().len(), 0);
    let points = uses.points().unwrap();
    until("the points are reached", || points.iter().all(|point| point.is_reached().unwrap()));
}

fn a_wait_for_uses_of_the_legacy_stream_leaves_a_capture_alone(legacy: &Stream, captures: &Stream) {
    let uses = Uses::new();
    uses.record_stream(legacy).unwrap();
    let captured = begin_to_capture(captures);
    let waited = uses.wait();
    let capture = captured.recv_timeout(LIMIT).unwrap();
    assert!(matches!(waited, Ok(()) | Err(Error::Capturing { .. })), "{waited:?}");
    assert_eq!(capture.end().unwrap().len(), 0);
    uses.wait().unwrap();
}

#[test]
fn a_wait_for_uses_leaves_a_capture_that_begins_meanwhile_alone() {
    on_interrupted(|_, context| {
        let stream = Stream::new(context).unwrap();
        // SAFETY: the stream outlives what is borrowed of it.
        let lent = unsafe { Stream::borrow_raw(context, stream.as_raw()) }.unwrap();
        for stream in [&stream, &lent] {
            let uses = Uses::new();
            uses.record_stream(stream).unwrap();
            let captured = begin_to_capture(stream);
            let waited = uses.wait();
            let capture = captured.recv_timeout(LIMIT).unwrap();
            assert!(matches!(waited, Err(Error::Capturing { .. })), "{waited:?}");
            assert_eq!(capture.end().unwrap().len(), 0);
            uses.wait().unwrap();
        }
        // On the same driver, for which simulators of a process are few.
        a_stream_that_is_lent_while_it_is_waited_for_may_begin_to_capture(context);
        a_use_is_seen_to_be_over_although_a_capture_had_the_first_look(context);
    });
}

/// Nobody knows of the stream's handle when the wait begins.
fn a_stream_that_is_lent_while_it_is_waited_for_may_begin_to_capture(context: &Context) {
    for is_busy in [false, true] {
        let stream = Stream::new(context).unwrap();
        let gate = Gate::new(context);
        if is_busy {
            gate.hold(&stream);
        }
        let uses = Uses::new();
        uses.record_stream(&stream).unwrap();
        let (begun, captured) = std::sync::mpsc::channel();
        let lent = stream.clone();
        meanwhile(move || {
            let (begins, has_begun) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let capture = Capture::begin(&lent, RELAXED);
                drop(lent);
                let _ = begins.send(());
                begun.send((capture, gate)).unwrap();
            });
            // Whoever is asked about a stream keeps it from being lent: then it is lent right after.
            let _ = has_begun.recv_timeout(Duration::from_millis(100));
        });
        let (uses, waited) = std::thread::scope(|scope| {
            let waits = scope.spawn(move || {
                let waited = uses.wait();
                (uses, waited)
            });
            let (capture, gate) = captured.recv_timeout(LIMIT).unwrap();
            gate.open();
            let captured = capture.end();
            let waits = waits.join().unwrap();
            assert_eq!(captured.unwrap().len(), 0);
            waits
        });
        assert!(matches!(waited, Ok(()) | Err(Error::Capturing { .. })), "{waited:?}");
        uses.wait().unwrap();
    }
}

/// An event that was recorded in a capture says nothing once that has ended.
fn a_use_is_seen_to_be_over_although_a_capture_had_the_first_look(context: &Context) {
    let stream = Stream::new(context).unwrap();
    assert!(!stream.as_raw().is_null());
    let mut uses = Uses::new();
    uses.record_stream(&stream).unwrap();
    capture_around_record(&stream);
    assert!(uses.are_over().is_err(), "the event is that of a capture");
    until("the use is over", || uses.are_over().unwrap());
}

/// A capture that was there before keeps from an answer, and one that came after a use was looked at does not.
#[test]
fn a_use_that_was_looked_at_is_known_to_be_over_during_a_later_capture() {
    on_each(|used, captures| {
        let (mut seen, mut unseen) = (Uses::new(), Uses::new());
        seen.record_stream(used).unwrap();
        unseen.record_stream(used).unwrap();
        until("the use is over", || seen.are_over().unwrap());
        let capture = Capture::begin(captures, RELAXED);
        assert!(seen.are_over().unwrap());
        assert!(matches!(unseen.are_over(), Err(Error::Capturing { .. })));
        assert_eq!(capture.end().unwrap().len(), 0);
        // It was used again: what was known is known no more.
        seen.record_stream(used).unwrap();
        let capture = Capture::begin(captures, RELAXED);
        assert!(matches!(seen.are_over(), Err(Error::Capturing { .. })));
        assert_eq!(capture.end().unwrap().len(), 0);
    });
}

#[test]
fn a_stream_is_not_drawn_into_a_capture_that_begins_while_it_is_ordered() {
    on_interrupted(|_, context| {
        let (stream, later) = (Stream::new(context).unwrap(), Stream::new(context).unwrap());
        assert!(!stream.as_raw().is_null());
        let captured = begin_to_capture(&stream);
        let ordered = later.wait_stream(&stream);
        let capture = captured.recv_timeout(LIMIT).unwrap();
        assert!(matches!(ordered, Err(Error::Capturing { .. })), "{ordered:?}");
        assert!(!later.is_capturing().unwrap());
        assert_eq!(capture.end().unwrap().len(), 0);
    });
}

#[test]
fn a_fence_is_of_no_capture_that_begins_while_it_is_recorded() {
    on_interrupted(|_, context| {
        let stream = Stream::new(context).unwrap();
        assert!(!stream.as_raw().is_null());
        let captured = begin_to_capture(&stream);
        let fence = Fence::record(&stream);
        let capture = captured.recv_timeout(LIMIT).unwrap();
        // A fence of a capture would end it when it is asked.
        assert!(matches!(fence.map(|fence| fence.is_complete()), Err(Error::Capturing { .. })));
        assert_eq!(capture.end().unwrap().len(), 0);
    });
}

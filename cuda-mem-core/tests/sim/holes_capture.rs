//! Holes around captures.

use std::thread;

use cuda_mem_core::host::PinnedFlags;
use cuda_mem_core::sys::CUstreamCaptureStatus;
use cuda_mem_core::{DeviceBuffer, Error, Event, FenceLine, PinnedBuffer, Stream, Transfer};

use crate::common::capture::{Capture, GLOBAL, RELAXED};
use crate::interrupted::{before_copy, beside_legacy, on_interrupted};
use crate::rig::{on_simulator, position, read_on, text};

#[test]
fn c7_no_memory_goes_into_a_graph_by_a_safe_call() {
    on_simulator(|_, context| {
        let stream = Stream::new(context).unwrap();
        let (buffer, other) = (
            DeviceBuffer::<u8>::zeroed(&stream, 100).unwrap(),
            DeviceBuffer::<u8>::zeroed(&stream, 100).unwrap(),
        );
        let capture = Capture::begin(&stream, GLOBAL);
        for result in [
            buffer.whole().fill_bytes(&stream, 1),
            buffer.whole().copy_from(&stream, &other.whole()),
            DeviceBuffer::<u8>::zeroed(&stream, 100).map(drop),
        ] {
            assert!(matches!(result, Err(Error::Capturing { .. })));
        }
        let graph = capture.end().unwrap();
        assert_eq!(graph.len(), 0);
        drop((buffer, other));
        // SAFETY: it is empty.
        unsafe { graph.run(&stream) };
    });
}

#[test]
fn c7_memory_dropped_during_a_capture_is_freed_after_it() {
    on_simulator(|sim, context| {
        let stream = Stream::new(context).unwrap();
        let buffer = DeviceBuffer::<u8>::zeroed(&stream, 100).unwrap();
        sim.log().clear();
        let capture = Capture::begin(&stream, GLOBAL);
        drop(buffer);
        capture.end().unwrap();
        assert_eq!(context.driver().reclaim(), 0);
        let records = sim.log().records();
        let (ended, freed) = (position(&records, "cuStreamEndCapture"), position(&records, "cuMemFreeAsync"));
        assert!(ended < freed, "{}", text(&records));
    });
}

#[test]
fn n2_a_drop_waits_for_nobody_and_harms_no_capture() {
    on_simulator(|sim, context| {
        let (home, user, capturing) =
            (Stream::new(context).unwrap(), Stream::new(context).unwrap(), Stream::new(context).unwrap());
        let (buffer, target) = (
            DeviceBuffer::<u8>::zeroed(&home, 100).unwrap(),
            DeviceBuffer::<u8>::zeroed(&home, 100).unwrap(),
        );
        let capture = Capture::begin(&capturing, GLOBAL);
        sim.log().clear();
        read_on(&buffer, &user, &target);
        drop((buffer, target));
        let waits = ["cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize"];
        let waited = sim.log().filter(|record| waits.contains(&record.function));
        assert!(waited.is_empty(), "{}", text(&waited));
        assert_eq!(capture.end().map(|graph| graph.len()), Ok(0));
    });
}

/// A stream that a safe wait draws into a capture would have its copies in the graph, behind the check of each of them.
#[test]
fn d3_no_safe_call_draws_a_stream_into_a_capture() {
    on_simulator(|_, context| {
        let (theirs, mine) = (Stream::new(context).unwrap(), Stream::new(context).unwrap());
        let fork = Event::new(context).unwrap();
        let device = DeviceBuffer::<u8>::from_slice(&mine, &[7; 4096]).unwrap();
        let mut pinned = PinnedBuffer::<u8>::zeroed(context, 4096, PinnedFlags::default()).unwrap();
        let capture = Capture::begin(&theirs, RELAXED);
        theirs.record(&fork).unwrap();
        thread::scope(|threads| {
            let drawn = threads.spawn(|| mine.wait(&fork));
            let target = pinned.as_mut_slice().unwrap();
            cuda_mem_core::scope(context, |scope| scope.download(&mine, &device.whole(), target)).unwrap();
            let drawn = drawn.join().unwrap();
            assert!(matches!(drawn, Err(Error::Capturing { .. })), "{drawn:?}");
        });
        assert!(!mine.is_capturing().unwrap());
        assert_eq!(pinned.as_slice().unwrap(), [7; 4096]);
        let pinned = Transfer::download(&mine, &device.whole(), pinned).unwrap().wait().unwrap();
        assert_eq!(capture.end().unwrap().len(), 0);
        // Recorded outside a capture it is an event like any other.
        theirs.record(&fork).unwrap();
        mine.wait(&fork).unwrap();
        drop((device, pinned));
    });
}

/// Recorded outside a capture it is an event like any other, whatever records it.
#[test]
fn d3_an_event_that_a_legacy_stream_recorded_last_is_no_capture_s() {
    on_simulator(|_, context| {
        let (theirs, mine) = (Stream::new(context).unwrap(), Stream::new(context).unwrap());
        let fork = Event::new(context).unwrap();
        let capture = Capture::begin(&theirs, RELAXED);
        theirs.record(&fork).unwrap();
        drop(capture.end().unwrap());
        assert!(matches!(mine.wait(&fork), Err(Error::Capturing { .. })));
        Stream::legacy(context).unwrap().record(&fork).unwrap();
        mine.wait(&fork).unwrap();
    });
}

/// The driver would end the capture.
#[test]
fn a_stream_that_captures_waits_for_no_other_and_a_legacy_stream_beside_it_is_not_named() {
    on_simulator(|sim, context| {
        let (stream, other) = (Stream::new(context).unwrap(), Stream::new(context).unwrap());
        let event = Event::new(context).unwrap();
        other.record(&event).unwrap();
        let capture = Capture::begin(&stream, RELAXED);
        assert!(matches!(stream.wait(&event), Err(Error::Capturing { .. })));
        assert_eq!(capture.end().unwrap().len(), 0);
        beside_legacy(sim, context, |legacy, blocking| {
            let capture = Capture::begin(blocking, RELAXED);
            assert!(matches!(legacy.wait(&event), Err(Error::Capturing { .. })));
            assert!(matches!(legacy.record(&event), Err(Error::Capturing { .. })));
            assert_eq!(capture.end().unwrap().len(), 0);
        });
    });
}

/// The number of a fence is known before the driver is asked for it. What the program does meanwhile puts no word into a graph.
#[test]
fn d3_a_fence_that_is_announced_goes_into_no_graph() {
    on_simulator(|_, context| {
        let (theirs, mine) = (Stream::new(context).unwrap(), Stream::new(context).unwrap());
        let (fork, join) = (Event::new(context).unwrap(), Event::new(context).unwrap());
        let line = FenceLine::new(context).unwrap();
        let capture = Capture::begin(&theirs, RELAXED);
        theirs.record(&fork).unwrap();
        let mut reserved = line.reserve().unwrap();
        reserved.announce();
        // SAFETY: no other thread works at the stream, and the graph is not launched.
        unsafe { mine.join_capture(&fork) }.unwrap();
        let recorded = reserved.record(&mine);
        assert!(matches!(recorded, Err(Error::Capturing { .. })), "{recorded:?}");
        assert!(line.is_poisoned(), "somebody was told of it");
        mine.record(&join).unwrap();
        // SAFETY: as above.
        unsafe { theirs.join_capture(&join) }.unwrap();
        assert_eq!(capture.end().unwrap().len(), 0);
    });
}

/// The owner of a stream has it capture between the check and the call: the capture is lost, and no graph has the memory.
#[test]
fn d3_a_capture_that_begins_between_check_and_call_is_invalidated() {
    on_interrupted(|_, context| {
        let stream = Stream::new(context).unwrap();
        let device = DeviceBuffer::<u8>::from_slice(&stream, &[7; 64]).unwrap();
        let pinned = PinnedBuffer::<u8>::zeroed(context, 64, PinnedFlags::default()).unwrap();
        let _ = stream.as_raw();
        let (begun, captured) = std::sync::mpsc::channel();
        let theirs = stream.clone();
        before_copy(move || begun.send(Capture::begin(&theirs, RELAXED)).unwrap());
        let ended = thread::scope(|threads| {
            let (context, stream) = (&context, &stream);
            let ended = threads.spawn(move || {
                let capture = captured.recv().unwrap();
                let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
                let ask = context.driver().table().cuStreamIsCapturing().unwrap();
                while status == CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE {
                    // SAFETY: a live stream and one status to write.
                    let _ = unsafe { ask(stream.as_raw().cast(), &mut status) };
                    thread::yield_now();
                }
                capture.end().err()
            });
            let refused = Transfer::download(stream, &device.whole(), pinned).unwrap_err();
            assert!(matches!(refused.error, Error::Capturing { .. }), "{:?}", refused.error);
            assert!(refused.owner.is_some(), "nothing uses it");
            ended.join().unwrap()
        });
        assert!(ended.is_some(), "the capture came to no graph");
        drop(device);
    });
}

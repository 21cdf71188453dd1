//! Streams that capture a graph: ours stay out of it, and captures of others stay whole.

use std::sync::mpsc;

use cuda_mem_core::copy::Stager;
use cuda_mem_core::host::{PinnedFlags, RegisterFlags, Registered};
use cuda_mem_core::{DeviceBuffer, Error, Event, Fence, FenceLine, PinnedBuffer, Stream, Transfer, scope};

use crate::common::capture::{Capture, GLOBAL, RELAXED, THREAD_LOCAL};
use crate::common::files::TempFile;
use crate::common::kernels::Kernels;
use crate::common::outcome::record;
use crate::common::{World, pattern, scenarios};

#[test]
fn calls_that_would_put_memory_into_a_graph_are_refused_and_the_capture_goes_on() {
    let world = World::new();
    let (context, other) = (&world.context, world.new_stream());
    let stream = world.new_stream();
    let buffer = DeviceBuffer::<u8>::zeroed(&other, 100).unwrap();
    let (whole, bytes, mut target) = (buffer.whole(), vec![1u8; 100], vec![1u8; 100]);
    let line = FenceLine::new(context).unwrap();
    let (stager, file) = (Stager::new(context).unwrap(), TempFile::on_tmpfs(&bytes));
    let (fence, word_fence) = (Fence::record(&other).unwrap(), line.record(&other).unwrap());
    other.synchronize().unwrap();

    for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
        let capture = Capture::begin(&stream, mode);
        assert!(stream.is_capturing().unwrap());
        let results = [
            ("uninit", DeviceBuffer::<u8>::uninit(&stream, 1).map(drop)),
            ("zeroed", DeviceBuffer::<u8>::zeroed(&stream, 1).map(drop)),
            ("from_slice", DeviceBuffer::from_slice(&stream, &bytes).map(drop)),
            ("copy_from_slice", whole.copy_from_slice(&stream, &bytes)),
            ("copy_to_slice", whole.copy_to_slice(&stream, &mut target)),
            (
                "Transfer::upload",
                Transfer::upload(&stream, bytes.clone(), &whole).map(drop).map_err(Error::from),
            ),
            (
                "Transfer::download",
                Transfer::download(&stream, &whole, bytes.clone()).map(drop).map_err(Error::from),
            ),
            ("Scope::upload", scope(context, |scope| scope.upload(&stream, &bytes, &whole))),
            ("Scope::download", scope(context, |scope| scope.download(&stream, &whole, &mut target))),
            (
                "Scope::upload_bytes",
                scope(context, |scope| scope.upload_bytes(&stream, &bytes, 0..100, &whole)),
            ),
            ("Stager::upload", stager.upload(&stream, &bytes, &whole)),
            ("Stager::download", stager.download(&stream, &whole, &mut target)),
            ("Stager::upload_file", stager.upload_file(&stream, &file.open(), 0, &whole)),
            ("Stager::upload_from", stager.upload_from(&stream, &mut &bytes[..], &whole)),
            ("copy_from", whole.copy_from(&stream, &whole)),
            ("fill_bytes", whole.fill_bytes(&stream, 1)),
            ("Fence::record", Fence::record(&stream).map(drop)),
            ("Fence::make_wait", fence.make_wait(&stream)),
            ("Fence::make_wait of a word", word_fence.make_wait(&stream)),
            ("FenceLine::record", line.record(&stream).map(drop)),
            ("wait_stream", stream.wait_stream(&other)),
            ("wait_stream, the other way", other.wait_stream(&stream)),
            ("on", buffer.on(&stream).map(drop)),
            // SAFETY: the stream outlives the call.
            ("borrow_raw", unsafe { Stream::borrow_raw(context, stream.as_raw()) }.map(drop)),
        ];
        for (call, result) in results {
            record!(call, &result);
            assert!(matches!(result, Err(Error::Capturing { .. })), "{call}: {result:?}");
        }
        let graph = capture.end().unwrap_or_else(|code| panic!("the capture was lost: {}", code.0));
        assert_eq!(graph.len(), 0, "something was captured all the same");
    }
    assert_eq!(buffer.to_vec(&stream).unwrap(), [0; 100]);
    assert_eq!(target, [1; 100]);
}

#[test]
fn a_buffer_dropped_while_its_stream_captures_is_freed_afterwards() {
    let world = World::new();
    let stream = world.new_stream();
    let buffer = DeviceBuffer::<u8>::zeroed(&stream, 1 << 20).unwrap();
    let closed = DeviceBuffer::<u8>::zeroed(&stream, 1 << 20).unwrap();
    let capture = Capture::begin(&stream, THREAD_LOCAL);
    let refused = closed.close().unwrap_err();
    record!("close", &refused.error);
    assert!(matches!(refused.error, Error::Capturing { .. }));
    drop(buffer);
    assert_eq!(world.driver.reclaim(), 1);
    assert_eq!(capture.end().unwrap().len(), 0);
    assert_eq!(world.driver.reclaim(), 0);
    refused.owner.close().unwrap();
    assert_eq!(world.driver.release_failures(), 0);
}

#[test]
fn a_graph_may_use_a_buffer_whose_owner_answers_for_it() {
    let world = World::new();
    let kernels = Kernels::load(&world.context);
    let stream = world.new_stream();
    let buffer = DeviceBuffer::<u32>::zeroed(&stream, 1000).unwrap();
    let capture = Capture::begin(&stream, THREAD_LOCAL);
    {
        let words = buffer.on(&stream).unwrap();
        // SAFETY: the buffer lives until the graph has run for the last time.
        unsafe { kernels.add_one_u32(&stream, words.address(), 1000) };
    }
    let graph = capture.end().unwrap();
    assert_eq!(graph.len(), 1);
    for _ in 0..3 {
        // SAFETY: as above.
        unsafe { graph.run(&stream) };
    }
    assert_eq!(buffer.to_vec(&stream).unwrap(), [3; 1000]);
}

#[test]
fn a_buffer_used_by_a_capture_waits_for_its_end_wherever_it_is_dropped() {
    let world = World::new();
    let (home, stream) = (world.new_stream(), world.new_stream());
    let buffer = DeviceBuffer::<u8>::zeroed(&home, 1000).unwrap();
    // The stream has used it before, so that it needs to wait for nobody during the capture.
    buffer.whole().fill_bytes(&stream, 1).unwrap();
    let pinned = PinnedBuffer::<u8>::zeroed(&world.context, 100, PinnedFlags::MAPPED).unwrap();
    let registered = Registered::new(&world.context, vec![0u8; 100], RegisterFlags::MAPPED).unwrap();
    drop((pinned.on(&stream).unwrap(), registered.on(&stream).unwrap()));
    let capture = Capture::begin(&stream, THREAD_LOCAL);
    drop(buffer.on(&stream).unwrap());
    drop(buffer);
    assert_eq!(world.driver.reclaim(), 1);
    let pinned = pinned.close().unwrap_err();
    let registered = registered.close().unwrap_err();
    for error in [&pinned.error, &registered.error] {
        assert!(matches!(error, Error::Capturing { .. }), "{error}");
    }
    capture.end().unwrap();
    // The next allocation takes care of what waits.
    drop(DeviceBuffer::<u8>::uninit(&home, 1).unwrap());
    assert_eq!(world.driver.reclaim(), 0);
    pinned.owner.close().unwrap();
    registered.owner.close().unwrap();
}

#[test]
fn another_threads_global_capture_survives_every_call() {
    let world = World::new();
    for (name, run) in scenarios::ALL {
        let stream = world.new_stream();
        let (begun, begins) = mpsc::channel();
        let (done, is_done) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let stream = &stream;
            let capturing = scope.spawn(move || {
                let capture = Capture::begin(stream, GLOBAL);
                begun.send(()).unwrap();
                let _ = is_done.recv();
                capture.end().map(|graph| graph.len())
            });
            begins.recv().unwrap();
            let result = run(&world.context);
            drop(done);
            record!(name, &result);
            result.unwrap_or_else(|error| panic!("{name} beside a capture: {error}"));
            assert_eq!(capturing.join().unwrap(), Ok(0), "{name} harmed the capture");
        });
    }
}

#[test]
fn a_thread_that_captures_globally_may_make_every_call() {
    let world = World::new();
    let bytes = pattern(1000, 1);
    for (name, run) in scenarios::ALL {
        let stream = world.new_stream();
        let capture = Capture::begin(&stream, GLOBAL);
        let result = run(&world.context);
        record!(name, &result);
        result.unwrap_or_else(|error| panic!("{name} beside a capture: {error}"));
        assert_eq!(capture.end().map(|graph| graph.len()), Ok(0), "{name} harmed the capture");
    }
    assert_eq!(
        DeviceBuffer::from_slice(&world.stream, &bytes).unwrap().to_vec(&world.stream).unwrap(),
        bytes
    );
}

/// Which would end the capture.
#[test]
fn the_driver_is_asked_nothing_about_an_event_of_a_capture() {
    let world = World::new();
    let (stream, event) = (world.new_stream(), Event::new(&world.context).unwrap());
    let expect_refused = || {
        for (call, result) in [
            ("is_complete", event.is_complete().map(drop)),
            ("synchronize", event.synchronize()),
            ("elapsed_since", event.elapsed_since(&event).map(drop)),
        ] {
            assert!(matches!(result, Err(Error::Capturing { .. })), "{call}: {result:?}");
        }
    };
    for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
        let capture = Capture::begin(&stream, mode);
        stream.record(&event).unwrap();
        expect_refused();
        assert_eq!(capture.end().unwrap().len(), 0);
        // It stands for no point in time until it is recorded again.
        expect_refused();
        stream.record(&event).unwrap();
        event.synchronize().unwrap();
        assert!(event.is_complete().unwrap());
    }
}

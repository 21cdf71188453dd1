//! Memory that other processes have too, which stays registered until no stream is busy.

use std::ptr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cuda_mem_core::host::{RegisterFlags, Registered, SharedMapping};
use cuda_mem_core::ipc::SharedWords;
use cuda_mem_core::sys::{CUresult, CUstream};
use cuda_mem_core::{DeviceBuffer, Error, FenceLine, RegisteredBy, Stream};

use crate::common::World;
use crate::common::capture::{Capture, GLOBAL, RELAXED};
use crate::common::gate::Gate;
use crate::common::outcome::record;

/// Far longer than anything here needs.
const LIMIT: Duration = Duration::from_secs(60);

/// Long enough for the streams to be asked some times.
const SOME_LOOKS: Duration = Duration::from_millis(400);

/// Waits until no registration is left that other tests or this one have put off.
fn until_nothing_is_left(world: &World) {
    let start = Instant::now();
    while world.driver.registrations_left() > 0 {
        assert!(start.elapsed() < LIMIT, "{} are left", world.driver.registrations_left());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((world.driver.reclaim(), world.driver.release_failures()), (0, 0));
}

/// A world in which nothing is left of other tests.
fn new_world() -> World {
    let world = World::new();
    until_nothing_is_left(&world);
    world
}

/// The driver would wait for the stream, and hold up everybody meanwhile.
#[test]
fn shared_words_stay_registered_while_any_stream_is_busy() {
    let world = new_world();
    let (busy, other) = (world.new_stream(), world.new_stream());
    let gate = Gate::before(&busy);
    let words = SharedWords::create(&world.context, 1).unwrap();
    let fence = words.line(0).unwrap().record(&other).unwrap();
    fence.synchronize(None).unwrap();
    drop((fence, words));
    assert_eq!((world.driver.reclaim(), world.driver.registrations_left()), (0, 1));
    // Neither the drop nor what is left holds anybody up.
    let buffer = DeviceBuffer::<u8>::zeroed(&other, 100).unwrap();
    assert_eq!(buffer.to_vec(&other).unwrap(), [0; 100]);
    assert!(!busy.is_idle().unwrap());
    gate.open();
    busy.synchronize().unwrap();
    until_nothing_is_left(&world);
}

/// A query, or an event of the whole context, would end the capture.
#[test]
fn shared_words_that_go_beside_a_capture_leave_it_alone() {
    let world = new_world();
    let (stream, other) = (world.new_stream(), world.new_stream());
    for mode in [GLOBAL, RELAXED] {
        let capture = Capture::begin(&stream, mode);
        drop(SharedWords::create(&world.context, 1).unwrap());
        assert_eq!(world.driver.registrations_left(), 1, "nobody can ask whether the stream is busy");
        capture.end().unwrap();
        other.synchronize().unwrap();
        until_nothing_is_left(&world);
    }
}

/// A stream that waits for the legacy one and has it wait, of somebody else, and its handle.
fn blocking_stream(world: &World) -> (Stream, CUstream) {
    let create = world.driver.table().cuStreamCreate().unwrap();
    let mut raw = ptr::null_mut();
    // SAFETY: one handle to write; the context is current.
    let created = world.context.with_current(|| unsafe { create(&mut raw, 0) });
    assert_eq!(created.unwrap(), CUresult::CUDA_SUCCESS);
    // SAFETY: destroyed by the test that has it, when nobody else has.
    (unsafe { Stream::borrow_raw(&world.context, raw.cast()) }.unwrap(), raw)
}

/// The legacy stream must not be mentioned beside it, and is asked all the same.
#[test]
fn shared_words_that_go_beside_a_blocking_stream_s_capture_leave_it_alone() {
    let world = new_world();
    let legacy = Stream::legacy(&world.context).unwrap();
    let (blocking, raw) = blocking_stream(&world);
    // What is asked is the legacy stream, and not the one that captures.
    blocking.disown();
    let capture = Capture::begin(&blocking, GLOBAL);
    drop(SharedWords::create(&world.context, 1).unwrap());
    until_nothing_is_left(&world);
    assert_eq!(capture.end().unwrap().len(), 0);
    drop((blocking, legacy));
    // SAFETY: made for this test, destroyed once.
    let destroyed = unsafe { world.driver.table().cuStreamDestroy().unwrap()(raw) };
    assert_eq!(destroyed, CUresult::CUDA_SUCCESS);
}

/// The driver would wait for it too, and hold up whoever makes a stream.
#[test]
fn shared_words_stay_registered_while_the_legacy_stream_is_busy() {
    let world = new_world();
    let legacy = Stream::legacy(&world.context).unwrap();
    let gate = Gate::before(&legacy);
    drop(SharedWords::create(&world.context, 1).unwrap());
    let makes_streams = std::thread::scope(|scope| {
        let making = scope.spawn(|| {
            let start = Instant::now();
            while start.elapsed() < SOME_LOOKS {
                world.new_stream();
            }
        });
        let start = Instant::now();
        while !making.is_finished() && start.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
        let makes_streams = making.is_finished();
        gate.open();
        makes_streams
    });
    assert!(makes_streams, "memory is unregistered while the legacy stream is busy");
    until_nothing_is_left(&world);
}

/// Whether shared words can be dropped while `line` is awaited. If not, it is poisoned, so that the drop ends.
fn can_drop_words(world: &World, line: &FenceLine) -> bool {
    std::thread::scope(|scope| {
        let dropping = scope.spawn(|| drop(SharedWords::create(&world.context, 1).unwrap()));
        let start = Instant::now();
        while !dropping.is_finished() && start.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
        let ended = dropping.is_finished();
        if !ended {
            line.poison();
        }
        ended
    })
}

/// Of another thread's default stream nothing can be asked but whether the words have come: those of other processes, and
/// those that only this one has.
#[test]
fn shared_words_stay_registered_while_a_thread_s_own_stream_waits_for_others() {
    let world = new_world();
    let (writer, other) = (world.new_stream(), world.new_stream());
    let shared = SharedWords::create(&world.context, 1).unwrap();
    for line in [shared.line(0).unwrap(), FenceLine::new(&world.context).unwrap()] {
        line.record(&writer).unwrap();
        std::thread::scope(|scope| {
            let waits = || {
                let stream = Stream::per_thread(&world.context).unwrap();
                line.fence(2).unwrap().make_wait(&stream).unwrap();
                stream
            };
            let stream = scope.spawn(waits).join().unwrap();
            assert!(can_drop_words(&world, &line));
            assert_eq!(world.driver.registrations_left(), 1);
            // Whoever lets the stream go is not held up.
            line.record(&other).unwrap().synchronize(None).unwrap();
            drop(stream);
        });
        until_nothing_is_left(&world);
    }
}

/// Who goes with a line is counted no more.
#[test]
fn a_line_that_is_gone_is_not_awaited() {
    let world = new_world();
    let stream = world.new_stream();
    let line = FenceLine::new(&world.context).unwrap();
    line.fence(1).unwrap().make_wait(&stream).unwrap();
    drop(line);
    drop(SharedWords::create(&world.context, 1).unwrap());
    until_nothing_is_left(&world);
}

/// A peer that lives after all writes its generation over the poison.
#[test]
fn a_poisoned_line_is_not_awaited_whatever_its_peer_writes() {
    let world = new_world();
    let stream = world.new_stream();
    let words = SharedWords::create(&world.context, 1).unwrap();
    let line = words.line(0).unwrap();
    line.fence(7).unwrap().make_wait(&stream).unwrap();
    line.poison();
    stream.synchronize().unwrap();
    words.mapping().word(0).unwrap().store(5, Ordering::SeqCst);
    drop(SharedWords::create(&world.context, 1).unwrap());
    until_nothing_is_left(&world);
    assert!(line.is_poisoned());
}

/// What is left goes by itself.
#[test]
fn shared_words_that_were_left_are_unregistered_when_the_streams_are_idle() {
    let world = new_world();
    let busy = world.new_stream();
    let gate = Gate::before(&busy);
    drop(SharedWords::create(&world.context, 1).unwrap());
    assert_eq!(world.driver.registrations_left(), 1);
    gate.open();
    until_nothing_is_left(&world);
}

/// What nobody has any more is in the way for as long as a stream is busy and no longer, also one that others may have capture.
#[test]
fn shared_memory_that_was_left_is_registered_anew_in_another_way() {
    let world = new_world();
    let stream = world.new_stream();
    assert!(!stream.as_raw().is_null());
    let memory = SharedMapping::create(4096).unwrap();
    let register = |flags| Registered::new(&world.context, memory.clone(), flags).map_err(Error::from);
    let gate = Gate::before(&stream);
    drop(register(RegisterFlags::PORTABLE).unwrap());
    let both = RegisterFlags::PORTABLE | RegisterFlags::MAPPED;
    let refused = register(both).map(drop);
    record!("register", &refused);
    assert!(matches!(refused, Err(Error::AlreadyRegistered { by: RegisteredBy::Ours { .. }, .. })));
    // As it is it can be had at any time.
    drop(register(RegisterFlags::PORTABLE).unwrap());
    gate.open();
    stream.synchronize().unwrap();
    let start = Instant::now();
    while let Err(error) = register(both).map(drop) {
        assert!(start.elapsed() < LIMIT, "{error}");
    }
    until_nothing_is_left(&world);
}

//! Fences, of events and of words.

use std::time::{Duration, Instant};

use cuda_mem_core::ipc::SharedWords;
use cuda_mem_core::{DeviceBuffer, Error, Fence, FenceLine, Stream};

use crate::common::World;
use crate::common::capture::{Capture, GLOBAL, RELAXED};
use crate::common::gate::Gate;
use crate::common::outcome::record;

/// Long enough to be no accident, short enough to wait for.
const SOON: Duration = Duration::from_millis(30);

/// Far longer than anything here needs.
const LIMIT: Duration = Duration::from_secs(60);

/// One of each kind, on a stream that is held up.
fn both(world: &World, check: impl Fn(&str, Fence, &Gate)) {
    let stream = world.new_stream();
    let gate = Gate::before(&stream);
    check("event", Fence::record(&stream).unwrap(), &gate);
    let stream = world.new_stream();
    let line = FenceLine::new(&world.context).unwrap();
    let gate = Gate::before(&stream);
    check("word", line.record(&stream).unwrap(), &gate);
}

#[test]
fn a_fence_is_reached_with_the_work_before_it() {
    both(&World::new(), |kind, fence, gate| {
        assert!(!fence.is_complete().unwrap(), "{kind}");
        gate.open();
        fence.synchronize(None).unwrap();
        assert!(fence.is_complete().unwrap(), "{kind}");
    });
}

#[test]
fn a_wait_ends_at_its_limit() {
    both(&World::new(), |kind, fence, gate| {
        let start = Instant::now();
        let result = fence.synchronize(Some(SOON));
        record!(kind, &result);
        assert!(matches!(result, Err(Error::Timeout(limit)) if limit == SOON), "{kind}: {result:?}");
        assert!(start.elapsed() >= SOON);
        gate.open();
        fence.synchronize(Some(Duration::from_secs(60))).unwrap();
    });
}

#[test]
fn a_fence_holds_up_other_streams() {
    let world = World::new();
    both(&world, |kind, fence, gate| {
        let other = world.new_stream();
        fence.hold_up(&other).unwrap();
        assert!(!other.is_idle().unwrap(), "{kind}");
        gate.open();
        other.synchronize().unwrap();
        fence.hold_up(&other).unwrap();
        other.synchronize().unwrap();
    });
}

#[test]
fn fences_of_one_line_are_reached_in_the_order_of_their_records() {
    let world = World::new();
    let (one, two) = (world.new_stream(), world.new_stream());
    let line = FenceLine::new(&world.context).unwrap();
    let gate = Gate::before(&one);
    let first = line.record(&one).unwrap();
    let second = line.record(&two).unwrap();
    assert!(!first.is_complete().unwrap() && !second.is_complete().unwrap());
    gate.open();
    second.synchronize(None).unwrap();
    assert!(first.is_complete().unwrap());
}

#[test]
fn poison_frees_everybody_and_tells_everybody() {
    let world = World::new();
    let (writer, waiting) = (world.new_stream(), world.new_stream());
    let line = FenceLine::new(&world.context).unwrap();
    let gate = Gate::before(&writer);
    let fence = line.record(&writer).unwrap();
    fence.hold_up(&waiting).unwrap();
    assert!(!waiting.is_idle().unwrap());
    line.poison();
    waiting.synchronize().unwrap();
    for (call, result) in [
        ("is_complete", fence.is_complete().map(drop)),
        ("synchronize", fence.synchronize(None)),
        ("hold_up", fence.hold_up(&waiting)),
    ] {
        record!(call, &result);
        assert!(matches!(result, Err(Error::Poisoned)), "{call}: {result:?}");
    }
    let late = line.clone().record(&waiting);
    record!("record", &late);
    assert!(matches!(late, Err(Error::Poisoned)));
    // A writer that lives on after all moves the word back; nobody is told otherwise for it.
    gate.open();
    writer.synchronize().unwrap();
    assert!(matches!(fence.is_complete(), Err(Error::Poisoned)));
}

#[test]
fn a_line_outlives_its_handle_for_as_long_as_streams_wait() {
    let world = World::new();
    let (writer, waiting) = (world.new_stream(), world.new_stream());
    let line = FenceLine::new(&world.context).unwrap();
    let gate = Gate::before(&writer);
    let fence = line.record(&writer).unwrap();
    drop(line);
    fence.hold_up(&waiting).unwrap();
    gate.open();
    fence.synchronize(None).unwrap();
    drop(fence);
    waiting.synchronize().unwrap();
}

#[test]
fn a_line_that_goes_away_lets_its_waiters_go() {
    let world = World::new();
    let (writer, waiting) = (world.new_stream(), world.new_stream());
    let line = FenceLine::new(&world.context).unwrap();
    let gate = Gate::before(&writer);
    let fence = line.record(&writer).unwrap();
    fence.hold_up(&waiting).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(SOON);
            gate.open();
        });
        // Waits for the writer, which still has to write the word.
        drop((fence, line));
        assert!(writer.is_idle().unwrap() && waiting.is_idle().unwrap());
    });
}

#[test]
fn poison_holds_against_a_writer_that_lives_on() {
    let world = World::new();
    let (dead, alive, waiting) = (world.new_stream(), world.new_stream(), world.new_stream());
    let (of_alive, of_dead, of_waiting) = (Gate::before(&alive), Gate::before(&dead), Gate::before(&waiting));
    let line = FenceLine::new(&world.context).unwrap();
    line.record(&alive).unwrap();
    let never = line.record(&dead).unwrap();
    never.hold_up(&waiting).unwrap();
    line.poison();
    // Its write comes after the poison and moves the word back, before the wait has begun.
    of_alive.open();
    alive.synchronize().unwrap();
    of_waiting.open();
    // Whoever asks sets that right.
    assert!(matches!(never.is_complete(), Err(Error::Poisoned)));
    let waited = Fence::record(&waiting).unwrap().synchronize(Some(Duration::from_secs(20)));
    let was_dead = !dead.is_idle().unwrap();
    of_dead.open();
    waited.unwrap();
    assert!(was_dead);
}

/// How many registrations are left after a look.
fn left(world: &World) -> usize {
    assert_eq!(world.driver.reclaim(), 0, "no stream is kept");
    world.driver.registrations_left()
}

/// The driver would wait for the stream, and hold up everybody meanwhile.
#[test]
fn shared_words_stay_registered_while_any_stream_is_busy() {
    let world = World::new();
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
    assert_eq!((world.driver.reclaim(), world.driver.registrations_left()), (0, 0));
    assert_eq!(world.driver.release_failures(), 0);
}

/// A query, or an event of the whole context, would end the capture.
#[test]
fn shared_words_that_go_beside_a_capture_leave_it_alone() {
    let world = World::new();
    let (stream, other) = (world.new_stream(), world.new_stream());
    for mode in [GLOBAL, RELAXED] {
        let capture = Capture::begin(&stream, mode);
        drop(SharedWords::create(&world.context, 1).unwrap());
        assert_eq!(left(&world), 1, "nobody can ask whether the stream is busy");
        capture.end().unwrap();
        other.synchronize().unwrap();
        assert_eq!(left(&world), 0);
    }
    assert_eq!(world.driver.release_failures(), 0);
}

/// Of another thread's default stream nothing can be asked but whether the words have come.
#[test]
fn shared_words_stay_registered_while_a_thread_s_own_stream_waits_for_others() {
    let world = World::new();
    let awaited = SharedWords::create(&world.context, 1).unwrap();
    let line = awaited.line(0).unwrap();
    std::thread::scope(|scope| {
        let waits = || {
            let stream = Stream::per_thread(&world.context).unwrap();
            line.fence(1).unwrap().hold_up(&stream).unwrap();
            stream
        };
        let stream = scope.spawn(waits).join().unwrap();
        drop(SharedWords::create(&world.context, 1).unwrap());
        assert_eq!(left(&world), 1);
        line.poison();
        drop(stream);
    });
    let start = Instant::now();
    while left(&world) > 0 {
        assert!(start.elapsed() < LIMIT);
        std::thread::yield_now();
    }
    assert_eq!(world.driver.release_failures(), 0);
}

/// What is left goes by itself.
#[test]
fn shared_words_that_were_left_are_unregistered_when_the_streams_are_idle() {
    let world = World::new();
    let busy = world.new_stream();
    let gate = Gate::before(&busy);
    drop(SharedWords::create(&world.context, 1).unwrap());
    assert_eq!(world.driver.registrations_left(), 1);
    gate.open();
    let start = Instant::now();
    while world.driver.registrations_left() > 0 {
        assert!(start.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(1));
    }
}

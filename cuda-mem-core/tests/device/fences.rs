//! Fences, of events and of words.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use cuda_mem_core::ipc::SharedWords;
use cuda_mem_core::{Error, Fence, FenceLine};

use crate::common::World;
use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::common::outcome::record;

/// Long enough to be no accident, short enough to wait for.
const SOON: Duration = Duration::from_millis(30);

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
        fence.make_wait(&other).unwrap();
        assert!(!other.is_idle().unwrap(), "{kind}");
        gate.open();
        other.synchronize().unwrap();
        fence.make_wait(&other).unwrap();
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
    fence.make_wait(&waiting).unwrap();
    assert!(!waiting.is_idle().unwrap());
    line.poison();
    waiting.synchronize().unwrap();
    for (call, result) in [
        ("is_complete", fence.is_complete().map(drop)),
        ("synchronize", fence.synchronize(None)),
        ("make_wait", fence.make_wait(&waiting)),
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
    fence.make_wait(&waiting).unwrap();
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
    fence.make_wait(&waiting).unwrap();
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

/// The writer moves the word back before the other stream has come to its wait, for a fence that was never recorded.
#[test]
fn a_line_that_goes_away_lets_its_waiters_go_for_good() {
    let world = World::new();
    let (writer, waiting) = (world.new_stream(), world.new_stream());
    let (of_writer, of_waiting) = (Gate::before(&writer), Gate::before(&waiting));
    let line = FenceLine::new(&world.context).unwrap();
    line.record(&writer).unwrap();
    line.fence(2).unwrap().make_wait(&waiting).unwrap();
    let (gone, dropped) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(line);
        gone.send(()).unwrap();
    });
    // So that the poison comes first.
    std::thread::sleep(SOON);
    of_writer.open();
    writer.synchronize().unwrap();
    of_waiting.open();
    dropped.recv_timeout(Duration::from_secs(60)).expect("nobody waits for the fence any more");
    assert!(waiting.is_idle().unwrap());
}

/// The poison lets the second writer go before the first one, which moves the word back below the recorded fence.
#[test]
fn a_line_of_several_writers_that_goes_away_lets_its_waiters_go_for_good() {
    let world = World::new();
    let (first, second, waiting) = (world.new_stream(), world.new_stream(), world.new_stream());
    let (of_first, of_waiting) = (Gate::before(&first), Gate::before(&waiting));
    let line = FenceLine::new(&world.context).unwrap();
    line.record(&first).unwrap();
    line.record(&second).unwrap().make_wait(&waiting).unwrap();
    let (gone, dropped) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(line);
        gone.send(()).unwrap();
    });
    second.synchronize().unwrap();
    of_first.open();
    first.synchronize().unwrap();
    of_waiting.open();
    dropped.recv_timeout(Duration::from_secs(60)).expect("the line was let go");
    assert!(waiting.is_idle().unwrap());
}

/// The words of another process, and those of this one, which are the same.
fn words_of_both(world: &World) -> [SharedWords; 2] {
    let theirs = SharedWords::create(&world.context, 64).unwrap();
    let mine = SharedWords::open(&world.context, theirs.as_fd().try_clone_to_owned().unwrap()).unwrap();
    [theirs, mine]
}

/// As above, with words that another process has too, and with a stream that captures when they go: nobody can wait for it then.
#[test]
fn words_that_go_during_a_capture_let_their_waiters_go_for_good() {
    let world = World::new();
    let (writer, waiting) = (world.new_stream(), world.new_stream());
    let (of_writer, of_waiting) = (Gate::before(&writer), Gate::before(&waiting));
    let [theirs, mine] = words_of_both(&world);
    theirs.line(7).unwrap().record(&writer).unwrap();
    mine.line(7).unwrap().fence(2).unwrap().make_wait(&waiting).unwrap();
    let capture = Capture::begin(&waiting, RELAXED);
    drop(mine);
    // The writer moves the word back after the poison, and before the other stream has come to its wait.
    of_writer.open();
    writer.synchronize().unwrap();
    assert_eq!(capture.end().unwrap().len(), 0);
    of_waiting.open();
    let (gone, released) = std::sync::mpsc::channel();
    let driver = world.driver;
    std::thread::spawn(move || {
        while driver.reclaim() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        gone.send(()).unwrap();
    });
    released.recv_timeout(Duration::from_secs(60)).expect("nobody waits for the fence any more");
    assert!(waiting.is_idle().unwrap());
}

/// The other process moves the word back when the fence was reached, and before the stream has come to its wait.
#[test]
fn words_that_go_let_their_waiters_go_though_a_reached_fence_is_taken_back() {
    let world = World::new();
    let (writer, waiting) = (world.new_stream(), world.new_stream());
    let (of_writer, of_waiting) = (Gate::before(&writer), Gate::before(&waiting));
    let [theirs, mine] = words_of_both(&world);
    theirs.line(7).unwrap().record(&writer).unwrap();
    mine.line(7).unwrap().fence(1).unwrap().make_wait(&waiting).unwrap();
    of_writer.open();
    writer.synchronize().unwrap();
    let (gone, dropped) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        drop(mine);
        gone.send(()).unwrap();
    });
    std::thread::sleep(SOON);
    theirs.mapping().write(7 * 64, &[0; 8]).unwrap();
    of_waiting.open();
    dropped.recv_timeout(Duration::from_secs(60)).expect("nobody waits for the fence any more");
    assert!(waiting.is_idle().unwrap());
}

#[test]
fn poison_holds_against_a_writer_that_lives_on() {
    let world = World::new();
    let (dead, alive, waiting) = (world.new_stream(), world.new_stream(), world.new_stream());
    let (of_alive, of_dead, of_waiting) = (Gate::before(&alive), Gate::before(&dead), Gate::before(&waiting));
    let line = FenceLine::new(&world.context).unwrap();
    line.record(&alive).unwrap();
    let never = line.record(&dead).unwrap();
    never.make_wait(&waiting).unwrap();
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

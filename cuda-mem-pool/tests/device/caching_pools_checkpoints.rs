//! Layouts of private pools of `CachingAllocator`, kept and brought back: after captures, and as the history sees it.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use cuda_mem_core::{Event, Stream};
use cuda_mem_pool::history::{HistoryOptions, RecordContext};
use cuda_mem_pool::segments::{Filter, PoolError};
use cuda_mem_pool::snapshot::{Action, Frame, TraceEntry};
use cuda_mem_pool::{Error, MempoolId};

use crate::common::World;
use crate::common::capture::{Capture, GLOBAL, RELAXED, THREAD_LOCAL};
use crate::common::gate::Gate;
use crate::support::{allocator, free, on, shown};

const MIB: usize = 1 << 20;

/// Has `later` come behind all that `earlier` was given.
fn join(earlier: &Stream, later: &Stream) {
    let event = Event::new(earlier.context()).unwrap();
    earlier.record(&event).unwrap();
    // SAFETY: nobody else works at the captures of this test, and its graphs are not launched.
    unsafe { later.join_capture(&event) }.unwrap();
}

/// What graph trees do after each recording.
#[test]
fn a_capture_in_which_another_stream_used_a_freed_block_can_be_followed_by_a_checkpoint() {
    let world = World::new();
    for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
        let (allocator, id) = (allocator(&world), MempoolId::for_graph());
        let (stream, side) = (world.new_stream(), world.new_stream());
        allocator.begin_allocate_to_pool(id, on(&stream)).unwrap();
        let capture = Capture::begin(&stream, mode);
        let [kept, block] = [(); 2].map(|()| allocator.allocate_by_address(MIB, &stream).unwrap());
        join(&stream, &side);
        allocator.record_stream(block, &side).unwrap();
        join(&side, &stream);
        free(&allocator, block);
        let refused = allocator.checkpoint_pool(id).map(drop).unwrap_err();
        let pending = PoolError::Pending { address: block };
        assert!(matches!(&refused, Error::Pool(error) if *error == pending), "{refused}: it captures yet");
        drop(capture.end().expect("the capture survives"));
        allocator.end_allocate_to_pool(id).unwrap();
        let checkpoint = allocator.checkpoint_pool(id).unwrap();
        assert_eq!(allocator.statistics().active.all.current, 1);
        free(&allocator, kept);
        // SAFETY: nothing uses the block that comes back.
        let restored = unsafe { allocator.restore_pool(id, &checkpoint) }.unwrap();
        assert_eq!(restored.allocated, [kept]);
        free(&allocator, kept);
        allocator.release_pool(id).unwrap();
    }
}

#[test]
fn uses_outside_of_captures_are_waited_for() {
    let world = World::new();
    let (allocator, id) = (allocator(&world), MempoolId::for_graph());
    let (stream, side) = (world.new_stream(), world.new_stream());
    allocator.begin_allocate_to_pool(id, on(&stream)).unwrap();
    let take = || allocator.allocate_by_address(MIB, &stream).unwrap();
    let blocks = [take(), take()];
    allocator.end_allocate_to_pool(id).unwrap();
    let used = |block: u64| {
        let gate = Gate::before(&side);
        allocator.record_stream(block, &side).unwrap();
        free(&allocator, block);
        gate
    };
    let meanwhile = |gate: Gate, call: &dyn Fn()| {
        thread::scope(|scope| {
            scope.spawn(|| {
                // So that the wait has begun, if there is one.
                thread::sleep(Duration::from_millis(20));
                gate.open();
            });
            call();
        });
        assert!(side.is_idle().unwrap());
    };
    let gate = used(blocks[0]);
    meanwhile(gate, &|| drop(allocator.checkpoint_pool(id).unwrap()));
    let checkpoint = allocator.checkpoint_pool(id).unwrap();
    let gate = used(blocks[1]);
    meanwhile(gate, &|| {
        // SAFETY: nothing uses the block that comes back but what was recorded.
        let restored = unsafe { allocator.restore_pool(id, &checkpoint) }.unwrap();
        assert!(restored.freed.is_empty());
    });
    assert!(allocator.check_pool_live_allocations(id, &HashSet::from([blocks[1]])).unwrap());
    free(&allocator, blocks[1]);
    allocator.release_pool(id).unwrap();
}

/// Holds up whoever tells that a block is free again.
struct HoldsUp {
    is_told: Sender<()>,
    goes_on: Mutex<Receiver<()>>,
}

impl HoldsUp {
    fn track(&self, entry: &TraceEntry) {
        if entry.action == Action::FreeCompleted {
            self.is_told.send(()).unwrap();
            self.goes_on.lock().unwrap().recv().unwrap();
        }
    }
}

#[test]
fn a_block_that_another_thread_is_about_to_give_back_is_waited_for() {
    let world = World::new();
    let (allocator, id) = (allocator(&world), MempoolId::for_graph());
    let (stream, side) = (world.new_stream(), world.new_stream());
    allocator.begin_allocate_to_pool(id, on(&stream)).unwrap();
    let block = allocator.allocate_by_address(MIB, &stream).unwrap();
    allocator.end_allocate_to_pool(id).unwrap();
    let gate = Gate::before(&side);
    allocator.record_stream(block, &side).unwrap();
    free(&allocator, block);
    gate.open();
    side.synchronize().unwrap();
    let ((is_told, told), (go_on, goes_on)) = (channel(), channel());
    let holds_up = HoldsUp { is_told, goes_on: Mutex::new(goes_on) };
    let tracker = allocator.history().attach(move |entry| holds_up.track(entry));
    let outcome = thread::scope(|scope| {
        scope.spawn(|| allocator.empty_cache().unwrap());
        told.recv().unwrap();
        scope.spawn(move || {
            // So that the wait has begun, if there is one.
            thread::sleep(Duration::from_millis(20));
            go_on.send(()).unwrap();
        });
        allocator.checkpoint_pool(id)
    });
    outcome.unwrap();
    assert!(allocator.history().detach(tracker));
    allocator.release_pool(id).unwrap();
}

/// A provider of stacks of one frame, whose line is what the test says.
fn frames(line: &Arc<AtomicU32>) -> impl Fn() -> Arc<[Frame]> + Send + Sync + 'static {
    let line = Arc::clone(line);
    move || {
        Arc::<[Frame]>::from([Frame {
            filename: "here".into(),
            line: line.load(Ordering::SeqCst),
            name: "f".into(),
        }])
    }
}

fn line_of(frames: Option<&Arc<[Frame]>>) -> Option<u32> {
    Some(frames?.first()?.line)
}

#[test]
fn a_restored_pool_is_in_the_history() {
    use Action::{Alloc, FreeCompleted, FreeRequested};

    let world = World::new();
    let stream = world.stream.clone();
    // The lines of the two frees, where those have their own stacks and where they have the block's.
    for (context, frees) in [(RecordContext::Alloc, [1, 3]), (RecordContext::All, [4, 4])] {
        let (allocator, id) = (allocator(&world), MempoolId::for_graph());
        let line = Arc::new(AtomicU32::new(1));
        let history = allocator.history();
        history.start(&HistoryOptions::default().with_frames(context, frames(&line)));
        let at = |now: u32| line.store(now, Ordering::SeqCst);
        allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
        let [kept, gone] = [(); 2].map(|()| allocator.allocate_by_address(1000, &stream).unwrap());
        let checkpoint = allocator.checkpoint_pool(id).unwrap();
        at(2);
        free(&allocator, gone);
        at(3);
        let late = allocator.allocate_by_address(5 * MIB, &stream).unwrap();
        at(4);
        let before = history.entries().len();
        // SAFETY: nothing uses any of the blocks, and nobody frees those that are freed here.
        unsafe { allocator.restore_pool(id, &checkpoint) }.unwrap();

        let mut told: Vec<_> = history.entries().split_off(before);
        assert!(told.iter().all(|entry| (entry.pool, entry.stream) == (id, shown(&stream))), "{told:?}");
        let frees_come_first = told.is_sorted_by_key(|entry| entry.action == Alloc);
        assert!(frees_come_first, "{told:?}");
        told.sort_by_key(|entry| (entry.action == Alloc, entry.size));
        let shown = |entry: &TraceEntry| {
            (entry.action, entry.address, entry.size as usize, line_of(entry.frames.as_ref()))
        };
        let expected = [
            (FreeRequested, kept, 1000, Some(frees[0])),
            (FreeCompleted, kept, 1000, Some(frees[0])),
            (FreeRequested, late, 5 * MIB, Some(frees[1])),
            (FreeCompleted, late, 5 * MIB, Some(frees[1])),
            (Alloc, kept.min(gone), 1000, Some(4)),
            (Alloc, kept.max(gone), 1000, Some(4)),
        ];
        assert_eq!(told.iter().map(shown).collect::<Vec<_>>(), expected);

        // Whoever is where a freed block was has not its stack.
        history.stop();
        assert_eq!(allocator.allocate_by_address(5 * MIB, &stream).unwrap(), late);
        let stack = |address: u64| {
            let snapshot = allocator.snapshot();
            let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
            let found = blocks.into_iter().find(|block| block.address == address);
            line_of(found.and_then(|block| block.frames.as_ref()))
        };
        assert_eq!([kept, gone, late].map(stack), [Some(4), Some(4), None]);
        [kept, gone, late].into_iter().for_each(|block| free(&allocator, block));
        allocator.end_allocate_to_pool(id).unwrap();
        allocator.release_pool(id).unwrap();
    }
}

/// Nothing was changed, and nothing is told.
#[test]
fn what_cannot_be_restored_is_not_in_the_history() {
    let world = World::new();
    let (allocator, stream) = (allocator(&world), world.stream.clone());
    let [one, other] = [MempoolId::for_graph(), MempoolId::for_graph()];
    let blocks = [one, other].map(|id| {
        allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
        let block = allocator.allocate_by_address(1000, &stream).unwrap();
        allocator.end_allocate_to_pool(id).unwrap();
        block
    });
    let checkpoint = allocator.checkpoint_pool(one).unwrap();
    allocator.history().start(&HistoryOptions::default());
    // SAFETY: refused, because its segments are another pool's.
    let refused = unsafe { allocator.restore_pool(other, &checkpoint) }.map(drop).unwrap_err();
    assert!(matches!(refused, Error::Pool(_)), "{refused}");
    assert!(allocator.history().entries().is_empty());
    blocks.into_iter().for_each(|block| free(&allocator, block));
    [one, other].into_iter().for_each(|id| allocator.release_pool(id).unwrap());
}

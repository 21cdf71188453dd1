//! What callbacks about changing memory may do, while the allocator is locked by the thread that they are called by.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use cuda_mem_core::{Context, Stream};
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions, Pin};
use cuda_mem_pool::history::{HistoryOptions, RecordContext};
use cuda_mem_pool::segments::Filter;
use cuda_mem_pool::snapshot::{Action, Frame, TraceEntry};
use cuda_mem_pool::{Error, MemoryResource, MempoolId};
use cuda_mem_sim::Sim;

use crate::blocks::free;
use crate::caching_pins::Holes;
use crate::common::gate::Gate;
use crate::rig::on;

const MIB: usize = 1 << 20;

/// Runs a test in a thread of its own, so that one that waits for ever fails instead.
pub(crate) fn within_a_minute(test: impl FnOnce() + Send + 'static) {
    let (ends, end) = channel::<()>();
    let thread = thread::spawn(move || {
        let _ends = ends;
        test();
    });
    let ended = end.recv_timeout(Duration::from_secs(60));
    assert_eq!(ended, Err(RecvTimeoutError::Disconnected), "it waits for ever");
    thread.join().unwrap_or_else(|panic| resume_unwind(panic));
}

fn on_small(test: impl FnOnce(&Context) + Send + 'static) {
    within_a_minute(|| on(Sim::builder().memory(64 << 20), |_, context| test(context)));
}

/// What happened to a block, in order. Memory may begin where it does.
fn actions(entries: &[TraceEntry], address: u64) -> Vec<Action> {
    let of_block = |entry: &&TraceEntry| {
        entry.address == address && !matches!(entry.action, Action::SegmentMap | Action::SegmentUnmap)
    };
    entries.iter().filter(of_block).map(|entry| entry.action).collect()
}

const FREED: [Action; 2] = [Action::FreeRequested, Action::FreeCompleted];

/// Keeps what it is told.
#[derive(Default)]
struct Told(Mutex<Vec<TraceEntry>>);

impl Told {
    fn track(&self, entry: &TraceEntry) {
        self.0.lock().unwrap().push(entry.clone());
    }
}

/// With somebody who listens or nobody. The block that the watcher freed, of the stream whose heap is locked meanwhile.
fn a_watcher_meets_no_lock(context: &Context, listen: impl FnOnce(&CachingAllocator)) -> u64 {
    let all = Holes::new(context);
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let (seen, allocator, stream) = (Arc::clone(&outcomes), all.allocator.clone(), all.stream.clone());
    let first = Mutex::new(Some(all.allocator.pin(all.kept[0], 1, Pin::DlPack).unwrap()));
    let mine = all.allocator.allocate_by_address(1000, &all.stream).unwrap();
    let (freed, answered) = (AtomicBool::new(false), Arc::new(AtomicUsize::new(0)));
    let asked = Arc::clone(&answered);
    listen(&all.allocator);
    // With memory that emptying would give back.
    let released = MempoolId::for_user();
    all.allocator.begin_allocate_to_pool(released, Filter::this_thread()).unwrap();
    let of_pool = all.allocator.allocate_by_address(1000, &all.stream).unwrap();
    all.allocator.end_allocate_to_pool(released).unwrap();
    free(&all.allocator, of_pool);
    all.allocator.release_pool(released).unwrap();
    let kept = all.kept[0];
    let id = all.allocator.attach_backing_watcher(move |change| {
        drop(first.lock().unwrap().take());
        if !freed.swap(true, Ordering::SeqCst) {
            free(&allocator, mine);
        }
        seen.lock().unwrap().extend([
            allocator.allocate_by_address(20 * MIB, &stream).map(|_| ()),
            allocator.segment(change.address).map(|_| ()),
            allocator.pin(change.address, 1, Pin::Graph).map(|_| ()),
            allocator.generation(change.address, 1).map(|_| ()),
            allocator.empty_cache().map(|_| ()),
            allocator.empty_pool_cache(MempoolId::NONE).map(|_| ()),
            allocator.set_memory_fraction(0.5),
            allocator.pin(kept, 1, Pin::Exported).map(|_| ()),
        ]);
        // What needs no lock answers.
        assert!(allocator.base_allocation(kept).is_ok());
        let held = allocator.statistics().reserved_bytes.all.current;
        assert!(held > 0 && allocator.reserved_bytes() > 0 && allocator.metadata_bytes() > 0);
        assert!(!allocator.snapshot().segments.is_empty());
        asked.fetch_add(1, Ordering::SeqCst);
        panic!("a watcher that fails");
    });
    all.free(&all.holes);
    let block = all.allocator.allocate_by_address(32 * MIB, &all.stream).unwrap();
    assert!(all.allocator.detach(id));
    let outcomes = std::mem::take(&mut *outcomes.lock().unwrap());
    assert!(answered.load(Ordering::SeqCst) > 0);
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Err(Error::InCallback))), "{outcomes:?}");
    assert!(all.allocator.pins().is_empty());
    all.free(&[block]);
    all.free(&all.kept);
    // Takes in what was freed while the heap was locked.
    all.allocator.empty_cache().unwrap();
    assert_eq!(all.allocator.statistics().active_bytes.all.current, 0);
    let entries = all.allocator.history().entries();
    if all.allocator.history().is_recording() {
        assert_eq!(actions(&entries, mine), FREED);
    }
    mine
}

#[test]
fn a_watcher_meets_no_lock_where_nobody_listens() {
    on_small(|context| {
        a_watcher_meets_no_lock(context, |_| {});
    });
}

#[test]
fn a_watcher_meets_no_lock_where_history_is_recorded() {
    on_small(|context| {
        a_watcher_meets_no_lock(context, |allocator| {
            allocator.history().start(&HistoryOptions::default());
        });
    });
}

#[test]
fn a_watcher_meets_no_lock_where_a_tracker_is_told() {
    on_small(|context| {
        let told = Arc::new(Told::default());
        let mine = a_watcher_meets_no_lock(context, |allocator| {
            let telling = told.clone();
            allocator.history().attach(move |entry| telling.track(entry));
        });
        assert_eq!(actions(&told.0.lock().unwrap(), mine), FREED);
    });
}

/// A block of the locked heap comes to its end meanwhile, which who grows looks for.
#[test]
fn a_watcher_gets_what_a_private_pool_has_and_no_more() {
    on_small(|context| {
        let all = Holes::new(context);
        all.allocator.history().attach(|_| ());
        let (allocator, stream) = (all.allocator.clone(), all.stream.clone());
        let other = Stream::new(context).unwrap();
        let id = MempoolId::for_user();
        allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
        free(&allocator, allocator.allocate_by_address(1000, &stream).unwrap());
        allocator.end_allocate_to_pool(id).unwrap();
        let waits = allocator.allocate_by_address(1000, &stream).unwrap();
        let gate = Gate::before(&other);
        allocator.record_stream(waits, &other).unwrap();
        free(&allocator, waits);
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&outcomes);
        let watcher = allocator.clone();
        let watching = allocator.attach_backing_watcher(move |_| {
            gate.open();
            other.synchronize().unwrap();
            watcher.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
            let hit = watcher.allocate_by_address(1000, &stream).map(|address| free(&watcher, address));
            let missed = watcher.allocate_by_address(4 * MIB, &stream).map(|_| ());
            watcher.end_allocate_to_pool(id).unwrap();
            watcher.release_pool(id).unwrap();
            seen.lock().unwrap().push((hit, missed));
        });
        all.free(&all.holes);
        let block = allocator.allocate_by_address(28 * MIB, &all.stream).unwrap();
        assert!(allocator.detach(watching));
        let outcomes = std::mem::take(&mut *outcomes.lock().unwrap());
        assert!(!outcomes.is_empty());
        assert!(
            outcomes.iter().all(|outcome| matches!(outcome, (Ok(()), Err(Error::InCallback)))),
            "{outcomes:?}"
        );
        all.free(&[block]);
        all.free(&all.kept);
        allocator.release_pool(id).unwrap();
        all.stream.synchronize().unwrap();
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.statistics().active_bytes.all.current, 0);
    });
}

/// Once, for one address, it allocates while a watcher has the heap.
struct Allocates {
    allocator: CachingAllocator,
    stream: Stream,
    armed: AtomicBool,
    is_in_tracker: Sender<()>,
    is_watching: Mutex<Receiver<()>>,
    told: Told,
}

impl Allocates {
    fn track(&self, entry: &TraceEntry) {
        self.told.track(entry);
        if self.armed.swap(false, Ordering::SeqCst) {
            self.is_in_tracker.send(()).unwrap();
            self.is_watching.lock().unwrap().recv().unwrap();
            free(&self.allocator, self.allocator.allocate_by_address(1000, &self.stream).unwrap());
        }
    }
}

/// A tracker that waits for a heap has the others wait who tell, but not the watcher that has the heap.
#[test]
fn a_watcher_waits_for_no_tracker() {
    on_small(|context| {
        let all = Holes::new(context);
        let allocator = all.allocator.clone();
        let elsewhere = Stream::new(context).unwrap();
        let id = MempoolId::for_user();
        allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
        let private = allocator.allocate_by_address(1000, &elsewhere).unwrap();
        allocator.end_allocate_to_pool(id).unwrap();
        let mine = allocator.allocate_by_address(1000, &elsewhere).unwrap();
        let small = allocator.allocate_by_address(1000, &all.stream).unwrap();
        all.free(&all.holes);

        let ((is_in_tracker, in_tracker), (watches, is_watching)) = (channel(), channel());
        let tracker = Arc::new(Allocates {
            allocator: allocator.clone(),
            stream: all.stream.clone(),
            armed: AtomicBool::new(true),
            is_in_tracker,
            is_watching: Mutex::new(is_watching),
            told: Told::default(),
        });
        let tracking = tracker.clone();
        let attached = allocator.history().attach(move |entry| tracking.track(entry));
        let freed = AtomicBool::new(false);
        let watcher = allocator.clone();
        let watching = allocator.attach_backing_watcher(move |_| {
            if !freed.swap(true, Ordering::SeqCst) {
                watches.send(()).unwrap();
                free(&watcher, mine);
                free(&watcher, private);
            }
        });
        let block = thread::scope(|scope| {
            scope.spawn(|| free(&allocator, allocator.allocate_by_address(1000, &elsewhere).unwrap()));
            in_tracker.recv().unwrap();
            allocator.allocate_by_address(32 * MIB, &all.stream).unwrap()
        });
        assert!(allocator.detach(watching) && allocator.history().detach(attached));
        for address in [mine, private] {
            let told = actions(&tracker.told.0.lock().unwrap(), address);
            assert!(told.starts_with(&FREED), "{told:?}");
        }
        all.free(&[block, small]);
        all.free(&all.kept);
        allocator.release_pool(id).unwrap();
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.statistics().active_bytes.all.current, 0);
    });
}

/// What cannot be taken back while the heap is locked is offered again.
#[test]
fn an_owner_that_is_dropped_in_a_watcher_is_not_lost() {
    // More than a thread leaves to a heap that somebody has.
    const MANY: usize = 300;
    on_small(|context| {
        let all = Holes::new(context);
        let allocator = all.allocator.clone();
        let other = Stream::new(context).unwrap();
        let recorded = allocator.allocate(1000, &all.stream).unwrap();
        allocator.record_stream(recorded.address(), &other).unwrap();
        let mut owners = vec![recorded];
        owners.extend((0..MANY).map(|_| allocator.allocate(1000, &all.stream).unwrap()));
        let dropped = Mutex::new(owners);
        let watching = allocator.attach_backing_watcher(move |_| dropped.lock().unwrap().clear());
        all.free(&all.holes);
        let block = allocator.allocate_by_address(28 * MIB, &all.stream).unwrap();
        assert!(allocator.detach(watching));
        let driver = context.driver();
        assert_eq!((driver.reclaim(), driver.release_failures()), (0, 0));
        all.free(&[block]);
        all.free(&all.kept);
        context.synchronize().unwrap();
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.statistics().active_bytes.all.current, 0);
    });
}

/// It would be asked for the stack of what it does itself, and so on.
#[test]
fn what_tells_stacks_may_allocate() {
    on_small(|context| {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        let stream = Stream::new(context).unwrap();
        let depth = AtomicUsize::new(0);
        let (within, of) = (allocator.clone(), stream.clone());
        let frames = move || {
            let before = depth.fetch_add(1, Ordering::SeqCst);
            if before < 5 {
                drop(within.allocate(3 * MIB, &of).unwrap());
            }
            depth.store(before, Ordering::SeqCst);
            let frame = Frame { filename: "here".into(), line: before as u32, name: "told".into() };
            Arc::<[Frame]>::from([frame])
        };
        allocator.history().start(&HistoryOptions::default().with_frames(RecordContext::All, frames));
        let block = allocator.allocate(8 * MIB, &stream).unwrap();
        drop(block);
        let entries = allocator.history().entries();
        let depths: Vec<_> =
            entries.iter().filter_map(|entry| Some(entry.frames.as_ref()?.first()?.line)).collect();
        assert!(depths.len() >= 3 && depths.iter().all(|depth| *depth == 0), "{depths:?}");
        let alloc = |entry: &&TraceEntry| entry.action == Action::Alloc;
        assert!(entries.iter().filter(alloc).count() > 1, "what it does is recorded too");
        // It holds the allocator.
        allocator.history().stop();
    });
}

/// Panics when it is dropped, as what a callback has captured may.
pub(crate) struct Bomb(pub(crate) Arc<AtomicUsize>);

impl Drop for Bomb {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        resume_unwind(Box::new("what was captured panics as it goes"));
    }
}

/// Detached from within, it is dropped where it was called, with the page source locked and a change half done.
#[test]
fn a_watcher_that_ends_itself_may_panic_as_it_goes() {
    on_small(|context| {
        let all = Holes::new(context);
        let (went, own) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None)));
        let (bomb, id, allocator) = (Bomb(Arc::clone(&went)), Arc::clone(&own), all.allocator.clone());
        *own.lock().unwrap() = Some(all.allocator.attach_backing_watcher(move |_| {
            let _ = &bomb;
            if let Some(id) = id.lock().unwrap().take() {
                assert!(allocator.detach(id));
            }
        }));
        all.free(&all.holes);
        let block = all.allocator.allocate_by_address(32 * MIB, &all.stream).unwrap();
        assert_eq!(went.load(Ordering::SeqCst), 1);
        all.free(&[block]);
        all.free(&all.kept);
        all.allocator.empty_cache().unwrap();
        assert_eq!(
            (all.allocator.reserved_bytes(), all.allocator.statistics().active_bytes.all.current),
            (0, 0)
        );
    });
}

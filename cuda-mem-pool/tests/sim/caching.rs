//! The caching allocator where others went wrong: order over three streams, captures, devices, threads, streams that are gone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, Driver, Error as CoreError, Stream};
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions, CallObserver, DriverCall, Pin, Pinned};
use cuda_mem_pool::history::{HistoryOptions, RecordContext};
use cuda_mem_pool::segments::Filter;
use cuda_mem_pool::snapshot::Action;
use cuda_mem_pool::statistics::{DeviceStatistics, Stat};
use cuda_mem_pool::{Error, MemoryResource, MempoolId, TrackingAdaptor};
use cuda_mem_sim::Sim;

use crate::blocks::{allocator, free};
use crate::common::capture::{Capture, GLOBAL, RELAXED};
use crate::common::child;
use crate::common::gate::Gate;
use crate::common::is_filled;
use crate::interrupted::until;
use crate::rig::{expect_clean, on, on_simulator};

const MIB: usize = 1 << 20;

/// A device with room for one large block at a time.
fn on_small(test: impl FnOnce(&Sim, &Context)) {
    on(Sim::builder().memory(64 << 20).workers(2), test);
}

/// RMM gave a third stream memory that the first one still wrote, because the second had taken it without using it.
#[test]
fn a_third_stream_waits_for_the_first() {
    on_small(|_, context| {
        let allocator = allocator(context);
        let [a, b, c] = [(); 3].map(|()| Stream::new(context).unwrap());
        let gate = Gate::before(&a);
        let mut block = allocator.allocate(40 * MIB, &a).unwrap();
        block.as_device_range().fill_bytes(&a, 1).unwrap();
        drop(block);
        drop(allocator.allocate(60 * MIB, &b).unwrap());
        let mut block = allocator.allocate(40 * MIB, &c).unwrap();
        block.as_device_range().fill_bytes(&c, 3).unwrap();
        assert!(!c.is_idle().unwrap(), "its work waits for that of the first stream");
        gate.open();
        assert!(is_filled(&block.to_vec(&c).unwrap(), 3));
    });
}

/// Of a heap that has nothing to give and wants nothing nobody asks how far its stream has come.
#[test]
fn memory_that_is_given_back_again_and_again_takes_no_more_events() {
    on_small(|sim, context| {
        let (allocator, stream) = (allocator(context), Stream::new(context).unwrap());
        let kept = allocator.allocate(MIB / 2, &stream).unwrap();
        let before = sim.log().count("cuEventCreate");
        for _ in 0..200 {
            allocator.empty_cache().unwrap();
            stream.synchronize().unwrap();
        }
        let made = sim.log().count("cuEventCreate") - before;
        assert!(made < 80, "{made} events for 200 times");
        drop(kept);
    });
}

/// Nobody can name that stream, and beside a capture nobody can wait for the whole context.
#[test]
fn memory_of_another_threads_stream_stays_mapped_where_nobody_can_wait_for_it() {
    let sim = Sim::builder().build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let (allocator, captures) = (allocator(&context), Stream::new(&context).unwrap());
    let uses = || {
        let stream = Stream::per_thread(&context).unwrap();
        let gate = Gate::before(&stream);
        let mut block = allocator.allocate(4 * MIB, &stream).unwrap();
        block.as_device_range().fill_bytes(&stream, 1).unwrap();
        gate
    };
    let gate = thread::scope(|scope| scope.spawn(uses).join().unwrap());
    let capture = Capture::begin(&captures, GLOBAL);
    drop(allocator);
    capture.end().unwrap();
    gate.open();
    let misuse: Vec<_> = sim.misuse().iter().map(ToString::to_string).collect();
    assert!(misuse.is_empty(), "misused: {misuse:#?}");
}

/// The driver maps a row, lets the device in to none of it, and does not take it away either.
#[test]
fn a_row_that_was_left_half_mapped_keeps_nothing_from_its_addresses() {
    on_small(|sim, context| {
        let allocator = allocator(context);
        let stream = Stream::new(context).unwrap();
        for function in ["cuMemSetAccess", "cuMemUnmap"] {
            sim.fail_call(function, 1, CUresult::CUDA_ERROR_UNKNOWN);
        }
        assert!(allocator.allocate(40 * MIB, &stream).is_err());
        assert_eq!(allocator.reserved_bytes(), 0);
        let mut block = allocator.allocate(60 * MIB, &stream).unwrap();
        block.as_device_range().fill_bytes(&stream, 3).unwrap();
        assert!(is_filled(&block.to_vec(&stream).unwrap(), 3));
    });
}

#[test]
fn a_block_freed_behind_another_stream_comes_back_when_that_is_done() {
    on_small(|_, context| {
        let allocator = allocator(context);
        let [home, other] = [(); 2].map(|()| Stream::new(context).unwrap());
        for _ in 0..3 {
            let address = allocator.allocate_by_address(40 * MIB, &home).unwrap();
            let layout = std::alloc::Layout::from_size_align(40 * MIB, 256).unwrap();
            // SAFETY: allocated above, and not used.
            unsafe { allocator.raw().deallocate(address, layout, &other) }.unwrap();
        }
        other.synchronize().unwrap();
        allocator.empty_cache().unwrap();
        let statistics = allocator.statistics();
        assert_eq!((statistics.active.all.current, allocator.reserved_bytes()), (0, 0));
    });
}

/// Of many uses those are forgotten that seem to be over, and others are looked at: neither is the end of what a stream is given.
#[test]
fn a_block_that_many_streams_used_waits_for_what_each_was_given_until_its_free() {
    for was_busy in [false, true] {
        on(Sim::builder(), |_, context| {
            let (allocator, home) = (allocator(context), Stream::new(context).unwrap());
            let users: Vec<_> = (0..40).map(|_| Stream::new(context).unwrap()).collect();
            let [before, since] = [(); 2].map(|()| Gate::new(context));
            if was_busy {
                assert!(!users[0].as_raw().is_null());
                before.hold(&users[0]);
            }
            let address = allocator.allocate_by_address(4 * MIB, &home).unwrap();
            users.iter().for_each(|user| allocator.record_stream(address, user).unwrap());
            since.hold(&users[0]);
            before.open();
            free(&allocator, address);
            thread::sleep(Duration::from_millis(20));
            let other = allocator.allocate_by_address(4 * MIB, &home).unwrap();
            assert_ne!(other, address, "a stream uses it");
            since.open();
            comes_back(&allocator, address, &home);
            free(&allocator, other);
        });
    }
}

/// The point of its record is before what the stream was given since, and while it captures there is none behind that.
#[test]
fn a_block_waits_for_what_the_freeing_threads_default_stream_was_given_before_it_captured() {
    on(Sim::builder(), |sim, context| {
        // The stream is known by its context alone.
        // SAFETY: a live context.
        let _ = unsafe { sim.table().cuCtxSetCurrent().unwrap()(context.as_raw().cast()) };
        let (allocator, home) = (allocator(context), Stream::new(context).unwrap());
        let used = Stream::per_thread(context).unwrap();
        let address = allocator.allocate_by_address(4 * MIB, &home).unwrap();
        allocator.record_stream(address, &used).unwrap();
        let gate = Gate::before(&used);
        let capture = Capture::begin(&used, RELAXED);
        free(&allocator, address);
        let other = allocator.allocate_by_address(4 * MIB, &home).unwrap();
        assert_ne!(other, address, "the stream uses it");
        assert_eq!(capture.end().unwrap().len(), 0);
        gate.open();
        comes_back(&allocator, address, &home);
        free(&allocator, other);
    });
}

/// It is nobody's: what is recorded now would be of the next block there.
#[test]
fn a_block_that_waits_is_entered_by_no_stream() {
    on_simulator(|_, context| {
        let (allocator, home) = (allocator(context), Stream::new(context).unwrap());
        let (used, address) = (Stream::new(context).unwrap(), allocator.allocate_by_address(4 * MIB, &home));
        let (address, gate) = (address.unwrap(), Gate::before(&used));
        allocator.record_stream(address, &used).unwrap();
        free(&allocator, address);
        let refused = allocator.record_stream(address, &used);
        assert!(
            matches!(refused, Err(Error::UnknownAddress { address: at }) if at == address),
            "{refused:?}"
        );
        gate.open();
        comes_back(&allocator, address, &home);
    });
}

/// A block of 4 MiB, once nothing uses it.
fn comes_back(allocator: &CachingAllocator, address: u64, stream: &Stream) {
    until("the block is back", || {
        let again = allocator.allocate_by_address(4 * MIB, stream).unwrap();
        free(allocator, again);
        again == address
    });
}

#[test]
fn a_capture_survives_reclaim_on_another_thread() {
    on_small(|_, context| {
        let (allocator, going) = (allocator(context), allocator(context));
        let [captured, other] = [(); 2].map(|()| Stream::new(context).unwrap());
        let inside = allocator.allocate(4 * MIB, &captured).unwrap();
        drop(going.allocate(4 * MIB, &other).unwrap());
        drop(allocator.allocate(20 * MIB, &other).unwrap());
        let capture = Capture::begin(&captured, GLOBAL);
        thread::scope(|scope| {
            scope.spawn(|| {
                drop(going);
                drop(allocator.allocate(50 * MIB, &other).unwrap());
                let full = allocator.allocate(100 * MIB, &other);
                assert!(matches!(full, Err(Error::DeviceOutOfMemory(_))), "{full:?}");
                allocator.empty_cache().unwrap();
            });
        });
        // The stream that captures gets memory, but none that it would have to wait for.
        drop(allocator.allocate(50 * MIB, &other).unwrap());
        let gate = allocator.allocate(50 * MIB, &captured);
        assert!(matches!(gate, Ok(_) | Err(Error::DeviceOutOfMemory(_))), "{gate:?}");
        drop(gate);
        assert_eq!(capture.end().expect("the capture is lost").len(), 0);
        drop(inside);
    });
}

#[test]
fn another_threads_default_stream_is_in_nobodys_way() {
    on_small(|_, context| {
        let allocator = allocator(context);
        thread::scope(|scope| {
            scope.spawn(|| {
                let own = Stream::per_thread(context).unwrap();
                drop(allocator.allocate(40 * MIB, &own).unwrap());
            });
        });
        let stream = Stream::new(context).unwrap();
        drop(allocator.allocate(20 * MIB, &stream).unwrap());
        allocator.empty_cache().unwrap();
        let full = allocator.allocate(60 * MIB, &stream);
        assert!(matches!(full, Ok(_) | Err(Error::DeviceOutOfMemory(_))), "{full:?}");
    });
}

#[test]
fn another_devices_context_may_be_current() {
    on(Sim::builder().devices(2).memory(64 << 20), |sim, context| {
        let other = Driver::over(sim.table()).unwrap().device(1).unwrap().primary_context().unwrap();
        let (allocator, stream) = (allocator(context), Stream::new(context).unwrap());
        let foreign = Stream::new(&other).unwrap();
        let block = allocator.allocate(40 * MIB, &stream).unwrap();
        let run = || {
            drop(block);
            drop(allocator.allocate(60 * MIB, &stream).unwrap());
            allocator.empty_cache().unwrap();
            let refused = allocator.allocate(512, &foreign).unwrap_err();
            assert!(matches!(refused, Error::Core(CoreError::ForeignContext { .. })), "{refused}");
        };
        other.with_current(run).unwrap();
        assert_eq!(context.memory_info().unwrap().free, 64 << 20);
    });
}

#[test]
fn blocks_of_a_stream_that_nobody_has_serve_others() {
    on_small(|_, context| {
        let allocator = allocator(context);
        let gone = Stream::new(context).unwrap();
        let gate = Gate::before(&gone);
        let mut block = allocator.allocate(50 * MIB, &gone).unwrap();
        block.as_device_range().fill_bytes(&gone, 1).unwrap();
        drop(gone);
        drop(block);
        let stream = Stream::new(context).unwrap();
        let mut block = allocator.allocate(50 * MIB, &stream).unwrap();
        block.as_device_range().fill_bytes(&stream, 2).unwrap();
        gate.open();
        assert!(is_filled(&block.to_vec(&stream).unwrap(), 2));
    });
}

/// Each thread frees what the one before it has allocated, and ends with frees of others on the way.
fn threads_free_for_each_other(streams: usize) {
    const THREADS: usize = 16;
    const ROUNDS: usize = 150;
    on(Sim::builder().memory(4 << 30), |_, context| {
        let allocator = allocator(context);
        let streams: Vec<_> = (0..streams).map(|_| Stream::new(context).unwrap()).collect();
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel::<u64>()).unzip();
        thread::scope(|scope| {
            for (number, receiver) in receivers.into_iter().enumerate() {
                let sender = senders[(number + 1) % THREADS].clone();
                let (allocator, stream) = (&allocator, &streams[number % streams.len()]);
                scope.spawn(move || {
                    // SAFETY: sent by whoever allocated it, and not used.
                    let free = |address| unsafe { allocator.free_by_address(address) }.unwrap();
                    for round in 0..ROUNDS {
                        let bytes = [700, 20 << 10, 300 << 10, 3 << 20][(number + round) % 4] + round * 512;
                        sender.send(allocator.allocate_by_address(bytes, stream).unwrap()).unwrap();
                        receiver.try_iter().for_each(free);
                    }
                    drop(sender);
                    receiver.iter().for_each(free);
                });
            }
            drop(senders);
        });
        context.synchronize().unwrap();
        allocator.empty_cache().unwrap();
        let statistics = allocator.statistics();
        assert_eq!((statistics.active.all.current, allocator.reserved_bytes()), (0, 0), "frees were lost");
        assert_eq!(statistics.allocation.all.allocated, (THREADS * ROUNDS) as u64);
    });
}

#[test]
fn sixteen_threads_on_one_stream() {
    threads_free_for_each_other(1);
}

#[test]
fn sixteen_threads_on_sixteen_streams() {
    threads_free_for_each_other(16);
}

/// What a thread frees that does not allocate there is left to whoever does, and is free all the same for whoever asks.
#[test]
fn what_is_left_to_the_thread_that_allocates_is_free() {
    on(Sim::builder().memory(400 << 20), |_, context| {
        let allocator = allocator(context);
        let [a, b] = [(); 2].map(|()| Stream::new(context).unwrap());
        let elsewhere = |blocks: Vec<u64>| {
            let free = || {
                // SAFETY: each is allocated below, and not used.
                blocks.iter().for_each(|address| unsafe { allocator.free_by_address(*address) }.unwrap());
            };
            thread::scope(|scope| scope.spawn(free).join().unwrap());
        };
        let active = || allocator.statistics().active.all.current;

        let large = allocator.allocate_by_address(150 * MIB, &a).unwrap();
        let books = allocator.metadata_bytes();
        elsewhere(vec![large]);
        assert!(allocator.metadata_bytes() > books + 512, "a ring is made where the block is left");
        // Another stream has it, for which nothing else is made.
        let other = allocator.allocate_by_address(150 * MIB, &b).unwrap();
        assert!(allocator.reserved_bytes() < 200 * MIB, "{}", allocator.reserved_bytes());
        elsewhere(vec![other]);
        assert_eq!(active(), 0);

        // More than can be left.
        let many = (0..300).map(|_| allocator.allocate_by_address(4096, &a).unwrap()).collect::<Vec<_>>();
        let first = many[0];
        elsewhere(many);
        assert_eq!(active(), 0);
        // The next one of the size is one of them.
        let again = allocator.allocate_by_address(4096, &a).unwrap();
        assert!(again.abs_diff(first) < 2 * MIB as u64);
        elsewhere(vec![again]);
        allocator.empty_cache().unwrap();
        assert_eq!((active(), allocator.reserved_bytes()), (0, 0));
    });
}

#[test]
fn a_forked_child_is_told_so_and_frees_nothing() {
    let sim = Sim::builder().build();
    {
        let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
        let (allocator, stream) = (allocator(&context), Stream::new(&context).unwrap());
        let block = allocator.allocate(MIB, &stream).unwrap();
        let address = allocator.allocate_by_address(MIB, &stream).unwrap();
        let tracked = TrackingAdaptor::new(allocator.clone(), false);
        let known = tracked.allocate(MIB, &stream).unwrap();
        child::forked(|| {
            if tracked.bytes() != Stat::default() || !tracked.outstanding_allocations().is_empty() {
                return Err("allocations of the parent's in a forked child".to_owned());
            }
            let forked = |error: Error| matches!(error, Error::Core(CoreError::Forked));
            if !allocator.allocate_by_address(MIB, &stream).is_err_and(forked) {
                return Err("memory in a forked child".to_owned());
            }
            // SAFETY: it is refused.
            if !unsafe { allocator.free_by_address(address) }.is_err_and(forked) {
                return Err("a free in a forked child".to_owned());
            }
            if !allocator.empty_cache().is_err_and(forked) {
                return Err("memory given back in a forked child".to_owned());
            }
            Ok(())
        });
        drop((block, known));
        // SAFETY: allocated above, and not used.
        unsafe { allocator.free_by_address(address) }.unwrap();
        assert_eq!(allocator.statistics().active.all.current, 0);
    }
    expect_clean(&sim);
}

/// A thread that grows a heap when the process is forked has the page source and that heap, and does not run in the child.
#[test]
fn a_forked_child_waits_for_no_lock_of_its_parent() {
    on(Sim::builder().memory(256 << 20).workers(2), |_, context| {
        let (allocator, getting) = stopping(context);
        let [a, b, c] = [(); 3].map(|()| Stream::new(context).unwrap());
        let address = allocator.allocate_by_address(MIB, &a).unwrap();
        let pinned = allocator.pin(address, MIB, Pin::Exported).unwrap();
        getting.meanwhile(&allocator, &a, || {
            child::forked(|| in_a_forked_child(&allocator, address, [&b, &c], &pinned));
        });
        drop(pinned);
        // SAFETY: allocated above, and not used.
        unsafe { allocator.free_by_address(address) }.unwrap();
    });
}

/// Calls what takes locks of an allocator.
fn in_a_forked_child(
    allocator: &CachingAllocator,
    address: u64,
    [other, new]: [&Stream; 2],
    pinned: &Pinned,
) -> Result<(), String> {
    fn refused<R>(what: &str, result: Result<R, Error>) -> Result<(), String> {
        match result {
            Err(Error::Core(CoreError::Forked)) => Ok(()),
            Err(error) => Err(format!("{what}: {error}\n")),
            Ok(_) => Err(format!("{what} in a forked child\n")),
        }
    }
    let id = MempoolId::for_user();
    refused("record_stream", allocator.record_stream(address, other))?;
    refused("of_stream", allocator.of_stream(new))?;
    refused("set_memory_fraction", allocator.set_memory_fraction(0.5))?;
    refused("begin_allocate_to_pool", allocator.begin_allocate_to_pool(id, Filter::new(|_| true)))?;
    refused("base_allocation", allocator.base_allocation(address))?;
    refused("segment", allocator.segment(address))?;
    refused("generation", allocator.generation(address, MIB))?;
    refused("largest_free_block", allocator.largest_free_block())?;
    refused("stream_segment_sizes", allocator.stream_segment_sizes())?;
    refused("segments", pinned.segments())?;
    refused("export_posix_fds", pinned.export_posix_fds())?;
    allocator.reset_peak_statistics();
    allocator.reset_accumulated_statistics();
    let sizes = [
        allocator.reserved_bytes(),
        allocator.metadata_bytes(),
        allocator.pins().len(),
        allocator.snapshot().segments.len(),
    ];
    if sizes != [0; 4]
        || allocator.driver_calls() > 0
        || allocator.memory_fraction() != 0.0
        || allocator.statistics() != DeviceStatistics::default()
    {
        return Err("figures of the parent's in a forked child\n".to_owned());
    }
    let observer = allocator.attach_oom_observer(|_| {});
    if allocator.detach(observer) {
        return Err("a callback in a forked child\n".to_owned());
    }
    let history = allocator.history();
    history.start(&HistoryOptions::default().with_max_entries(1));
    history.tell(Action::Alloc, address, 1, 0, MempoolId::NONE, None);
    let tracker = history.attach(|entry| panic!("{entry:?} in a forked child"));
    if history.frames(RecordContext::State).is_some()
        || !history.entries().is_empty()
        || history.detach(tracker)
    {
        return Err("a history in a forked child\n".to_owned());
    }
    history.stop();
    Ok(())
}

/// Stops at a large new handle until it is told to go on.
struct Stop {
    armed: AtomicBool,
    here: Mutex<mpsc::Sender<()>>,
    go_on: Mutex<mpsc::Receiver<()>>,
    told: AtomicBool,
}

impl CallObserver for Stop {
    fn called(&self, call: &DriverCall, _took: Duration) {
        if matches!(call, DriverCall::Create { .. }) && self.armed.swap(false, Ordering::SeqCst) {
            self.here.lock().unwrap().send(()).unwrap();
            // Longer than any test takes; it ends for one that would wait for ever.
            let told = self.go_on.lock().unwrap().recv_timeout(Duration::from_secs(60)).is_ok();
            self.told.store(told, Ordering::SeqCst);
        }
    }
}

/// A thread that stops while it gets memory, with the locks that this takes.
struct Getting {
    stop: Arc<Stop>,
    is_here: mpsc::Receiver<()>,
    go: mpsc::Sender<()>,
}

impl Getting {
    /// Does something while that thread is in the driver. It is not to wait for it.
    fn meanwhile(&self, allocator: &CachingAllocator, stream: &Stream, act: impl FnOnce()) {
        self.stop.armed.store(true, Ordering::SeqCst);
        thread::scope(|scope| {
            let getter = scope.spawn(|| allocator.allocate(40 * MIB, stream).unwrap());
            self.is_here.recv().unwrap();
            act();
            self.go.send(()).unwrap();
            drop(getter.join().unwrap());
        });
        assert!(self.stop.told.load(Ordering::SeqCst), "the thread that got memory was waited for");
    }
}

/// An allocator in which such a thread stops.
fn stopping(context: &Context) -> (CachingAllocator, Getting) {
    let ((here, is_here), (go, go_on)) = (mpsc::channel(), mpsc::channel());
    let (armed, told) = Default::default();
    let stop = Arc::new(Stop { armed, here: Mutex::new(here), go_on: Mutex::new(go_on), told });
    let allocator = CachingAllocator::observed(context, &CachingOptions::default(), stop.clone()).unwrap();
    (allocator, Getting { stop, is_here, go })
}

/// While one thread is in the driver, another gets a block out of what its stream has, though it has to join pieces for it.
#[test]
fn who_has_memory_does_not_wait_for_who_gets_some() {
    on(Sim::builder().memory(256 << 20).workers(2), |_, context| {
        let (allocator, getting) = stopping(context);
        let [a, b] = [(); 2].map(|()| Stream::new(context).unwrap());
        // All but one is kept in pieces of one size, which serve no other before they are joined. A heap of which nobody has any
        // would lose all.
        let first = allocator.allocate(16 << 10, &b).unwrap();
        let held = allocator.reserved_bytes();
        let mut pieces = Vec::new();
        pieces.resize_with(held / (16 << 10) - 1, || allocator.allocate(16 << 10, &b).unwrap());
        assert_eq!(allocator.reserved_bytes(), held);
        drop(pieces);
        getting.meanwhile(&allocator, &a, || drop(allocator.allocate(8 << 10, &b).unwrap()));
        assert!(allocator.reserved_bytes() >= held + 40 * MIB);
        drop(first);
    });
}

/// A block that is freed then is left to the heap, which counts it before its own.
#[test]
fn what_was_freed_while_memory_was_got_is_not_there_when_the_peak_rises() {
    on(Sim::builder().workers(2), |_, context| {
        let (allocator, getting) = stopping(context);
        let stream = Stream::new(context).unwrap();
        let first = allocator.allocate(MIB, &stream).unwrap();
        getting.meanwhile(&allocator, &stream, || drop(first));
        assert_eq!(allocator.statistics().requested_bytes.all.peak, 40 * MIB as u64);
    });
}

/// What a heap keeps is there again without a step of cutting or joining, whether other streams were used before it or not.
#[test]
fn idle_streams_leave_their_room_to_the_others() {
    let held = |idle: usize| {
        let sim = Sim::builder().build();
        let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
        let allocator = allocator(&context);
        let allocate = |stream: &Stream, bytes| allocator.allocate(bytes, stream).unwrap();
        // They are kept: what had one that is gone would be the next one's.
        let others: Vec<_> = (0..idle).map(|_| Stream::new(&context).unwrap()).collect();
        others.iter().for_each(|stream| drop(allocate(stream, 512)));
        let before = allocator.reserved_bytes();
        let stream = Stream::new(&context).unwrap();
        let sizes = (0..450).map(|at: usize| (at * 37 % 450 + 1) * 512);
        let mut live: Vec<_> = (0..64).map(|_| None).collect();
        for (at, size) in sizes.cycle().take(32 << 10).enumerate() {
            live[at * 29 % 64] = None;
            live[at * 29 % 64] = Some(allocate(&stream, size));
        }
        allocator.reserved_bytes() - before
    };
    assert!(held(12) <= held(0));
}

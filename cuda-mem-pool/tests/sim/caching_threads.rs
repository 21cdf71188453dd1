//! The default streams of threads that end, and streams that are forgotten: who has their memory then, and behind what.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use cuda_mem_core::copy::memset_async;
use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, Driver, Error as CoreError, Event, Stream};
use cuda_mem_pool::caching::CachingAllocator;
use cuda_mem_pool::{Allocation, DeviceAccessible, Error, MemoryResource};
use cuda_mem_sim::Sim;

use crate::blocks::{allocator, free};
use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::common::is_filled;
use crate::rig::{expect_clean, on};

const MIB: usize = 1 << 20;

/// A device with room for one large block at a time.
fn on_small(test: impl FnOnce(&Sim, &Context)) {
    on(Sim::builder().memory(64 << 20).workers(2), test);
}

fn in_a_thread<R: Send>(body: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| scope.spawn(body).join()).unwrap()
}

/// Blocks that the thread's default stream writes; it has done all when this returns.
fn work(allocator: &CachingAllocator, context: &Context) {
    let own = Stream::per_thread(context).unwrap();
    for bytes in [1000, 3 * MIB] {
        let mut block = allocator.allocate(bytes, &own).unwrap();
        block.as_device_range().range(..1000).unwrap().fill_bytes(&own, 1).unwrap();
    }
    own.synchronize().unwrap();
}

#[test]
fn threads_leave_neither_books_nor_memory_behind() {
    on(Sim::builder(), |_, context| {
        let allocator = allocator(context);
        (0..10).for_each(|_| in_a_thread(|| work(&allocator, context)));
        let before = (allocator.metadata_bytes(), allocator.reserved_bytes());
        (0..1000).for_each(|_| in_a_thread(|| work(&allocator, context)));
        assert_eq!((allocator.metadata_bytes(), allocator.reserved_bytes()), before);
        assert_eq!(allocator.stream_segment_sizes().unwrap().len(), 2);
    });
}

#[test]
fn streams_that_were_made_here_leave_nothing_behind_either() {
    on(Sim::builder(), |_, context| {
        let allocator = allocator(context);
        let work = |_| {
            let stream = Stream::new(context).unwrap();
            let mut block = allocator.allocate(3 * MIB, &stream).unwrap();
            block.as_device_range().fill_bytes(&stream, 1).unwrap();
            stream.synchronize().unwrap();
        };
        (0..10).for_each(work);
        let before = (allocator.metadata_bytes(), allocator.reserved_bytes());
        (0..1000).for_each(work);
        assert_eq!((allocator.metadata_bytes(), allocator.reserved_bytes()), before);
        assert_eq!(allocator.stream_segment_sizes().unwrap().len(), 1);
    });
}

#[test]
fn a_stream_that_is_busy_keeps_its_memory_whoever_has_dropped_it() {
    on_small(|_, context| {
        let allocator = allocator(context);
        // The gate has a handle to the stream that it holds up.
        let (stream, held) = (Stream::new(context).unwrap(), Stream::new(context).unwrap());
        let (gate, behind) = (Gate::before(&held), Event::new(context).unwrap());
        held.record(&behind).unwrap();
        stream.wait(&behind).unwrap();
        let mut block = allocator.allocate(3 * MIB, &stream).unwrap();
        block.as_device_range().fill_bytes(&stream, 1).unwrap();
        let (address, first) = (block.address(), stream.id());
        drop((block, stream));
        let others = [(); 2].map(|()| Stream::new(context).unwrap());
        let second = allocator.allocate(3 * MIB, &others[0]).unwrap();
        assert_ne!(second.address(), address);
        gate.open();
        context.synchronize().unwrap();
        let third = allocator.allocate(3 * MIB, &others[1]).unwrap();
        assert_eq!(third.address(), address, "it was done when the third came");
        let owners: Vec<_> =
            allocator.stream_segment_sizes().unwrap().iter().map(|sizes| sizes.stream).collect();
        assert_eq!(owners, [others[1].id(), others[0].id()]);
        assert!(!owners.contains(&first));
    });
}

#[test]
fn memory_of_a_thread_that_has_ended_serves_any_stream() {
    on_small(|_, context| {
        let allocator = allocator(context);
        in_a_thread(|| {
            let own = Stream::per_thread(context).unwrap();
            drop(allocator.allocate(40 * MIB, &own).unwrap());
        });
        let stream = Stream::new(context).unwrap();
        drop(allocator.allocate(60 * MIB, &stream).unwrap());
        allocator.empty_cache().unwrap();
        assert_eq!(context.memory_info().unwrap().free, 64 << 20);
    });
}

#[test]
fn memory_of_a_stream_that_was_forgotten_is_used_behind_its_work() {
    on_small(|_, context| {
        let allocator = allocator(context);
        let gate = in_a_thread(|| {
            let own = Stream::per_thread(context).unwrap();
            let gate = Gate::before(&own);
            let mut block = allocator.allocate(40 * MIB, &own).unwrap();
            block.as_device_range().fill_bytes(&own, 1).unwrap();
            drop(block);
            // SAFETY: it is given no more work.
            unsafe { allocator.forget_stream(&own) }.unwrap();
            gate
        });
        let stream = Stream::new(context).unwrap();
        let mut block = allocator.allocate(60 * MIB, &stream).unwrap();
        block.as_device_range().fill_bytes(&stream, 3).unwrap();
        assert!(!stream.is_idle().unwrap(), "its work waits for that of the thread's stream");
        gate.open();
        assert!(is_filled(&block.to_vec(&stream).unwrap(), 3));
    });
}

/// Nobody can name the stream any more: its memory is there for others once the host has waited for all work of the context.
#[test]
fn memory_that_a_thread_leaves_with_work_in_it_serves_others_once_that_is_done() {
    on_small(|_, context| {
        let allocator = allocator(context);
        let gate = in_a_thread(|| {
            let own = Stream::per_thread(context).unwrap();
            let gate = Gate::before(&own);
            let mut block = allocator.allocate(40 * MIB, &own).unwrap();
            block.as_device_range().fill_bytes(&own, 1).unwrap();
            gate
        });
        let stream = Stream::new(context).unwrap();
        thread::scope(|scope| {
            let asked = scope.spawn(|| allocator.allocate(60 * MIB, &stream).map(|block| block.len()));
            thread::sleep(Duration::from_millis(20));
            assert!(!asked.is_finished(), "the host waits");
            gate.open();
            assert_eq!(asked.join().unwrap().unwrap(), 60 * MIB);
        });
        let in_another = in_a_thread(|| {
            let own = Stream::per_thread(context).unwrap();
            allocator.allocate(60 * MIB, &own).map(|block| block.len())
        });
        assert_eq!(in_another.unwrap(), 60 * MIB);
    });
}

/// A wait for the context would end the capture.
#[test]
fn memory_that_a_thread_leaves_with_work_in_it_is_nobodys_beside_a_capture() {
    on_small(|sim, context| {
        let allocator = allocator(context);
        let [stream, capturing] = [(); 2].map(|()| Stream::new(context).unwrap());
        // Before: it would take over what the thread leaves, and is not looked at while it captures.
        drop(allocator.allocate(MIB, &capturing).unwrap());
        let gate = in_a_thread(|| {
            let own = Stream::per_thread(context).unwrap();
            let gate = Gate::before(&own);
            let mut block = allocator.allocate(40 * MIB, &own).unwrap();
            block.as_device_range().fill_bytes(&own, 1).unwrap();
            gate
        });
        let waits = sim.log().count("cuCtxSynchronize");
        let capture = Capture::begin(&capturing, RELAXED);
        let full = allocator.allocate(60 * MIB, &stream);
        assert!(matches!(full, Err(Error::DeviceOutOfMemory(_))), "{full:?}");
        capture.end().unwrap();
        assert_eq!(sim.log().count("cuCtxSynchronize"), waits);
        gate.open();
        assert_eq!(allocator.allocate(60 * MIB, &stream).unwrap().len(), 60 * MIB);
    });
}

/// A driver that does not say whether the stream is done may have it run yet.
#[test]
fn a_stream_that_cannot_be_asked_is_waited_for_with_its_context() {
    on(Sim::builder().memory(64 << 20), |sim, context| {
        let allocator = allocator(context);
        in_a_thread(|| {
            let own = Stream::per_thread(context).unwrap();
            drop(allocator.allocate(40 * MIB, &own).unwrap());
            sim.fail_call("cuStreamQuery", 1, CUresult::CUDA_ERROR_UNKNOWN);
        });
        let stream = Stream::new(context).unwrap();
        (0..100).for_each(|_| sim.fail_call("cuCtxRecordEvent", 1, CUresult::CUDA_ERROR_UNKNOWN));
        let full = allocator.allocate(60 * MIB, &stream);
        assert!(matches!(full, Err(Error::DeviceOutOfMemory(_))), "{full:?}");
        sim.clear_faults();
        assert_eq!(allocator.allocate(60 * MIB, &stream).unwrap().len(), 60 * MIB);
        assert_eq!(sim.misuse().len(), 0);
    });
}

#[test]
fn a_block_is_its_owners_after_its_thread_has_ended() {
    on(Sim::builder(), |_, context| {
        let allocator = allocator(context);
        let block = in_a_thread(|| {
            let own = Stream::per_thread(context).unwrap();
            let mut block = allocator.allocate(3 * MIB, &own).unwrap();
            block.as_device_range().fill_bytes(&own, 7).unwrap();
            own.synchronize().unwrap();
            block
        });
        // The heap is another's now, who gets other memory.
        in_a_thread(|| work(&allocator, context));
        let stream = Stream::new(context).unwrap();
        assert!(is_filled(&block.to_vec(&stream).unwrap(), 7));
        let address = block.address();
        in_a_thread(|| drop(block));
        stream.synchronize().unwrap();
        context.synchronize().unwrap();
        in_a_thread(|| {
            let own = Stream::per_thread(context).unwrap();
            let mut again = allocator.allocate(3 * MIB, &own).unwrap();
            again.as_device_range().fill_bytes(&own, 1).unwrap();
            assert_eq!(again.address(), address);
        });
        assert_eq!(allocator.statistics().active.all.current, 0);
    });
}

#[test]
fn another_threads_default_stream_is_refused() {
    on(Sim::builder(), |_, context| {
        let allocator = allocator(context);
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let allocator = &allocator;
        thread::scope(|scope| {
            scope.spawn(move || {
                let own = Stream::per_thread(context).unwrap();
                drop(allocator.allocate(1000, &own).unwrap());
                sender.send(own).unwrap();
                let _ = ended.recv();
            });
            let foreign = receiver.recv().unwrap();
            let is_refused = |error| matches!(error, Error::Core(CoreError::WrongThread));
            assert!(allocator.allocate_by_address(1000, &foreign).is_err_and(is_refused));
            assert!(allocator.of_stream(&foreign).is_err_and(is_refused));
            // A use that is refused is none.
            let used = Stream::new(context).unwrap();
            let address = allocator.allocate_by_address(1000, &used).unwrap();
            assert!(allocator.record_stream(address, &foreign).is_err_and(is_refused));
            // SAFETY: a block of the test that nothing uses.
            unsafe { allocator.free_by_address(address) }.unwrap();
            assert_eq!(allocator.statistics().active.all.current, 0);
            // SAFETY: refused.
            assert!(unsafe { allocator.forget_stream(&foreign) }.is_err_and(is_refused));
            drop(end);
        });
    });
}

#[test]
fn a_forgotten_stream_that_comes_back_is_a_new_one() {
    on(Sim::builder(), |_, context| {
        let allocator = allocator(context);
        let stream = Stream::new(context).unwrap();
        let of_stream = allocator.of_stream(&stream).unwrap();
        let first = of_stream.allocate_by_address(3 * MIB).unwrap();
        // SAFETY: it has no work.
        unsafe { allocator.forget_stream(&stream) }.unwrap();
        assert!(matches!(of_stream.allocate_by_address(1000), Err(Error::StreamEnded)));
        let other = Stream::new(context).unwrap();
        let second = allocator.allocate_by_address(3 * MIB, &other).unwrap();
        let third = allocator.allocate_by_address(3 * MIB, &stream).unwrap();
        let owners: Vec<_> =
            allocator.stream_segment_sizes().unwrap().iter().map(|sizes| sizes.stream).collect();
        assert_eq!(
            owners,
            [other.id(), stream.id()],
            "the second has what the first had, who has a heap of its own"
        );
        for address in [first, second, third] {
            // SAFETY: nothing uses it.
            unsafe { allocator.free_by_address(address) }.unwrap();
        }
        assert_eq!(allocator.allocate_by_address(3 * MIB, &stream).unwrap(), third);
        // SAFETY: nothing uses it.
        unsafe { allocator.free_by_address(third) }.unwrap();
        assert_eq!(allocator.statistics().active.all.current, 0);
    });
}

/// A block that is written once more, by the default stream of a thread at its end.
struct Late(Option<Allocation<DeviceAccessible>>, Arc<Gate>);

impl Drop for Late {
    fn drop(&mut self) {
        let Some(mut block) = self.0.take() else { return };
        let own = block.stream().clone();
        self.1.hold(&own);
        block.as_device_range().fill_bytes(&own, 9).unwrap();
    }
}

/// What such a destructor gives the stream comes after what the allocator has looked at.
#[test]
fn what_is_freed_while_a_thread_ends_is_waited_for() {
    [true, false].into_iter().for_each(frees_while_a_thread_ends);
}

/// In memory of pages or of segments, as a device without virtual memory management has it.
fn frees_while_a_thread_ends(is_expandable: bool) {
    thread_local! {
        static LATE: RefCell<Vec<Late>> = const { RefCell::new(Vec::new()) };
    }
    on_small(|_, context| {
        let (allocator, gate) = (allocator(context), Arc::new(Gate::new(context)));
        allocator.set_expandable_segments(is_expandable).unwrap();
        in_a_thread(|| {
            // Entered before anything of the allocator is, it goes after that, and before the driver leaves the thread.
            context.synchronize().unwrap();
            LATE.with(|late| assert!(late.borrow().is_empty()));
            let own = Stream::per_thread(context).unwrap();
            let mut block = allocator.allocate(40 * MIB, &own).unwrap();
            block.as_device_range().fill_bytes(&own, 1).unwrap();
            own.synchronize().unwrap();
            LATE.with(|late| late.borrow_mut().push(Late(Some(block), Arc::clone(&gate))));
        });
        let is_open = Arc::new(AtomicBool::new(false));
        let (opens, theirs) = (Arc::clone(&gate), Arc::clone(&is_open));
        let opener = thread::spawn(move || {
            thread::sleep(Duration::from_millis(200));
            theirs.store(true, Ordering::SeqCst);
            opens.open();
        });
        let waited = in_a_thread(|| {
            let own = Stream::per_thread(context).unwrap();
            let mut block = allocator.allocate(40 * MIB, &own)?;
            block.as_device_range().fill_bytes(&own, 2).unwrap();
            own.synchronize().unwrap();
            Ok::<_, Error>(is_open.load(Ordering::SeqCst))
        });
        opener.join().unwrap();
        // It waits for the block, on the device or here, or has none yet.
        assert!(!matches!(waited, Ok(false)), "{waited:?}");
        context.synchronize().unwrap();
        assert_eq!(allocator.statistics().allocated_bytes.all.current, 0);
    });
}

#[test]
fn an_allocator_may_go_while_threads_end() {
    let sim = Sim::builder().build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    for _ in 0..200 {
        let allocator = allocator(&context);
        let threads = [(); 4].map(|()| {
            let (allocator, context) = (allocator.clone(), context.clone());
            thread::spawn(move || work(&allocator, &context))
        });
        drop(allocator);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
    drop(context);
    expect_clean(&sim);
}

#[test]
fn what_a_threads_stream_was_given_before_its_own_thread_freed_the_block_counts() {
    on(Sim::builder().workers(2), |_, context| {
        let (allocator, stream) = (allocator(context), Stream::new(context).unwrap());
        let own = Stream::per_thread(context).unwrap();
        let block = allocator.allocate_by_address(MIB, &stream).unwrap();
        stream.synchronize().unwrap();
        allocator.record_stream(block, &own).unwrap();
        let gate = Gate::before(&own);
        // SAFETY: the block's own memory, which is freed below, behind what the recorded stream was given.
        unsafe { memset_async(&own, block, 1, MIB) }.unwrap();
        free(&allocator, block);
        let next = allocator.allocate_by_address(MIB, &stream).unwrap();
        assert_ne!(next, block, "the thread's stream uses it");
        gate.open();
        free(&allocator, next);
    });
}

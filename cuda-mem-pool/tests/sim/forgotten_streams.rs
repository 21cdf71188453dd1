//! Streams that are forgotten beside work of others and of private pools: what is left of them is named no more, and nobody gets memory before
//! its work is done.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, Event, Stream};
use cuda_mem_pool::caching::CachingAllocator;
use cuda_mem_pool::{DeviceMemoryResource, DeviceMemoryResourceOptions, Error, MemoryResource, MempoolId};
use cuda_mem_sim::Sim;

use crate::blocks::{allocator, free, routed};
use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::interrupted::{before_wait, interrupted, until};
use crate::rig::{on, on_simulator};
use crate::sleep::allocate_in;

const MIB: usize = 1 << 20;

/// Another library's stream, which that destroys when it was forgotten.
struct Theirs<'s> {
    sim: &'s Sim,
    stream: Stream,
}

impl<'s> Theirs<'s> {
    fn new(sim: &'s Sim, context: &Context) -> Self {
        let mut raw = ptr::null_mut();
        // SAFETY: one handle to write; the context is current.
        let made = context.with_current(|| unsafe { sim.table().cuStreamCreate().unwrap()(&mut raw, 1) });
        assert_eq!(made.unwrap(), CUresult::CUDA_SUCCESS);
        // SAFETY: destroyed below, once it was disowned.
        let stream = unsafe { Stream::borrow_raw(context, raw.cast()) }.unwrap();
        Self { sim, stream }
    }

    /// Holds it up by a stream of this crate's, which the gate keeps as a user.
    fn make_wait(&self) -> Gate {
        let held = Stream::new(self.stream.context()).unwrap();
        let (gate, behind) = (Gate::before(&held), Event::new(self.stream.context()).unwrap());
        held.record(&behind).unwrap();
        self.stream.wait(&behind).unwrap();
        gate
    }

    fn forget(&self, allocator: &CachingAllocator) -> Result<(), Error> {
        // SAFETY: it is given no more work.
        unsafe { allocator.forget_stream(&self.stream) }
    }

    fn destroy(self) {
        self.stream.disown();
        let destroy = self.sim.table().cuStreamDestroy().unwrap();
        // SAFETY: made above, destroyed once.
        assert_eq!(unsafe { destroy(self.stream.as_raw().cast()) }, CUresult::CUDA_SUCCESS);
    }
}

#[test]
fn memory_of_a_private_pool_goes_back_behind_the_end_of_its_stream() {
    on_simulator(|sim, context| {
        let allocator = allocator(context);
        for waits in [false, true] {
            let (theirs, id) = (Theirs::new(sim, context), MempoolId::for_user());
            let block = routed(&allocator, id, 4 * MIB, &theirs.stream).unwrap();
            let gate = theirs.make_wait();
            free(&allocator, block);
            allocator.release_pool(id).unwrap();
            theirs.forget(&allocator).unwrap();
            theirs.destroy();
            assert_eq!(allocator.empty_cache().unwrap(), 0, "its work runs yet");
            gate.open();
            if waits {
                assert!(allocator.empty_pool_cache(id).unwrap() > 0);
            } else {
                until("its work is done", || allocator.empty_cache().unwrap() > 0);
            }
            assert_eq!(allocator.reserved_bytes(), 0);
        }
    });
}

/// In whichever order its owner says that it ends.
#[test]
fn a_stream_that_was_disowned_is_forgotten_too() {
    on_simulator(|sim, context| {
        let (allocator, theirs) = (allocator(context), Theirs::new(sim, context));
        let block = allocator.allocate_by_address(4 * MIB, &theirs.stream).unwrap();
        let gate = theirs.make_wait();
        free(&allocator, block);
        theirs.stream.disown();
        theirs.forget(&allocator).unwrap();
        theirs.destroy();
        assert_eq!(allocator.empty_cache().unwrap(), 0, "its work runs yet");
        gate.open();
        until("its work is done", || allocator.empty_cache().unwrap() > 0);
        assert_eq!(allocator.reserved_bytes(), 0);
    });
}

/// A graph of the pool may run on any stream that had memory of a private pool.
#[test]
fn a_captured_pool_waits_for_the_end_of_each_stream() {
    on_simulator(|sim, context| {
        let (allocator, stream) = (allocator(context), Stream::new(context).unwrap());
        let (launches, id, other) =
            (Theirs::new(sim, context), MempoolId::for_graph(), MempoolId::for_user());
        let of_theirs = routed(&allocator, other, 4 * MIB, &launches.stream).unwrap();
        let capture = Capture::begin(&stream, RELAXED);
        let block = routed(&allocator, id, 4 * MIB, &stream).unwrap();
        free(&allocator, block);
        assert_eq!(capture.end().unwrap().len(), 0);
        let gate = launches.make_wait();
        allocator.release_pool(id).unwrap();
        launches.forget(&allocator).unwrap();
        launches.destroy();
        assert_eq!(allocator.empty_cache().unwrap(), 0, "a graph may run there");
        gate.open();
        until("its work is done", || allocator.empty_cache().unwrap() > 0);
        free(&allocator, of_theirs);
        allocator.release_pool(other).unwrap();
        until("all is given back", || allocator.empty_cache().is_ok() && allocator.reserved_bytes() == 0);
    });
}

#[test]
fn a_stream_of_private_pools_alone_is_not_forgotten_while_it_captures() {
    on_simulator(|_, context| {
        let (allocator, stream, id) =
            (allocator(context), Stream::new(context).unwrap(), MempoolId::for_user());
        let block = routed(&allocator, id, 4 * MIB, &stream).unwrap();
        let capture = Capture::begin(&stream, RELAXED);
        // SAFETY: it is given no more work.
        let forget = || unsafe { allocator.forget_stream(&stream) };
        let refused = forget();
        assert!(matches!(refused, Err(Error::Core(cuda_mem_core::Error::Capturing { .. }))), "{refused:?}");
        assert_eq!(capture.end().unwrap().len(), 0);
        forget().unwrap();
        free(&allocator, block);
        // It comes back, and is asked again.
        let again = routed(&allocator, id, 4 * MIB, &stream).unwrap();
        let gate = Gate::before(&stream);
        free(&allocator, again);
        allocator.release_pool(id).unwrap();
        allocator.release_pool(id).unwrap();
        assert_eq!(allocator.empty_cache().unwrap(), 0, "its work runs yet");
        gate.open();
        until("its work is done", || allocator.empty_cache().unwrap() > 0);
    });
}

#[test]
fn a_block_of_a_stream_that_was_destroyed_comes_back_behind_its_uses() {
    on_simulator(|sim, context| {
        let allocator = allocator(context);
        let (theirs, other) = (Theirs::new(sim, context), Stream::new(context).unwrap());
        let mut block = allocator.allocate(4 * MIB, &theirs.stream).unwrap();
        block.as_device_range().fill_bytes(&theirs.stream, 1).unwrap();
        block.as_device_range().fill_bytes(&other, 2).unwrap();
        theirs.forget(&allocator).unwrap();
        theirs.destroy();
        drop(block);
        assert_eq!(context.driver().release_failures(), 0);
        assert_eq!(allocator.statistics().allocated_bytes.all.current, 0);
    });
}

/// What it had serves others behind all that the context was given.
#[test]
fn a_stream_that_is_destroyed_though_it_could_not_be_forgotten_fails_nobody_else() {
    on(Sim::builder().memory(64 << 20), |sim, context| {
        let allocator = allocator(context);
        let (theirs, other) = (Theirs::new(sim, context), Stream::new(context).unwrap());
        free(&allocator, allocator.allocate_by_address(40 * MIB, &theirs.stream).unwrap());
        sim.fail_call("cuEventCreate", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let refused = theirs.forget(&allocator);
        assert!(matches!(refused, Err(Error::Core(cuda_mem_core::Error::Driver(_)))), "{refused:?}");
        theirs.destroy();
        let gate = Gate::before(&other);
        let next = Stream::new(context).unwrap();
        free(&allocator, allocator.allocate_by_address(20 * MIB, &next).unwrap());
        gate.open();
        free(&allocator, allocator.allocate_by_address(60 * MIB, &next).unwrap());
    });
}

/// Whoever has no memory has streams wait for uses of blocks that are freed. One that is forgotten just then is behind no such wait at its end.
#[test]
fn a_stream_that_is_forgotten_while_it_is_made_to_wait_leaves_no_memory_that_is_in_use() {
    interrupted(Sim::builder().memory(64 << 20), |sim, context| {
        let allocator = allocator(context);
        let theirs = Theirs::new(sim, context);
        let [uses, next, wants] = [(); 3].map(|()| Stream::new(context).unwrap());
        let address = allocator.allocate_by_address(40 * MIB, &theirs.stream).unwrap();
        let gate = Gate::before(&uses);
        allocator.record_stream(address, &uses).unwrap();
        free(&allocator, address);
        let (forgetting, stream) = (allocator.clone(), theirs.stream.clone());
        before_wait(move || {
            // SAFETY: it is given no more work.
            unsafe { forgetting.forget_stream(&stream) }.unwrap();
            // What it had is the next one's.
            free(&forgetting, forgetting.allocate_by_address(1000, &next).unwrap());
        });
        let is_open = Arc::new(AtomicBool::new(false));
        let opens = {
            let is_open = Arc::clone(&is_open);
            std::thread::spawn(move || {
                // Long enough for one that waits for nobody.
                std::thread::sleep(Duration::from_millis(300));
                is_open.store(true, Ordering::SeqCst);
                gate.open();
                gate
            })
        };
        let block = allocator.allocate_by_address(40 * MIB, &wants).unwrap();
        assert!(is_open.load(Ordering::SeqCst), "the memory was in use");
        let gate = opens.join().unwrap();
        free(&allocator, block);
        context.synchronize().unwrap();
        drop(gate);
        theirs.destroy();
    });
}

/// A pool of the driver frees in the order of streams: what was allocated on one that nobody may name any more goes back without it.
#[test]
fn memory_of_a_pool_of_the_driver_goes_back_once_its_stream_was_disowned() {
    on_simulator(|sim, context| {
        let pool = DeviceMemoryResource::new(context, &DeviceMemoryResourceOptions::default()).unwrap();
        let theirs = Theirs::new(sim, context);
        let memory = pool.allocate(MIB, &theirs.stream).unwrap();
        theirs.destroy();
        memory.close().unwrap();
        assert_eq!(pool.attributes().used_mem_current().unwrap(), 0);
    });
}

/// Another value of a stream, as the next one who borrows it has.
fn once_more(stream: &Stream) -> Stream {
    // SAFETY: destroyed once it was disowned.
    unsafe { Stream::borrow_raw(stream.context(), stream.as_raw()) }.unwrap()
}

/// What the value that the allocator knows was given ended long ago: what another one was given since has to be waited for.
#[test]
fn memory_waits_for_what_a_stream_is_given_when_it_is_borrowed_again() {
    for in_tag in [false, true] {
        on_simulator(|sim, context| {
            let (allocator, theirs) = (allocator(context), Theirs::new(sim, context));
            let tag = in_tag.then(|| allocator.tag("weights").unwrap());
            let take = |stream: &Stream| match &tag {
                Some(tag) => allocate_in(tag, &allocator, 40 * MIB, stream),
                None => allocator.allocate_by_address(40 * MIB, stream).unwrap(),
            };
            free(&allocator, take(&theirs.stream));
            theirs.stream.disown();
            let again = Theirs { sim, stream: once_more(&theirs.stream) };
            let block = take(&again.stream);
            let gate = again.make_wait();
            // SAFETY: a block of as many bytes.
            let filled = unsafe { cuda_mem_core::copy::memset_async(&again.stream, block, 1, 40 * MIB) };
            filled.unwrap();
            free(&allocator, block);
            assert_eq!(allocator.empty_cache().unwrap(), 0, "its work runs yet");
            gate.open();
            until("its work is done", || allocator.empty_cache().unwrap() > 0);
            assert_eq!(allocator.reserved_bytes(), 0);
            // And when the allocator ends.
            let block = take(&again.stream);
            let gate = again.make_wait();
            // SAFETY: as above.
            let filled = unsafe { cuda_mem_core::copy::memset_async(&again.stream, block, 2, 40 * MIB) };
            filled.unwrap();
            free(&allocator, block);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    // Long enough for one that waits for nobody.
                    std::thread::sleep(Duration::from_millis(50));
                    gate.open();
                });
                drop((tag, allocator));
            });
            again.destroy();
        });
    }
}

//! Streams of somebody else, who destroys them without a word.

use std::any::Any;
use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use cuda_mem_core::host::PinnedFlags;
use cuda_mem_core::raw_pool::{AllocationType, MemoryLocation, MemoryPool, PoolBlock, PoolProperties};
use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, DeviceBuffer, Driver, Error, PinnedBuffer, Stream, Uses};
use cuda_mem_sim::{Record, Sim};

use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::disowned::{make_wait, waits_for};
use crate::imported::lose;
use crate::interrupted::until;

/// A call that names a stream that is no more ends this process.
fn machine() -> (Sim, Context) {
    let sim = Sim::builder().record(true).fault_on_ended_streams().build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    (sim, context)
}

fn guest(context: &Context, theirs: &Stream) -> Stream {
    // SAFETY: it is there during the call.
    unsafe { Stream::guest(context, theirs.as_raw()) }.unwrap()
}

fn never_destroyed(sim: &Sim, context: &Context, flags: u32) -> Stream {
    let mut raw = ptr::null_mut();
    // SAFETY: one handle to write; the context is current.
    let made = context.with_current(|| unsafe { sim.table().cuStreamCreate().unwrap()(&mut raw, flags) });
    assert_eq!(made.unwrap(), CUresult::CUDA_SUCCESS);
    // SAFETY: it is never destroyed.
    unsafe { Stream::guest(context, raw.cast()) }.unwrap()
}

fn visiting<R>(guest: &Stream, body: impl FnOnce() -> R) -> R {
    // SAFETY: whoever calls has the stream.
    unsafe { guest.id().visit(body) }
}

#[test]
fn a_guest_is_named_by_those_who_visit_it_alone() {
    let (_sim, context) = machine();
    let (theirs, others) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
    let (first, second) = (guest(&context, &theirs), guest(&context, &others));
    assert!(first == theirs && first.is_guest() && !theirs.is_guest());
    let is_refused = |stream: &Stream| matches!(stream.is_idle(), Err(Error::Disowned));
    assert!(is_refused(&first));
    visiting(&first, || {
        assert!(first.is_idle().unwrap() && is_refused(&second));
        visiting(&second, || assert!(second.is_idle().unwrap() && is_refused(&first)));
        assert!(first.is_idle().unwrap());
        thread::scope(|scope| {
            scope.spawn(|| assert!(is_refused(&first)));
        });
    });
    let panicked =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| visiting(&first, || panic!("a test"))));
    assert!(panicked.is_err() && is_refused(&first));
    assert!(!guest(&context, &Stream::legacy(&context).unwrap()).is_guest());
}

/// It cannot be asked for its name.
#[test]
fn a_guest_that_captures_when_it_comes_is_left_alone() {
    let (_sim, context) = machine();
    let theirs = Stream::new(&context).unwrap();
    let capture = Capture::begin(&theirs, RELAXED);
    let [first, second] = [(); 2].map(|()| guest(&context, &theirs));
    assert!(first != second && first.id().is_of_a_capture());
    assert!(matches!(context.point(), Err(Error::Capturing { .. })));
    drop(capture.end().unwrap());
    visiting(&first, || assert!(!first.is_capturing().unwrap()));
    visiting(&second, || assert!(!second.is_capturing().unwrap()));
    context.point().unwrap();
    assert!(guest(&context, &theirs) == theirs && !theirs.id().is_of_a_capture());
}

#[test]
fn what_a_destroyed_guest_used_is_waited_for_with_its_context() {
    let (sim, context) = machine();
    for waits_by in 0..4 {
        let theirs = Stream::new(&context).unwrap();
        let stream = guest(&context, &theirs);
        let mut uses = Uses::new();
        visiting(&stream, || uses.record_stream(&stream)).unwrap();
        // Given after it was entered, and before the end of the uses is asked for.
        let (gate, _held) = make_wait(&theirs);
        drop(theirs);
        let other = Stream::new(&context).unwrap();
        waits_for(&gate, || match waits_by {
            0 => uses.wait().unwrap(),
            1 => uses.points().unwrap().iter().for_each(|point| point.wait().unwrap()),
            2 => {
                uses.order(&other).unwrap();
                other.synchronize().unwrap();
            }
            _ => while !uses.have_passed().unwrap() {},
        });
    }
    let refused = |record: &Record| record.result == CUresult::CUDA_ERROR_INVALID_HANDLE;
    assert!(sim.log().filter(refused).is_empty());
}

/// The free names no stream.
#[test]
fn the_free_of_memory_of_a_guest_waits_on_the_host() {
    let (sim, context) = machine();
    for is_pool in [false, true] {
        let theirs = Stream::new(&context).unwrap();
        let stream = guest(&context, &theirs);
        let (allocation_type, location) = (AllocationType::Pinned, MemoryLocation::Device(0));
        let properties = PoolProperties { allocation_type, location, shareable: false, max_size: 0 };
        let pool = Arc::new(MemoryPool::create(context.driver(), &properties).unwrap());
        let memory: Box<dyn Any> = visiting(&stream, || match is_pool {
            true => Box::new(PoolBlock::allocate(&pool, 4096, &stream).unwrap()) as Box<dyn Any>,
            false => Box::new(DeviceBuffer::<u8>::uninit(&stream, 4096).unwrap()),
        });
        let (gate, _held) = make_wait(&theirs);
        waits_for(&gate, || drop(memory));
    }
    assert!(sim.misuse().is_empty(), "{:?}", sim.misuse());
}

#[test]
fn a_point_of_the_context_leaves_captures_alone() {
    let (_sim, context) = machine();
    let (theirs, capturing) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
    let stream = guest(&context, &theirs);
    let mut uses = Uses::new();
    visiting(&stream, || uses.record_stream(&stream)).unwrap();
    let raw: *mut c_void = capturing.as_raw();
    let capture = Capture::begin(&capturing, RELAXED);
    assert!(matches!(uses.points(), Err(Error::Capturing { .. })));
    let refused = context.point().unwrap_err();
    assert!(matches!(refused, Error::Capturing { .. }));
    assert!(refused.to_string().contains("the capture would be lost"), "no memory is at stake: {refused}");
    assert!(capture.end().is_ok(), "the capture of {raw:p} goes on");
    assert_eq!(uses.points().unwrap().len(), 1);
    // A guest's own, which only its visitors can see.
    let capture = Capture::begin(&theirs, RELAXED);
    assert!(visiting(&stream, || stream.is_capturing()).unwrap());
    assert!(matches!(context.point(), Err(Error::Capturing { .. })));
    assert!(capture.end().is_ok());
    assert!(!visiting(&stream, || stream.is_capturing()).unwrap());
    // The calling thread's default stream, which nobody lends.
    let ended = context.with_current(|| {
        let capture = Capture::begin(&Stream::per_thread(&context).unwrap(), RELAXED);
        assert!(matches!(context.point(), Err(Error::Capturing { .. })));
        capture.end().is_ok()
    });
    assert!(ended.unwrap());
    assert!(context.point().is_ok());
}

/// What the context is given after the first look does not count.
#[test]
fn a_block_of_a_guest_that_was_put_off_is_freed_although_the_context_is_kept_busy() {
    let (_sim, context) = machine();
    let driver = context.driver();
    let (allocation_type, location) = (AllocationType::Pinned, MemoryLocation::Device(0));
    let properties = PoolProperties { allocation_type, location, shareable: false, max_size: 0 };
    let pool = Arc::new(MemoryPool::create(driver, &properties).unwrap());
    let (theirs, busy) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
    let stream = guest(&context, &theirs);
    let block = visiting(&stream, || PoolBlock::allocate(&pool, 64, &stream)).unwrap();
    let gates = [(); 2].map(|()| Gate::new(&context));
    gates[0].hold(&busy);
    let capture = Capture::begin(&theirs, RELAXED);
    drop(block);
    drop(capture.end().unwrap());
    assert_eq!(driver.reclaim(), 1, "the context is busy");
    gates[1].hold(&busy);
    gates[0].open();
    until("the block is freed", || driver.reclaim() == 0);
    gates[1].open();
}

/// Nobody can be asked there whether it captures, and nothing does any more.
#[test]
fn a_lost_context_is_no_capture() {
    let (_sim, context) = machine();
    let theirs = Stream::new(&context).unwrap();
    let stream = guest(&context, &theirs);
    let pinned = PinnedBuffer::<u8>::zeroed(&context, 64, PinnedFlags::default()).unwrap();
    let uses = [(); 2].map(|()| Uses::new());
    uses.iter().for_each(|uses| visiting(&stream, || uses.record_stream(&stream)).unwrap());
    lose(&context, &theirs);
    let lost = Some(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(context.point().unwrap_err().code(), lost);
    let [one, other] = uses;
    assert_eq!(one.wait().unwrap_err().code(), lost);
    pinned.absorb_uses(other);
    drop(pinned);
    assert_eq!(context.driver().reclaim(), 0, "nothing waits for the end of a capture");
}

/// The guest cannot say there that its capture has ended, and a wait that repeats a refusal for a capture's sake would not end.
#[test]
fn a_lost_context_has_no_guest_that_captures() {
    let (_sim, context) = machine();
    let (theirs, failing) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
    let (stream, mut uses) = (guest(&context, &theirs), Uses::new());
    visiting(&stream, || uses.record_stream(&stream)).unwrap();
    let points = uses.points().unwrap();
    let _capture = Capture::begin(&theirs, RELAXED);
    assert!(visiting(&stream, || stream.is_capturing()).unwrap());
    lose(&context, &failing);
    let lost = Some(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(visiting(&stream, || stream.is_capturing()).unwrap_err().code(), lost);
    assert_eq!(context.point().unwrap_err().code(), lost);
    assert_eq!(points[0].wait().unwrap_err().code(), lost);
}

#[test]
fn a_guest_that_goes_takes_along_no_capture_that_another_value_of_it_saw() {
    let (sim, context) = machine();
    let one = never_destroyed(&sim, &context, 1);
    // SAFETY: it is never destroyed.
    let other = unsafe { Stream::guest(&context, one.as_raw()) }.unwrap();
    let capture = Capture::begin(&one, RELAXED);
    assert!(visiting(&one, || one.is_capturing()).unwrap());
    drop(other);
    assert!(matches!(context.point(), Err(Error::Capturing { .. })));
    assert!(capture.end().is_ok());
    assert!(!visiting(&one, || one.is_capturing()).unwrap());
    context.point().unwrap();
}

/// Who waits for streams names each for a moment, which is no capture.
#[test]
fn a_point_is_there_beside_threads_that_wait_for_streams() {
    let (_sim, context) = machine();
    let stream = Stream::new(&context).unwrap();
    let _lent = stream.as_raw();
    let (is_over, begins) = (AtomicBool::new(false), Barrier::new(2));
    let refused = thread::scope(|scope| {
        scope.spawn(|| {
            begins.wait();
            while !is_over.load(Ordering::SeqCst) {
                context.wait_for_streams().unwrap();
            }
        });
        begins.wait();
        let refused = (0..2000).find_map(|_| context.point().err());
        is_over.store(true, Ordering::SeqCst);
        refused
    });
    assert!(refused.is_none(), "{refused:?}");
}

/// Nobody has asked it, but the legacy stream tells of it.
#[test]
fn a_point_leaves_a_blocking_streams_capture_alone() {
    let (sim, context) = machine();
    let stream = never_destroyed(&sim, &context, 0);
    let capture = Capture::begin(&stream, RELAXED);
    let refused = context.point();
    assert!(matches!(refused, Err(Error::Capturing { .. })), "{refused:?}");
    assert!(capture.end().is_ok());
}

#[test]
fn what_fails_is_told_and_no_capture() {
    let (sim, context) = machine();
    let stream = Stream::new(&context).unwrap();
    let _lent = stream.as_raw();
    for nth in 1..=3 {
        sim.fail_call("cuStreamIsCapturing", nth, CUresult::CUDA_ERROR_UNKNOWN);
        assert_eq!(context.point().unwrap_err().code(), Some(CUresult::CUDA_ERROR_UNKNOWN), "{nth}");
    }
}

/// Of a free it is the free that failed, not the question whether the stream captures.
#[test]
fn a_free_in_a_lost_context_is_told_as_a_free() {
    let (_sim, context) = machine();
    let (stream, failing) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
    let buffer = DeviceBuffer::<u8>::zeroed(&stream, 64).unwrap();
    lose(&context, &failing);
    let refused = buffer.close().unwrap_err().to_string();
    assert!(refused.contains("cuMemFreeAsync"), "{refused}");
}

#[test]
fn a_driver_without_such_points_waits() {
    let sim = Sim::builder().driver(12040).build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let stream = Stream::new(&context).unwrap();
    let gate = Gate::before(&stream);
    waits_for(&gate, || assert!(context.point().unwrap().is_complete().unwrap()));
}

/// Nobody can be asked whether it goes on.
#[test]
fn a_guest_that_captured_and_is_gone_holds_up_no_other_device_and_its_own_until_that_is_said_to_be_over() {
    let sim = Sim::builder().devices(2).build();
    let driver = Driver::over(sim.table()).unwrap();
    let [context, other] = [0, 1].map(|device| driver.device(device).unwrap().primary_context().unwrap());
    let theirs = Stream::new(&context).unwrap();
    let stream = guest(&context, &theirs);
    let capture = Capture::begin(&theirs, RELAXED);
    assert!(visiting(&stream, || stream.is_capturing()).unwrap());
    other.point().unwrap();
    other.wait_for_streams().unwrap();
    drop(capture.end().unwrap());
    drop(theirs);
    other.forget_guests_captures();
    assert!(matches!(context.point(), Err(Error::Capturing { .. })));
    assert!(matches!(context.wait_for_streams(), Err(Error::Capturing { .. })));
    context.forget_guests_captures();
    context.point().unwrap();
    context.wait_for_streams().unwrap();
}

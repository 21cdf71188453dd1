//! Streams of somebody else, who destroys them though values of them stay.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cuda_mem_core::host::PinnedFlags;
use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, DeviceBuffer, Driver, Error, Event, ForeignStream, PinnedBuffer, Stream, Uses};
use cuda_mem_sim::Sim;

use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::interrupted::{meanwhile, on_interrupted};
use crate::rig::on_simulator;

/// A stream that somebody else has, until they destroy it.
fn borrowed(sim: &Sim, context: &Context) -> (Stream, impl FnOnce()) {
    let mut raw = ptr::null_mut();
    // SAFETY: one handle to write; the context is current.
    let made = context.with_current(|| unsafe { sim.table().cuStreamCreate().unwrap()(&mut raw, 1) });
    assert_eq!(made.unwrap(), CUresult::CUDA_SUCCESS);
    // SAFETY: destroyed once it was disowned.
    let stream = unsafe { Stream::borrow_raw(context, raw.cast()) }.unwrap();
    let table = sim.table();
    let destroy = move || {
        // SAFETY: made above, destroyed once.
        assert_eq!(unsafe { table.cuStreamDestroy().unwrap()(raw) }, CUresult::CUDA_SUCCESS);
    };
    (stream, destroy)
}

/// Holds a stream up by another one, which the gate keeps as a user.
pub(crate) fn make_wait(stream: &Stream) -> (Gate, Stream) {
    let held = Stream::new(stream.context()).unwrap();
    let (gate, behind) = (Gate::before(&held), Event::new(stream.context()).unwrap());
    held.record(&behind).unwrap();
    stream.wait(&behind).unwrap();
    (gate, held)
}

/// Another value of the stream, which is disowned by itself.
fn once_more(stream: &Stream) -> Stream {
    // SAFETY: destroyed once it was disowned.
    unsafe { Stream::borrow_raw(stream.context(), stream.as_raw()) }.unwrap()
}

/// `wait` does not return before the gate is open.
pub(crate) fn waits_for(gate: &Gate, wait: impl FnOnce()) {
    let is_open = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Long enough for one that waits for nobody.
            std::thread::sleep(Duration::from_millis(100));
            is_open.store(true, Ordering::SeqCst);
            gate.open();
        });
        wait();
        assert!(is_open.load(Ordering::SeqCst), "the memory is in use");
    });
}

#[test]
fn a_stream_that_was_disowned_is_named_no_more() {
    on_simulator(|sim, context| {
        let (stream, destroy) = borrowed(sim, context);
        stream.disown();
        destroy();
        stream.disown();
        let event = Event::new(context).unwrap();
        let answers = [
            stream.record(&event),
            stream.wait(&event),
            stream.synchronize(),
            stream.is_idle().map(drop),
            stream.is_capturing().map(drop),
            Stream::new(context).unwrap().wait_stream(&stream),
        ];
        for answer in answers {
            assert!(matches!(answer, Err(Error::Disowned)), "{answer:?}");
        }
    });
}

/// Its owner destroys it as soon as it is disowned.
#[test]
fn who_names_a_stream_is_waited_for_before_its_owner_goes_on() {
    on_interrupted(|sim, context| {
        let (stream, destroy) = borrowed(sim, context);
        let is_disowned = Arc::new(AtomicBool::new(false));
        let (other, told) = (stream.clone(), Arc::clone(&is_disowned));
        let (begun, disowning) = std::sync::mpsc::channel();
        let (seen, during) = std::sync::mpsc::channel();
        meanwhile(move || {
            let disown = move || {
                other.disown();
                told.store(true, Ordering::SeqCst);
            };
            begun.send(std::thread::spawn(disown)).unwrap();
            // Long enough for one that waits for nobody.
            std::thread::sleep(Duration::from_millis(100));
            seen.send(is_disowned.load(Ordering::SeqCst)).unwrap();
        });
        stream.synchronize().unwrap();
        assert!(!during.recv().unwrap(), "the stream was named yet");
        disowning.recv().unwrap().join().unwrap();
        destroy();
    });
}

#[test]
fn memory_that_was_used_on_a_disowned_stream_is_freed_behind_that() {
    on_simulator(|sim, context| {
        let (stream, destroy) = borrowed(sim, context);
        let home = Stream::new(context).unwrap();
        let memory = DeviceBuffer::<u8>::zeroed(&home, 4096).unwrap();
        let (gate, _held) = make_wait(&stream);
        memory.range(..).unwrap().fill_bytes(&stream, 1).unwrap();
        let mut uses = Uses::new();
        uses.record_stream(&stream).unwrap();
        stream.disown();
        destroy();
        assert!(!uses.are_over().unwrap());
        assert!(!uses.points().unwrap()[0].is_reached().unwrap());
        drop(memory);
        assert!(!home.is_idle().unwrap(), "the memory is in use");
        gate.open();
        uses.wait().unwrap();
        assert!(uses.are_over().unwrap());
        assert_eq!(context.driver().release_failures(), 0);
    });
}

#[test]
fn memory_of_a_disowned_stream_is_freed_behind_all_its_uses() {
    on_simulator(|sim, context| {
        let (stream, destroy) = borrowed(sim, context);
        let other = Stream::new(context).unwrap();
        let buffers = [(); 2].map(|()| DeviceBuffer::<u8>::zeroed(&stream, 4096).unwrap());
        buffers[0].range(..).unwrap().fill_bytes(&other, 1).unwrap();
        stream.disown();
        destroy();
        drop(buffers);
        assert_eq!(context.driver().release_failures(), 0);
    });
}

/// The free names no stream.
#[test]
fn the_free_of_memory_of_a_disowned_stream_waits_on_the_host() {
    on_simulator(|sim, context| {
        let (stream, destroy) = borrowed(sim, context);
        let buffer = DeviceBuffer::<u8>::uninit(&stream, 4096).unwrap();
        let (gate, _held) = make_wait(&stream);
        stream.disown();
        destroy();
        waits_for(&gate, || drop(buffer));
    });
}

/// Nobody is behind a stream that was disowned while it captured.
#[test]
fn memory_that_no_event_stands_for_stays() {
    // One of its own, of which it is left.
    let sim = Sim::builder().build();
    let driver = Driver::over(sim.table()).unwrap();
    let context = &driver.device(0).unwrap().primary_context().unwrap();
    let (stream, destroy) = borrowed(&sim, context);
    let home = Stream::new(context).unwrap();
    let memory = DeviceBuffer::<u8>::zeroed(&home, 4096).unwrap();
    memory.range(..).unwrap().fill_bytes(&stream, 1).unwrap();
    let capture = Capture::begin(&stream, RELAXED);
    stream.disown();
    drop(memory);
    assert_eq!((driver.reclaim(), driver.release_failures()), (1, 0));
    assert_eq!(capture.end().unwrap().len(), 0);
    destroy();
    assert_eq!((driver.reclaim(), driver.release_failures()), (1, 0));
    assert_eq!(sim.misuse().len(), 0);
}

/// Work of a stream that nobody can name any more may still use memory: a wait that fails is for all of the context then.
#[test]
fn a_point_of_a_disowned_stream_that_cannot_be_waited_for_is_not_behind_its_work() {
    on_simulator(|sim, context| {
        let (stream, destroy) = borrowed(sim, context);
        let (gate, held) = make_wait(&stream);
        let mut uses = Uses::new();
        uses.record_stream(&stream).unwrap();
        let point = uses.points().unwrap().remove(0);
        stream.disown();
        destroy();
        sim.fail_call("cuEventSynchronize", 1, CUresult::CUDA_ERROR_UNKNOWN);
        waits_for(&gate, || point.wait().unwrap());
        held.synchronize().unwrap();
    });
}

/// What is left of a disowned value is behind what the stream was given before, and other values give it more.
#[test]
fn what_another_value_of_a_disowned_stream_is_given_is_a_use_of_its_own() {
    let ways: [fn(&PinnedBuffer<u8>, &Stream); 2] = [
        |memory, stream| drop(memory.on(stream).unwrap()),
        |memory, stream| {
            let part = Uses::new();
            part.record_stream(stream).unwrap();
            memory.absorb_uses(part);
        },
    ];
    for used in ways {
        on_simulator(|sim, context| {
            let (first, destroy) = borrowed(sim, context);
            let second = once_more(&first);
            let mut memory = PinnedBuffer::<u8>::zeroed(context, 100, PinnedFlags::MAPPED).unwrap();
            let mut read = Uses::new();
            drop(memory.on(&first).unwrap());
            read.record_stream(&first).unwrap();
            first.disown();
            let (gate, _held) = make_wait(&second);
            used(&memory, &second);
            read.record_stream(&second).unwrap();
            assert!(!read.are_over().unwrap());
            waits_for(&gate, || memory.as_mut_slice().unwrap().fill(1));
            second.disown();
            destroy();
        });
    }
}

#[test]
fn memory_is_not_used_on_a_disowned_stream_that_used_it_before() {
    on_simulator(|sim, context| {
        let (first, destroy) = borrowed(sim, context);
        let second = once_more(&first);
        let uses = Uses::new();
        drop(uses.on(0x1000, &first).unwrap());
        first.disown();
        assert!(matches!(uses.on(0x1000, &first), Err(Error::Disowned)));
        drop(uses.on(0x1000, &second).unwrap());
        let mut points = Uses::new();
        points.record_stream(&second).unwrap();
        let point = points.points().unwrap().remove(0);
        // It is behind what it was given itself, and not behind what came later.
        assert!(matches!(uses.order(&first), Err(Error::Disowned)));
        assert!(matches!(point.order(&first), Err(Error::Disowned)));
        second.disown();
        destroy();
    });
}

/// Who borrows a stream anew for each call leaves no trail of values in memory that is in use.
#[test]
fn values_of_one_stream_that_come_one_after_the_other_are_one_use() {
    on_simulator(|sim, context| {
        let (stream, destroy) = borrowed(sim, context);
        let (gate, _held) = make_wait(&stream);
        let mut uses = Uses::new();
        for _ in 0..3 {
            uses.record_stream(&once_more(&stream)).unwrap();
        }
        assert_eq!(uses.streams().len(), 1);
        let (first, second) = (once_more(&stream), once_more(&stream));
        let [open, closed] = [&first, &second].map(|value| uses.on(0x1000, value).unwrap());
        drop(closed);
        drop(open);
        assert_eq!(uses.streams().len(), 2);
        waits_for(&gate, || uses.wait().unwrap());
        drop((uses, first, second, stream));
        destroy();
    });
}

/// The stream of another binding, and whether it has ended.
struct Theirs {
    context: Context,
    raw: *mut c_void,
}

// SAFETY: the handle is a stream of the context until the test ends it, when nobody borrows this.
unsafe impl ForeignStream for Theirs {
    fn context(&self) -> &Context {
        &self.context
    }

    fn as_raw(&self) -> *mut c_void {
        self.raw
    }
}

#[test]
fn a_stream_that_is_borrowed_for_a_call_is_disowned_behind_it() {
    on_simulator(|sim, context| {
        let (stream, destroy) = borrowed(sim, context);
        let theirs = Theirs { context: context.clone(), raw: stream.as_raw() };
        stream.disown();
        let mut kept = None;
        let buffer = Stream::borrowed(&theirs, |stream| {
            kept = Some(stream.clone());
            DeviceBuffer::from_slice(stream, &[1, 2, 3])
        });
        let buffer = buffer.unwrap().unwrap();
        assert!(matches!(kept.take().unwrap().synchronize(), Err(Error::Disowned)));
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            Stream::borrowed(&theirs, |stream| {
                kept = Some(stream.clone());
                panic!("the caller's own")
            })
        }));
        assert!(panicked.is_err());
        assert!(matches!(kept.take().unwrap().synchronize(), Err(Error::Disowned)));
        destroy();
        let own = Stream::new(context).unwrap();
        assert_eq!(buffer.to_vec(&own).unwrap(), [1, 2, 3]);
        drop(buffer);
        assert_eq!(context.driver().reclaim(), 0);
    });
}

//! What is unregistered only while no stream is busy, at moments that only a simulator can choose.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cuda_mem_core::host::{RegisterFlags, Registered, SharedMapping};
use cuda_mem_core::ipc::SharedWords;
use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, Driver, Error, FenceLine, Stream};
use cuda_mem_sim::{Record, Sim};

use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::interrupted::{LIMIT, begin_to_capture, meanwhile, on_interrupted, until};
use crate::panicking::Panicking;
use crate::rig::{argument, on_simulator, text};

fn leave_words(context: &Context) {
    drop(SharedWords::create(context, 1).unwrap());
}

/// Between two questions about a stream its owner may begin to capture it, in another thread.
#[test]
fn a_capture_that_begins_while_streams_are_asked_goes_on() {
    on_interrupted(|sim, context| {
        let stream = Stream::new(context).unwrap();
        // SAFETY: the stream outlives what is borrowed of it.
        let lent = unsafe { Stream::borrow_raw(context, stream.as_raw()) }.unwrap();
        let captured = begin_to_capture(&lent);
        leave_words(context);
        let capture = captured.recv_timeout(LIMIT).unwrap();
        let asked = || sim.log().count("cuStreamIsCapturing");
        let before = asked();
        // Two streams, this time and the next.
        until("the streams are asked anew", || asked() > before + 4);
        assert_eq!(context.driver().registrations_left(), 1, "a stream that captures may be busy");
        assert_eq!(capture.end().unwrap().len(), 0);
    });
}

/// Every mention of the legacy stream ends the captures of blocking ones.
#[test]
fn a_blocking_stream_s_capture_that_begins_while_the_legacy_stream_is_asked_goes_on() {
    on_interrupted(|sim, context| {
        let _legacy = Stream::legacy(context).unwrap();
        let mut raw = ptr::null_mut();
        // SAFETY: one handle to write; the context is current.
        let made = context.with_current(|| unsafe { sim.table().cuStreamCreate().unwrap()(&mut raw, 0) });
        assert_eq!(made.unwrap(), CUresult::CUDA_SUCCESS);
        // SAFETY: destroyed when nobody has it any more.
        let blocking = unsafe { Stream::borrow_raw(context, raw.cast()) }.unwrap();
        let captured = begin_to_capture(&blocking);
        // What is asked now is the legacy stream alone.
        blocking.disown();
        leave_words(context);
        let capture = captured.recv_timeout(LIMIT).unwrap();
        until("nobody depends on the capture", || context.driver().registrations_left() == 0);
        assert_eq!(capture.end().unwrap().len(), 0);
        drop(blocking);
        // SAFETY: made above, destroyed once.
        assert_eq!(unsafe { sim.table().cuStreamDestroy().unwrap()(raw) }, CUresult::CUDA_SUCCESS);
    });
}

/// The driver would wait for it, and hold up whoever makes a stream.
#[test]
fn work_of_the_legacy_stream_is_seen() {
    on_interrupted(|sim, context| {
        let legacy = Stream::legacy(context).unwrap();
        let gate = Gate::before(&legacy);
        leave_words(context);
        let asked = || sim.log().count("cuEventRecord");
        let before = asked();
        until("it is asked twice", || asked() > before + 2);
        let made = std::thread::scope(|scope| {
            let making = scope.spawn(|| Stream::new(context).map(drop));
            let start = Instant::now();
            while !making.is_finished() && start.elapsed() < LIMIT {
                std::thread::sleep(Duration::from_millis(1));
            }
            let made = making.is_finished();
            gate.open();
            made
        });
        assert!(made, "memory is unregistered while the legacy stream is busy");
        drop((gate, legacy));
        // On the same driver, for which simulators of a process are few.
        a_context_is_named_no_more_once_its_last_stream_has_gone(sim, context);
    });
}

/// Whose stream it was may destroy it then, while others look at the streams.
fn a_context_is_named_no_more_once_its_last_stream_has_gone(sim: &'static Sim, context: &Context) {
    let lent = [(); 2].map(|()| {
        let (table, device, mut raw) = (sim.table(), context.device(), ptr::null_mut());
        // SAFETY: one handle to write, a valid device.
        let made = unsafe { table.cuCtxCreate().unwrap()(&mut raw, 0, device.as_raw()) };
        assert_eq!(made, CUresult::CUDA_SUCCESS);
        // SAFETY: takes the new context off the stack that it was put on.
        assert_eq!(unsafe { table.cuCtxPopCurrent().unwrap()(&mut raw) }, CUresult::CUDA_SUCCESS);
        // SAFETY: destroyed when nobody has it any more.
        let theirs = unsafe { Context::borrow_raw(device, raw.cast()) };
        let stream = Stream::new(&theirs).unwrap();
        assert!(!stream.as_raw().is_null());
        (stream, theirs)
    });
    let (gone, destroyed) = std::sync::mpsc::channel();
    let (left, others) = std::sync::mpsc::channel();
    meanwhile(move || {
        for (stream, theirs) in lent {
            let gone = gone.clone();
            std::thread::spawn(move || {
                let raw = theirs.as_raw();
                drop((stream, theirs));
                // SAFETY: made above, destroyed once.
                let destroyed = unsafe { sim.table().cuCtxDestroy().unwrap()(raw.cast()) };
                gone.send(destroyed).unwrap();
            });
        }
        // That of the other stream than the one which is recorded right now.
        left.send((destroyed.recv_timeout(LIMIT).unwrap(), destroyed)).unwrap();
    });
    let _ = context.driver().while_idle(|| ());
    let (other, destroyed) = others.recv_timeout(LIMIT).unwrap();
    let recorded = destroyed.recv_timeout(LIMIT).unwrap();
    assert_eq!([other, recorded], [CUresult::CUDA_SUCCESS; 2]);
    let records = sim.log().records();
    for (at, end) in records.iter().enumerate().filter(|(_, record)| record.function == "cuCtxDestroy") {
        let names = |record: &Record| {
            record.function == "cuCtxPushCurrent" && argument(record, "ctx") == argument(end, "ctx")
        };
        assert!(!records[at..].iter().any(names), "{}", text(&records));
    }
    assert_eq!(context.driver().release_failures(), 0);
}

/// A wait that no stream has keeps nothing registered.
#[test]
fn a_word_is_not_awaited_if_the_wait_was_refused() {
    on_simulator(|sim, context| {
        on_simulator(|_, elsewhere| {
            let (stream, theirs) = (Stream::new(context).unwrap(), Stream::new(elsewhere).unwrap());
            let words = SharedWords::create(context, 1).unwrap();
            let fence = words.line(0).unwrap().fence(1).unwrap();
            assert!(matches!(fence.make_wait(&theirs), Err(Error::ForeignContext { .. })));
            sim.fail_call("cuStreamWaitValue64", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
            assert!(matches!(fence.make_wait(&stream), Err(Error::Driver(_))));
            leave_words(context);
            until("nothing waits", || context.driver().registrations_left() == 0);
            drop((fence, words));
            until("nothing waits", || context.driver().registrations_left() == 0);
        });
    });
}

/// Another process may store anything in it.
#[test]
fn a_word_that_no_stream_waits_for_is_not_awaited() {
    on_simulator(|_, context| {
        let (driver, words) = (context.driver(), SharedWords::create(context, 1).unwrap());
        for value in [1 << 63, u64::MAX] {
            words.mapping().word(0).unwrap().store(value, Ordering::SeqCst);
            assert!(driver.while_nothing_is_awaited(|| ()).is_some(), "{value:#x}");
        }
        drop(words);
        until("nothing waits", || driver.registrations_left() == 0);
    });
}

/// Who registers memory in another way than what was left of it does not wait for the thread that tries again.
#[test]
fn what_is_left_goes_when_its_memory_is_registered_in_another_way() {
    on_interrupted(|_, held_up| {
        let stream = Stream::new(held_up).unwrap();
        assert!(!stream.as_raw().is_null());
        let (came, thread) = std::sync::mpsc::channel();
        let (go, on) = std::sync::mpsc::channel::<()>();
        meanwhile(move || {
            came.send(()).unwrap();
            // Gone on as well if the test has failed.
            let _ = on.recv_timeout(LIMIT);
        });
        leave_words(held_up);
        thread.recv_timeout(LIMIT).unwrap();
        on_simulator(|_, context| {
            let stream = Stream::new(context).unwrap();
            assert!(!stream.as_raw().is_null());
            let memory = SharedMapping::create(4096).unwrap();
            let register = |flags| Registered::new(context, memory.clone(), flags).map_err(Error::from);
            drop(register(RegisterFlags::PORTABLE).unwrap());
            assert_eq!(context.driver().registrations_left(), 1);
            let both = RegisterFlags::PORTABLE | RegisterFlags::MAPPED;
            let start = Instant::now();
            let anew = loop {
                match register(both) {
                    Ok(anew) => break anew,
                    Err(error) => assert!(start.elapsed() < LIMIT, "{error}"),
                }
            };
            assert_eq!(context.driver().registrations_left(), 0);
            drop(stream);
            drop(anew.close().map_err(Error::from).unwrap());
        });
        go.send(()).unwrap();
    });
}

/// The thread that tries again has asked every driver but one that is made while it unregisters something of another.
#[test]
fn what_a_driver_leaves_that_is_made_meanwhile_is_not_forgotten() {
    on_interrupted(|_, context| {
        let stream = Stream::new(context).unwrap();
        // So that it is the thread's to unregister.
        assert!(!stream.as_raw().is_null());
        leave_words(context);
        let (made, late) = std::sync::mpsc::channel();
        let make = move || {
            let sim = Sim::builder().build();
            let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
            let (driver, lent) = (context.driver(), Stream::new(&context).unwrap());
            assert!(!lent.as_raw().is_null());
            leave_words(&context);
            assert_eq!(driver.registrations_left(), 1, "it is the thread's to unregister");
            made.send((sim, lent, driver)).unwrap();
        };
        // Before the first event; the second time it is the registration.
        meanwhile(|| meanwhile(make));
        let (_sim, _lent, driver) = late.recv_timeout(LIMIT).unwrap();
        until("what was left is undone", || driver.registrations_left() == 0);
    });
}

/// It is dropped by whoever finds no stream busy: here, and in the thread that tries again.
#[test]
fn an_owner_whose_drop_panics_harms_nobody() {
    on_simulator(|_, context| {
        for is_lent in [false, true] {
            let stream = Stream::new(context).unwrap();
            if is_lent {
                assert!(!stream.as_raw().is_null());
            }
            let dropped = Arc::new(AtomicUsize::new(0));
            for _ in 0..2 {
                let memory = Panicking::new(SharedMapping::create(4096).unwrap(), &dropped);
                drop(Registered::new(context, memory, RegisterFlags::PORTABLE).unwrap());
                assert!(is_lent || dropped.load(Ordering::SeqCst) > 0);
            }
            until("both are undone", || context.driver().registrations_left() == 0);
            assert_eq!(dropped.load(Ordering::SeqCst), 2);
            leave_words(context);
            until("the thread comes back", || context.driver().registrations_left() == 0);
        }
    });
}

#[test]
fn something_is_freed_while_no_stream_is_busy_or_none_waits_for_a_fence() {
    on_simulator(|_, context| {
        let (driver, stream) = (context.driver(), Stream::new(context).unwrap());
        let freed = || {
            let is_idle = driver.while_idle(|| ()).is_some();
            (is_idle, driver.while_nothing_is_awaited(|| ()).is_some())
        };
        // What must not be freed never is; what may be is refused while memory of the same driver is freed, which is over at once.
        let expect = |wanted: (bool, bool)| {
            for _ in 0..5 {
                let now = freed();
                assert!(now.0 <= wanted.0 && now.1 <= wanted.1, "{now:?} for {wanted:?}");
            }
            until("what may be freed is", || freed() == wanted);
        };
        expect((true, true));
        let gate = Gate::before(&stream);
        expect((false, true));
        gate.open();
        stream.synchronize().unwrap();
        let capture = Capture::begin(&stream, RELAXED);
        expect((false, true));
        capture.end().unwrap();
        let line = FenceLine::new(context).unwrap();
        line.fence(1).unwrap().make_wait(&stream).unwrap();
        expect((false, false));
        line.poison();
        stream.synchronize().unwrap();
        expect((true, true));
        // No stream is given a wait meanwhile, and nobody else frees.
        let inside = || driver.while_idle(|| std::thread::scope(|scope| scope.spawn(freed).join().unwrap()));
        until("nobody frees beside", || {
            let inside = inside();
            assert!(matches!(inside, None | Some((false, false))), "{inside:?}");
            inside.is_some()
        });
    });
}

//! Fences that somebody was told of and that the driver refuses.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Driver, Error, FenceLine, Stream};
use cuda_mem_sim::Sim;

use crate::common::gate::Gate;
use crate::rig::on_simulator;

/// Another thread records on the line at once: its fence would let go whoever waits for the refused one.
#[test]
fn the_number_of_a_fence_that_was_refused_is_no_other_s() {
    let sim = Sim::builder().build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let (line, stream) = (FenceLine::new(&context).unwrap(), Stream::new(&context).unwrap());
    sim.fail_call("cuStreamWriteValue64", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let mut reserved = line.reserve().unwrap();
    let generation = reserved.announce();
    let other = (line.clone(), stream.clone());
    let next = thread::spawn(move || other.0.record(&other.1));
    let refused = reserved.record(&stream);
    assert!(matches!(refused, Err(Error::Driver(_))), "{refused:?}");
    let next = next.join().unwrap();
    assert!(matches!(next, Err(Error::Poisoned)), "{next:?}");
    assert!(matches!(line.fence(generation).unwrap().is_complete(), Err(Error::Poisoned)));
}

#[test]
fn a_fence_that_was_refused_and_nobody_told_of_leaves_its_line() {
    let sim = Sim::builder().build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let (line, stream) = (FenceLine::new(&context).unwrap(), Stream::new(&context).unwrap());
    sim.fail_call("cuStreamWriteValue64", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    line.record(&stream).unwrap_err();
    let fence = line.record(&stream).unwrap();
    stream.synchronize().unwrap();
    assert!(fence.is_complete().unwrap());
}

/// The driver refuses the write of the word, or what comes behind it. Other threads record on the line meanwhile.
#[test]
fn who_records_hears_whether_the_line_comes_to_the_number() {
    let sim = Sim::builder().build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let (line, stream) = (FenceLine::new(&context).unwrap(), Stream::new(&context).unwrap());
    // From here on somebody else may have it capture: it is asked behind the write too.
    assert!(!stream.as_raw().is_null());
    line.record(&stream).unwrap();
    sim.record(true);
    sim.log().clear();
    assert!(line.reserve().unwrap().record_counted(&stream).0);
    sim.record(false);
    let calls = sim.log().names();
    let before = calls.iter().take_while(|&&call| call != "cuStreamWriteValue64");
    let asked = before.filter(|&&call| call == "cuStreamIsCapturing").count() as u64;
    let behind = ("cuStreamIsCapturing", asked + 1, true);
    for (refused, nth, counts) in [("cuStreamWriteValue64", 1, false), behind] {
        sim.fail_call(refused, nth, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let reserved = line.reserve().unwrap();
        let other = (line.clone(), stream.clone());
        let next = thread::spawn(move || other.0.record(&other.1));
        let recorded = reserved.record_counted(&stream);
        assert!(recorded.0 == counts && recorded.1.is_err(), "{refused}: {recorded:?}");
        next.join().unwrap().unwrap();
    }
}

/// What the stream is given later is none of the line's business.
#[test]
fn the_drop_of_a_line_ends_although_its_stream_is_kept_busy() {
    on_simulator(|_, context| {
        let (line, stream) = (FenceLine::new(context).unwrap(), Stream::new(context).unwrap());
        let never = line.fence(5).unwrap();
        never.make_wait(&stream).unwrap();
        let is_over = AtomicBool::new(false);
        let (dropped, seen) = mpsc::channel();
        thread::scope(|threads| {
            let first = Gate::before(&stream);
            threads.spawn(|| {
                // All stay: a gate's drop waits for what the stream was given since.
                let mut gates = vec![first];
                while !is_over.load(Ordering::SeqCst) {
                    gates.push(Gate::before(&stream));
                    gates[gates.len() - 2].open();
                    thread::sleep(Duration::from_millis(1));
                }
                gates.iter().for_each(Gate::open);
            });
            threads.spawn(move || {
                drop((line, never));
                dropped.send(()).unwrap();
            });
            let seen = seen.recv_timeout(Duration::from_secs(5));
            is_over.store(true, Ordering::SeqCst);
            seen.expect("the drop waits for what came later");
        });
    });
}

#[test]
#[allow(clippy::mem_forget, reason = "it is what is tested")]
fn a_reservation_that_was_forgotten_holds_up_no_drop() {
    let (done, ended) = mpsc::channel();
    let thread = thread::spawn(move || {
        on_simulator(|_, context| {
            let (line, stream) = (FenceLine::new(context).unwrap(), Stream::new(context).unwrap());
            let mut reserved = line.reserve().unwrap();
            line.fence(reserved.announce()).unwrap().make_wait(&stream).unwrap();
            std::mem::forget(reserved);
            drop(line);
            stream.synchronize().unwrap();
        });
        done.send(()).unwrap();
    });
    assert_ne!(ended.recv_timeout(Duration::from_secs(60)), Err(mpsc::RecvTimeoutError::Timeout));
    thread.join().unwrap();
}

//! What waits to be released, and who releases it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use cuda_mem_core::host::{PinnedFlags, RegisterFlags, Registered};
use cuda_mem_core::{DeviceBuffer, FenceLine, PinnedBuffer, Stream, Uses};

use crate::common::capture::{Capture, RELAXED};
use crate::common::gate::Gate;
use crate::interrupted::{LIMIT, meanwhile, on_interrupted};
use crate::panicking::Panicking;
use crate::rig::on_simulator;

/// Whoever comes next finds what was put off, and has nothing to do with its owners.
#[test]
fn an_owner_whose_drop_panics_keeps_nobody_else_waiting() {
    on_simulator(|sim, context| {
        let driver = context.driver();
        let stream = Stream::new(context).unwrap();
        let dropped = Arc::new(AtomicUsize::new(0));
        let owned = |_| {
            let memory = Panicking::new(vec![0u8; 100], &dropped);
            let registered = Registered::new(context, memory, RegisterFlags::MAPPED).unwrap();
            drop(registered.on(&stream).unwrap());
            registered
        };
        let all = [0, 1, 2].map(owned);
        let capture = Capture::begin(&stream, RELAXED);
        drop(all);
        assert_eq!((driver.reclaim(), dropped.load(Ordering::SeqCst)), (3, 0));
        capture.end().unwrap();
        assert_eq!((driver.reclaim(), dropped.load(Ordering::SeqCst)), (0, 3));
        assert_eq!(sim.log().count("cuMemHostUnregister"), 3);
    });
}

/// Who is told that nothing waits may destroy streams.
#[test]
fn what_a_thread_releases_right_now_still_waits_for_the_others() {
    on_interrupted(|_, context| {
        let driver = context.driver();
        let stream = Stream::new(context).unwrap();
        let registered = Registered::new(context, vec![0u8; 100], RegisterFlags::MAPPED).unwrap();
        drop(registered.on(&stream).unwrap());
        let capture = Capture::begin(&stream, RELAXED);
        drop(registered);
        capture.end().unwrap();
        let (tell, told) = channel();
        meanwhile(move || tell.send(driver.reclaim()).unwrap());
        assert_eq!(driver.reclaim(), 0);
        assert_eq!(told.recv_timeout(LIMIT).unwrap(), 1);
    });
}

/// That caller has other work, which the stream may be waiting for.
#[test]
fn who_comes_upon_what_was_put_off_does_not_wait_for_its_uses() {
    on_simulator(|sim, context| {
        let driver = context.driver();
        let [busy, captures] = [(); 2].map(|()| Stream::new(context).unwrap());
        let gate = Gate::before(&busy);
        let registered = Registered::new(context, vec![0u8; 100], RegisterFlags::MAPPED).unwrap();
        let uses = Uses::new();
        [&busy, &captures].into_iter().for_each(|stream| uses.record_stream(stream).unwrap());
        registered.absorb_uses(uses);
        let capture = Capture::begin(&captures, RELAXED);
        drop(registered);
        capture.end().unwrap();
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || tell.send(driver.reclaim()).unwrap());
            let left = told.recv_timeout(Duration::from_secs(5));
            gate.open();
            assert_eq!(left, Ok(1));
        });
        busy.synchronize().unwrap();
        assert_eq!((driver.reclaim(), sim.log().count("cuMemHostUnregister")), (0, 1));
    });
}

/// The driver waits for all streams before it frees, and that caller's other work may be what one of them waits for.
#[test]
fn who_comes_upon_what_was_put_off_does_not_wait_for_a_fence() {
    on_simulator(|_, context| {
        let driver = context.driver();
        let [waits, captures] = [(); 2].map(|()| Stream::new(context).unwrap());
        let line = FenceLine::new(context).unwrap();
        let registered = Registered::new(context, vec![0u8; 100], RegisterFlags::MAPPED).unwrap();
        drop(registered.on(&captures).unwrap());
        let pinned = PinnedBuffer::<u8>::zeroed(context, 100, PinnedFlags::default()).unwrap();
        drop(pinned.on(&captures).unwrap());
        // Without a stream that this thread can name.
        let own = || DeviceBuffer::<u8>::zeroed(&Stream::per_thread(context).unwrap(), 100).unwrap();
        let buffer = std::thread::scope(|scope| scope.spawn(own).join().unwrap());
        drop(buffer.on(&captures).unwrap());
        let capture = Capture::begin(&captures, RELAXED);
        drop((registered, pinned, buffer));
        capture.end().unwrap();
        line.fence(1).unwrap().make_wait(&waits).unwrap();
        let (tell, told) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // The first look has an event recorded, which an idle stream soon comes to.
                driver.reclaim();
                std::thread::sleep(Duration::from_millis(20));
                tell.send(driver.reclaim()).unwrap();
            });
            let left = told.recv_timeout(Duration::from_secs(5));
            line.poison();
            assert_eq!(left, Ok(3));
        });
        waits.synchronize().unwrap();
        assert_eq!(driver.reclaim(), 0);
    });
}

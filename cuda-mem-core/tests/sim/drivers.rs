//! Two drivers in one process: each for its own.

use std::sync::{Arc, Mutex};

use cuda_mem_core::host::{PinnedFlags, RegisterFlags, Registered};
use cuda_mem_core::{
    Context, DeviceBuffer, Driver, Error, Event, Fence, FenceLine, LateReports, ManagedBuffer, PinnedBuffer,
    Stream, Transfer,
};
use cuda_mem_sim::Sim;

use crate::rig::on_simulator;

fn on_two(test: impl FnOnce(&Context, &Context)) {
    on_simulator(|_, one| on_simulator(|_, two| test(one, two)));
}

#[test]
fn two_drivers_work_beside_each_other() {
    on_two(|one, two| {
        assert_ne!(one.driver(), two.driver());
        assert_ne!(one, two);
        let (here, there) = (Stream::new(one).unwrap(), Stream::new(two).unwrap());
        let mine = DeviceBuffer::from_slice(&here, &[1u8; 1000]).unwrap();
        let theirs = DeviceBuffer::from_slice(&there, &[2u8; 1000]).unwrap();
        assert_eq!(mine.to_vec(&here).unwrap(), [1; 1000]);
        assert_eq!(theirs.to_vec(&there).unwrap(), [2; 1000]);
    });
}

#[test]
fn what_belongs_to_one_is_never_passed_to_the_other() {
    on_two(|one, two| {
        let (here, there) = (Stream::new(one).unwrap(), Stream::new(two).unwrap());
        let mine = DeviceBuffer::<u8>::zeroed(&here, 100).unwrap();
        let theirs = DeviceBuffer::<u8>::zeroed(&there, 100).unwrap();
        let event = Event::new(two).unwrap();
        let line = FenceLine::new(two).unwrap();
        let pinned = PinnedBuffer::<u8>::zeroed(two, 100, PinnedFlags::MAPPED).unwrap();
        let managed = ManagedBuffer::<u8>::zeroed(two, 100).unwrap();
        let registered = Registered::new(two, vec![0u8; 100], RegisterFlags::MAPPED).unwrap();
        // A word that is not reached yet: a fence that is complete has nothing to wait for.
        let gate = crate::common::gate::Gate::before(&there);
        let word = line.record(&there).unwrap();
        let results = [
            ("fill_bytes", theirs.whole().fill_bytes(&here, 1)),
            ("to_vec", theirs.to_vec(&here).map(drop)),
            ("on", theirs.on(&here).map(drop)),
            ("on_read", theirs.on_read(&here).map(drop)),
            ("copy from theirs", mine.whole().copy_from(&here, &theirs.whole())),
            ("copy to theirs", theirs.whole().copy_from(&here, &mine.whole())),
            ("record", here.record(&event)),
            ("wait", here.wait(&event)),
            ("wait_stream", here.wait_stream(&there)),
            ("Fence::make_wait", Fence::record(&there).unwrap().make_wait(&here)),
            ("Fence::make_wait of a word", word.make_wait(&here)),
            ("FenceLine::record", line.record(&here).map(drop)),
            ("PinnedBuffer::on", pinned.on(&here).map(drop)),
            ("ManagedBuffer::on", managed.on(&here).map(drop)),
            ("Registered::on", registered.on(&here).map(drop)),
            (
                "Transfer::upload",
                Transfer::upload(&here, vec![0u8; 100], &theirs.whole()).map(drop).map_err(Error::from),
            ),
            ("can_access_peer", one.device().can_access_peer(two.device()).map(drop)),
        ];
        gate.open();
        for (call, result) in results {
            assert!(matches!(result, Err(Error::ForeignContext { .. })), "{call}: {result:?}");
        }
    });
}

#[test]
fn each_has_its_own_registrations_and_failures() {
    on_two(|one, two| {
        let registered = Registered::new(one, vec![0u8; 5000], RegisterFlags::default()).unwrap();
        // The other driver knows nothing of it.
        drop(Registered::new(two, registered, RegisterFlags::MAPPED).unwrap());
        assert_eq!((one.driver().release_failures(), two.driver().release_failures()), (0, 0));
    });
}

#[test]
fn failures_are_told_when_the_thread_holds_them_back_no_more() {
    on_simulator(|_, context| {
        let driver = context.driver();
        let told = Arc::new(Mutex::new(Vec::new()));
        let tell = Arc::clone(&told);
        driver.on_release_failure(move |error| {
            // As whoever has a lock and calls the driver.
            drop(LateReports::new());
            tell.lock().unwrap().push(error.to_string());
        });
        let failures = ["first", "second"].map(|what| Error::ForeignContext { what });
        let reports = [LateReports::new(), LateReports::new()];
        failures.iter().for_each(|failure| driver.report_release_failure(failure));
        let [outer, inner] = reports;
        drop(outer);
        assert_eq!((driver.release_failures(), told.lock().unwrap().len()), (2, 0));
        // Another thread tells of its own at once.
        let third = Error::ForeignContext { what: "third" };
        std::thread::scope(|scope| scope.spawn(|| driver.report_release_failure(&third)).join().unwrap());
        drop(inner);
        let expected: Vec<_> = [&third, &failures[0], &failures[1]].map(ToString::to_string).into();
        assert_eq!(*told.lock().unwrap(), expected);
        driver.on_release_failure(|_| {});
    });
}

#[test]
fn a_simulator_that_is_gone_fails_calls_and_silences_releases() {
    // In a process of its own: another test's simulator would take the place of the one that is gone.
    let test = "drivers::a_simulator_that_is_gone_fails_calls_and_silences_releases";
    if let Some(output) = crate::common::child::again(test, &[]) {
        return crate::common::child::expect_silent_success(&output);
    }
    let sim = Sim::builder().build();
    let driver = Driver::over(sim.table()).unwrap();
    let context = driver.device(0).unwrap().primary_context().unwrap();
    let stream = Stream::new(&context).unwrap();
    let buffer = DeviceBuffer::<u8>::zeroed(&stream, 100).unwrap();
    stream.synchronize().unwrap();
    drop(sim);
    // As a driver that ends with its process while handles are still alive.
    assert!(buffer.to_vec(&stream).is_err());
    drop((buffer, stream, context));
    assert_eq!(driver.release_failures(), 0);
}

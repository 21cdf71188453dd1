//! A driver that holds somebody up hides nobody's death.

use std::thread;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Driver, FenceLine, Stream};
use cuda_mem_ipc::shared::{Exporter, Importer, SharedPool, SharedPoolOptions};
use cuda_mem_sim::Sim;
use rustix::process::Signal;

use crate::other::{LIMIT, Other, both_ends, connected, eventually};

const LEN: usize = 1000;

/// The call is one that has a stream wait for what a receiver has given back, and another receiver gives the same buffer back meanwhile.
#[test]
fn a_call_that_does_not_return_hides_no_peer_s_death() {
    const NAME: &str = "stalled::a_call_that_does_not_return_hides_no_peer_s_death";
    // It stays, with the call.
    let sim: &Sim = Box::leak(Box::new(Sim::builder().build()));
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    if let Some(connection) = connected() {
        let importer = Importer::new(&context, connection, LIMIT).unwrap();
        let _buffer = importer.recv(LIMIT).unwrap();
        // Killed with it.
        assert!(importer.recv(10 * LIMIT).is_ok());
    }
    let (other, connection) = Other::start(NAME);
    let to_other = Exporter::new(&context, connection, LIMIT).unwrap();
    let (here, there) = both_ends();
    let theirs = context.clone();
    let importer = thread::spawn(move || Importer::new(&theirs, there, LIMIT).unwrap());
    let exporter = Exporter::new(&context, here, LIMIT).unwrap();
    let importer = importer.join().unwrap();

    let [producer, consumer, stalled] = [(); 3].map(|()| Stream::new(&context).unwrap());
    let pool = SharedPool::new(&context, &SharedPoolOptions::default()).unwrap();
    let buffer = pool.allocate(LEN, &producer).unwrap();
    to_other.hand_over(&pool.allocate(LEN, &producer).unwrap(), &producer, LIMIT).unwrap();
    let mut received = [(); 2].map(|()| {
        exporter.hand_over(&buffer, &producer, LIMIT).unwrap();
        Some(importer.recv(LIMIT).unwrap())
    });
    producer.synchronize().unwrap();
    let gate = FenceLine::new(&context).unwrap();
    gate.fence(1).unwrap().make_wait(&consumer).unwrap();
    received.iter().flatten().for_each(|received| drop(received.on(&consumer).unwrap()));
    received[0] = None;
    eventually("the first is back", || exporter.leases() == 1);

    sim.delay("cuStreamWaitValue64", 10 * LIMIT);
    sim.fail_call("cuStreamWaitValue64", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let kept = buffer.clone();
    let stalled = thread::spawn(move || drop(kept.on(&stalled)));
    eventually("the call has begun", || sim.struck().len() == 1);
    received[1] = None;
    eventually("the second is back", || exporter.leases() == 0);
    other.signal(Signal::KILL);
    eventually("the other's death is noticed", || to_other.leases() == 0);
    assert!(!stalled.is_finished(), "the call has not returned");
}

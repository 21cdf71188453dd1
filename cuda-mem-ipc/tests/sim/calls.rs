//! What hand-overs cost the driver, call by call.

use std::time::Instant;

use cuda_mem_core::{Driver, Stream};
use cuda_mem_ipc::shared::{Exporter, Importer, SharedPool, SharedPoolOptions};
use cuda_mem_sim::Sim;

use crate::other::{LIMIT, both_ends};

/// The calls that something makes, in their order. Those that ask whether it may go on count too.
fn calls_of<R>(sim: &Sim, what: impl FnOnce() -> R) -> (R, Vec<&'static str>) {
    let before = sim.log().records().len();
    let result = what();
    (result, sim.log().records()[before..].iter().map(|record| record.function).collect())
}

#[test]
fn a_hand_over_takes_few_calls() {
    let sim = Sim::builder().build();
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let (here, there) = both_ends();
    let theirs = context.clone();
    let importer = std::thread::spawn(move || Importer::new(&theirs, there, LIMIT).unwrap());
    let exporter = Exporter::new(&context, here, LIMIT).unwrap();
    let importer = importer.join().unwrap();
    let (producer, consumer) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
    let pool = SharedPool::new(&context, &SharedPoolOptions::default()).unwrap();
    let buffer = pool.allocate(1000, &producer).unwrap();

    sim.record(true);
    exporter.hand_over(&buffer, &producer, LIMIT).unwrap();
    let (received, mapping) = calls_of(&sim, || importer.recv(LIMIT).unwrap());
    eprintln!("first mapping: {mapping:?}");
    drop(received);

    for _ in 0..3 {
        let start = Instant::now();
        while exporter.leases() > 0 {
            assert!(start.elapsed() < LIMIT);
            std::thread::yield_now();
        }
        let (_, handing) = calls_of(&sim, || exporter.hand_over(&buffer, &producer, LIMIT).unwrap());
        let (received, receiving) = calls_of(&sim, || importer.recv(LIMIT).unwrap());
        let (_, ordering) = calls_of(&sim, || drop(received.on(&consumer).unwrap()));
        let (_, returning) = calls_of(&sim, || drop(received));
        eprintln!(
            "hand over: {handing:?}\nreceive: {receiving:?}\norder: {ordering:?}\nreturn: {returning:?}"
        );
    }
}

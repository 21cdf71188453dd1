//! What hand-overs cost the driver, call by call: what is asked beside the operations is there for soundness, and for captures.

use std::time::Instant;

use cuda_mem_core::{Driver, FenceLine, Stream};
use cuda_mem_ipc::shared::{AheadLimit, Exporter, Importer, SharedPool, SharedPoolOptions};
use cuda_mem_sim::Sim;

use crate::other::{LIMIT, both_ends};
use crate::own_sim::OwnSim;

/// The calls of this thread that something makes, in their order.
pub(crate) fn calls_of<R>(sim: &Sim, what: impl FnOnce() -> R) -> (R, Vec<&'static str>) {
    // To know the thread by.
    let device = Driver::over(sim.table()).unwrap().device(0).unwrap();
    sim.log().clear();
    device.name().unwrap();
    let result = what();
    let records = sim.log().records();
    let named = records.iter().find(|record| record.function == "cuDeviceGetName").unwrap();
    let own = records.iter().filter(|record| record.thread == named.thread && record.number > named.number);
    (result, own.map(|record| record.function).collect())
}

/// One operation of a stream. The context is not current in this thread, as it is in most: there, the third and the last go.
fn operation(name: &'static str) -> [&'static str; 5] {
    ["cuStreamIsCapturing", "cuCtxGetCurrent", "cuCtxPushCurrent", name, "cuCtxPopCurrent"]
}

#[test]
fn a_hand_over_is_one_operation_on_either_stream_and_its_return_too() {
    let sim = OwnSim::of(Sim::builder());
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let (here, there) = both_ends();
    let theirs = context.clone();
    let importer =
        std::thread::spawn(move || Importer::with_ahead(&theirs, there, AheadLimit::NONE, LIMIT).unwrap());
    let exporter = Exporter::new(&context, here, LIMIT).unwrap();
    let importer = importer.join().unwrap();
    let (producer, consumer) = (Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
    let pool = SharedPool::new(&context, &SharedPoolOptions::default()).unwrap();
    let buffer = pool.allocate(1000, &producer).unwrap();

    sim.record(true);
    exporter.hand_over(&buffer, &producer, LIMIT).unwrap();
    let (received, mapping) = calls_of(&sim, || importer.recv(LIMIT).unwrap());
    let expected = [
        "cuMemAddressReserve",
        "cuThreadExchangeStreamCaptureMode",
        "cuMemImportFromShareableHandle",
        "cuMemGetAllocationPropertiesFromHandle",
        "cuThreadExchangeStreamCaptureMode",
        "cuMemMap",
        "cuMemSetAccess",
    ];
    assert_eq!(mapping, expected, "the first buffer of a segment");
    drop(received);

    for round in 0..3 {
        let start = Instant::now();
        while exporter.leases() > 0 {
            assert!(start.elapsed() < LIMIT);
            std::thread::yield_now();
        }
        // The producer's work is not done when the buffer comes, so that the consumer's stream has to wait.
        let line = FenceLine::new(&context).unwrap();
        line.fence(1).unwrap().make_wait(&producer).unwrap();
        let (_, handing) = calls_of(&sim, || exporter.hand_over(&buffer, &producer, LIMIT).unwrap());
        assert_eq!(handing, operation("cuStreamWriteValue64"), "round {round}");
        let (received, receiving) = calls_of(&sim, || importer.recv(LIMIT).unwrap());
        assert!(receiving.is_empty(), "round {round}: {receiving:?}");
        let (_, ordering) = calls_of(&sim, || drop(received.on(&consumer).unwrap()));
        // Nobody else can have the consumer's stream capture, so it is not asked.
        assert_eq!(ordering, operation("cuStreamWaitValue64")[1..], "round {round}");
        let (_, returning) = calls_of(&sim, || drop(received));
        assert_eq!(returning, operation("cuStreamWriteValue64"), "round {round}");
        line.poison();
    }
}

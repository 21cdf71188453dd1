//! Hand-overs to another process: the receiver has the entry while the sender's driver still records the fence.

use std::time::{Duration, Instant};

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, Driver, Error as CoreError, Stream};
use cuda_mem_ipc::Error;
use cuda_mem_ipc::shared::{Exporter, Importer, SharedPool, SharedPoolOptions};
use cuda_mem_sim::Sim;
use rustix::process::Signal;

use crate::other::{LIMIT, Other, connected, eventually};
use crate::own_sim::OwnSim;

const LEN: usize = 1000;

fn context(sim: &Sim) -> Context {
    Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap()
}

#[test]
fn a_stream_waits_while_the_fence_is_being_recorded_and_goes_on_if_its_sender_dies_there() {
    const NAME: &str =
        "beside::a_stream_waits_while_the_fence_is_being_recorded_and_goes_on_if_its_sender_dies_there";
    let sim = OwnSim::of(Sim::builder());
    let context = context(&sim);
    let stream = Stream::new(&context).unwrap();
    if let Some(connection) = connected() {
        let exporter = Exporter::new(&context, connection, LIMIT).unwrap();
        let pool = SharedPool::new(&context, &SharedPoolOptions::default()).unwrap();
        let buffer = pool.allocate(LEN, &stream).unwrap();
        // It does not live that long.
        sim.delay("cuStreamWriteValue64", 10 * LIMIT);
        exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
        return;
    }
    let (other, connection) = Other::start(NAME);
    let importer = Importer::new(&context, connection, LIMIT).unwrap();
    let start = Instant::now();
    let buffer = loop {
        // Whoever was called before the entry was there, and sleeps again, is called again behind the fence's call, which does not return.
        match importer.recv(Duration::from_millis(10)) {
            Err(error) if error.is_timeout() => assert!(start.elapsed() < LIMIT, "the entry comes"),
            received => break received.unwrap(),
        }
    };
    assert!(!buffer.is_ready().unwrap());
    drop(buffer.on(&stream).unwrap());
    assert!(!stream.is_idle().unwrap(), "nobody has recorded what it waits for");
    other.signal(Signal::KILL);
    eventually("the stream goes on", || stream.is_idle().unwrap());
    assert!(matches!(buffer.is_ready(), Err(Error::PeerDied { .. })));
    drop(buffer);
    assert!(importer.recv(LIMIT).unwrap_err().is_gone());
}

#[test]
fn who_has_a_buffer_whose_fence_is_refused_is_let_go() {
    const NAME: &str = "beside::who_has_a_buffer_whose_fence_is_refused_is_let_go";
    let sim = OwnSim::of(Sim::builder());
    let context = context(&sim);
    let stream = Stream::new(&context).unwrap();
    if let Some(connection) = connected() {
        let exporter = Exporter::new(&context, connection, LIMIT).unwrap();
        let pool = SharedPool::new(&context, &SharedPoolOptions::default()).unwrap();
        let buffer = pool.allocate(LEN, &stream).unwrap();
        sim.fail_call("cuStreamWriteValue64", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let error = exporter.hand_over(&buffer, &stream, LIMIT).unwrap_err();
        assert!(error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
        assert_eq!(sim.struck().len(), 1);
        // Nothing says any more when work is done that the receiver was told of.
        assert!(exporter.hand_over(&buffer, &stream, LIMIT).is_err());
        eventually("it goes back", || exporter.leases() == 0);
        return;
    }
    let (other, connection) = Other::start(NAME);
    let importer = Importer::new(&context, connection, LIMIT).unwrap();
    let refused = importer.recv(LIMIT).unwrap();
    // At once or when the poison comes.
    let _ = refused.on(&stream).map(drop);
    eventually("it is known that nothing comes", || refused.is_ready().is_err());
    assert!(matches!(refused.is_ready(), Err(Error::PeerDied { .. })));
    assert!(matches!(refused.on(&stream).map(drop), Err(Error::PeerDied { .. })));
    stream.synchronize().unwrap();
    assert!(importer.recv(LIMIT).unwrap_err().is_gone());
    drop(refused);
    other.finish();
}

#[test]
fn a_buffer_of_another_driver_ends_no_connection() {
    const NAME: &str = "beside::a_buffer_of_another_driver_ends_no_connection";
    let sim = OwnSim::of(Sim::builder());
    let context = context(&sim);
    let stream = Stream::new(&context).unwrap();
    if let Some(connection) = connected() {
        let importer = Importer::new(&context, connection, LIMIT).unwrap();
        importer.recv(LIMIT).unwrap().synchronize(LIMIT).unwrap();
        return;
    }
    let (other, connection) = Other::start(NAME);
    let exporter = Exporter::new(&context, connection, LIMIT).unwrap();
    let theirs = OwnSim::of(Sim::builder());
    let foreign = self::context(&theirs);
    let there = Stream::new(&foreign).unwrap();
    let [mine, foreign] = [(&context, &stream), (&foreign, &there)].map(|(context, stream)| {
        SharedPool::new(context, &SharedPoolOptions::default()).unwrap().allocate(LEN, stream).unwrap()
    });
    for (buffer, stream) in [(&foreign, &there), (&foreign, &stream), (&mine, &there)] {
        let refused = exporter.hand_over(buffer, stream, LIMIT).unwrap_err();
        assert!(matches!(refused, Error::Core(CoreError::ForeignContext { .. })), "{refused}");
    }
    exporter.hand_over(&mine, &stream, LIMIT).unwrap();
    other.finish();
}

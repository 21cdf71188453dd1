//! Fences that the driver refuses before the peer was told of them.

use std::thread;
use std::time::Instant;

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, Driver, FenceLine, Stream};
use cuda_mem_ipc::shared::{Exporter, Importer, MemoryKind, SharedPool, SharedPoolOptions};
use cuda_mem_sim::Sim;

use crate::other::{LIMIT, both_ends};
use crate::own_sim::OwnSim;

const LEN: usize = 2 << 20;

fn ends(sim: &Sim) -> (Context, Exporter, Importer) {
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let (here, there) = both_ends();
    let theirs = context.clone();
    let importer = thread::spawn(move || Importer::new(&theirs, there, LIMIT).unwrap());
    let exporter = Exporter::new(&context, here, LIMIT).unwrap();
    (context, exporter, importer.join().unwrap())
}

/// In one process the entry comes behind the fence, and nobody waits for one that is refused.
#[test]
fn a_hand_over_that_is_refused_leaves_those_before_it() {
    let sim = OwnSim::of(Sim::builder());
    let (context, exporter, importer) = ends(&sim);
    let pool = SharedPool::new(&context, &SharedPoolOptions::default()).unwrap();
    let (stream, gate) = (Stream::new(&context).unwrap(), FenceLine::new(&context).unwrap());
    let buffer = pool.allocate(LEN, &stream).unwrap();
    gate.fence(1).unwrap().make_wait(&stream).unwrap();
    exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
    sim.fail_call("cuStreamWriteValue64", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    exporter.hand_over(&buffer, &stream, LIMIT).unwrap_err();
    let received = importer.recv(LIMIT).unwrap();
    assert!(!received.is_ready().unwrap());
    gate.poison();
    received.synchronize(LIMIT).unwrap();
}

/// The importer's stream is not done with the first buffer when the fence of the second one is refused.
#[test]
fn a_release_that_is_refused_leaves_those_before_it() {
    let sim = OwnSim::of(Sim::builder());
    let (context, exporter, importer) = ends(&sim);
    let options = SharedPoolOptions { kind: MemoryKind::Device, segment_bytes: LEN };
    let pool = SharedPool::new(&context, &options).unwrap();
    let [writer, reader, next] = [(); 3].map(|()| Stream::new(&context).unwrap());
    let until_leases = |count| {
        let start = Instant::now();
        while exporter.leases() != count {
            assert!(start.elapsed() < LIMIT);
            thread::yield_now();
        }
    };
    let buffers = [(); 2].map(|()| pool.allocate(LEN, &writer).unwrap());
    let [first, second] = buffers.each_ref().map(|buffer| {
        exporter.hand_over(buffer, &writer, LIMIT).unwrap();
        importer.recv(LIMIT).unwrap()
    });
    writer.synchronize().unwrap();
    drop((first.on(&reader).unwrap(), second.on(&reader).unwrap()));
    let gate = FenceLine::new(&context).unwrap();
    gate.fence(1).unwrap().make_wait(&reader).unwrap();
    drop(first);
    until_leases(1);
    sim.fail_call("cuStreamWriteValue64", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    drop(second);
    until_leases(0);
    assert_eq!(sim.struck().len(), 1);
    let [first, second] = buffers;
    let address = first.as_raw();
    drop(first);
    let again = pool.allocate(LEN, &next).unwrap();
    assert_eq!(again.as_raw(), address);
    drop(again.on(&next).unwrap());
    assert!(!next.is_idle().unwrap(), "the importer's stream is not done with it");
    gate.poison();
    next.synchronize().unwrap();
    drop(second);
}

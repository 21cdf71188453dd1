//! What an allocation waits for, however often its memory was used.

use std::time::Instant;

use cuda_mem_core::{Context, Driver, FenceLine, Stream};
use cuda_mem_ipc::shared::{Exporter, Importer, SharedPool, SharedPoolOptions};
use cuda_mem_sim::Sim;

use crate::calls::calls_of;
use crate::other::{LIMIT, both_ends};
use crate::own_sim::OwnSim;

const COUNT: usize = 300;

const LEN: usize = 1024;

fn context(sim: &Sim) -> Context {
    Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap()
}

/// How often a stream was made to wait for an event, and for a word, by an allocation of all that a pool has.
fn waits_of_an_allocation(sim: &Sim, pool: &SharedPool, next: &Stream) -> [usize; 2] {
    sim.record(true);
    let bytes = pool.reserved_bytes();
    let (buffer, calls) = calls_of(sim, || pool.allocate(bytes, next).unwrap());
    assert_eq!(pool.reserved_bytes(), bytes, "no new memory");
    drop(buffer);
    sim.record(false);
    ["cuStreamWaitEvent", "cuStreamWaitValue64"]
        .map(|name| calls.iter().filter(|call| call.starts_with(name)).count())
}

#[test]
fn one_wait_stands_for_many_releases_of_a_line() {
    let sim = OwnSim::of(Sim::builder());
    let context = context(&sim);
    let (here, there) = both_ends();
    let theirs = context.clone();
    let importer = std::thread::spawn(move || Importer::new(&theirs, there, LIMIT).unwrap());
    let exporter = Exporter::new(&context, here, LIMIT).unwrap();
    let importer = importer.join().unwrap();
    let (producer, consumer, next) =
        (Stream::new(&context).unwrap(), Stream::new(&context).unwrap(), Stream::new(&context).unwrap());
    let options = SharedPoolOptions { segment_bytes: 2 << 20, ..SharedPoolOptions::default() };
    let pool = SharedPool::new(&context, &options).unwrap();
    let buffers = (0..COUNT).map(|_| pool.allocate(LEN, &producer).unwrap()).collect::<Vec<_>>();
    let gate = FenceLine::new(&context).unwrap();
    gate.fence(1).unwrap().make_wait(&consumer).unwrap();
    let mut last = None;
    for buffer in buffers {
        exporter.hand_over(&buffer, &producer, LIMIT).unwrap();
        drop(importer.recv(LIMIT).unwrap().on(&consumer).unwrap());
        last = Some(buffer);
    }
    let start = Instant::now();
    while exporter.leases() > 0 {
        assert!(start.elapsed() < LIMIT, "all go back");
        std::thread::yield_now();
    }
    // The last point in the producer comes when no other thread records one: of two that are recorded at once neither stands for the other.
    drop(last);
    // Only their last uses here are over.
    producer.synchronize().unwrap();
    let waits = waits_of_an_allocation(&sim, &pool, &next);
    assert_eq!(waits, [1, 1], "one for the producer, and one for the line of the consumer");
    assert!(!next.is_idle().unwrap(), "it waits for the consumer");
    gate.poison();
    next.synchronize().unwrap();
}

#[test]
fn one_wait_stands_for_many_uses_of_a_stream() {
    let sim = OwnSim::of(Sim::builder());
    let context = context(&sim);
    let (streams, next) = ([(); 2].map(|()| Stream::new(&context).unwrap()), Stream::new(&context).unwrap());
    let [stream, idle] = &streams;
    let options = SharedPoolOptions { segment_bytes: 2 << 20, ..SharedPoolOptions::default() };
    let pool = SharedPool::new(&context, &options).unwrap();
    let buffers = (0..COUNT).map(|_| pool.allocate(LEN, idle).unwrap()).collect::<Vec<_>>();
    let gate = FenceLine::new(&context).unwrap();
    gate.fence(1).unwrap().make_wait(stream).unwrap();
    for (buffer, stream) in buffers.into_iter().zip(streams.iter().cycle()) {
        drop(buffer.on(stream).unwrap());
    }
    assert_eq!(waits_of_an_allocation(&sim, &pool, &next), [2, 0], "one for either stream");
    assert!(!next.is_idle().unwrap(), "it waits for the stream");
    gate.poison();
    next.synchronize().unwrap();
}

/// Its uses have their points when they end, so that the last one of them is not the last one that is heard of.
#[test]
fn one_wait_stands_for_many_uses_of_a_thread_s_default_stream() {
    let sim = OwnSim::of(Sim::builder());
    let context = context(&sim);
    let (stream, next) = (Stream::per_thread(&context).unwrap(), Stream::new(&context).unwrap());
    let options = SharedPoolOptions { segment_bytes: 2 << 20, ..SharedPoolOptions::default() };
    let pool = SharedPool::new(&context, &options).unwrap();
    let mut buffers = (0..COUNT).map(|_| pool.allocate(LEN, &stream).unwrap()).collect::<Vec<_>>();
    buffers.iter().take(COUNT / 2).for_each(|buffer| drop(buffer.on(&stream).unwrap()));
    let gate = FenceLine::new(&context).unwrap();
    gate.fence(1).unwrap().make_wait(&stream).unwrap();
    buffers.iter().skip(COUNT / 2).for_each(|buffer| drop(buffer.on(&stream).unwrap()));
    while buffers.pop().is_some() {}
    assert_eq!(waits_of_an_allocation(&sim, &pool, &next), [1, 0]);
    assert!(!next.is_idle().unwrap(), "it waits for the stream's last use");
    gate.poison();
    next.synchronize().unwrap();
}

//! Receivers that sleep, and are called before there is anything for them.

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, Driver, Stream};
use cuda_mem_ipc::shared::{Exporter, Importer, SharedPool, SharedPoolOptions};
use cuda_mem_sim::Sim;

use crate::other::{LIMIT, both_ends};
use crate::own_sim::OwnSim;

/// Longer than a receiver looks before it sleeps.
const PAUSE: Duration = Duration::from_micros(200);

fn ends(context: &Context) -> (Exporter, Importer) {
    let (here, there) = both_ends();
    let theirs = context.clone();
    let importer = thread::spawn(move || Importer::new(&theirs, there, LIMIT).unwrap());
    let exporter = Exporter::new(context, here, LIMIT).unwrap();
    (exporter, importer.join().unwrap())
}

/// Until all that was handed over has come back.
fn wait_for_leases(exporter: &Exporter) {
    let start = Instant::now();
    while exporter.leases() > 0 {
        assert!(start.elapsed() < LIMIT);
        thread::yield_now();
    }
}

#[test]
fn a_call_that_no_buffer_follows_wakes_nobody_for_good() {
    const ROUNDS: usize = 20;
    let sim = OwnSim::of(Sim::builder());
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let (exporter, importer) = ends(&context);
    let receiver = thread::spawn(move || {
        // Not used, so that nothing but a hand-over has a stream write a word.
        (0..ROUNDS).map(|_| importer.recv(LIMIT).unwrap().sequence()).collect::<Vec<_>>()
    });
    let stream = Stream::new(&context).unwrap();
    let pool = SharedPool::new(&context, &SharedPoolOptions::default()).unwrap();
    let mut handed = Vec::new();
    for round in 1..=ROUNDS {
        let buffer = pool.allocate(1000, &stream).unwrap();
        thread::sleep(PAUSE);
        sim.fail_call("cuStreamWriteValue64", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let error = exporter.hand_over(&buffer, &stream, LIMIT).unwrap_err();
        assert!(error.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{error}");
        assert_eq!(sim.struck().len(), round);
        thread::sleep(PAUSE * u32::try_from(round % 2).unwrap());
        handed.push(exporter.hand_over(&buffer, &stream, LIMIT).unwrap());
    }
    assert_eq!(receiver.join().unwrap(), handed, "what failed was not received, and nothing else was lost");
    wait_for_leases(&exporter);
    stream.synchronize().unwrap();
    assert_eq!(pool.trim(), SharedPoolOptions::default().segment_bytes, "no lease has kept a buffer");
}

#[test]
fn several_who_sleep_and_several_who_hand_over_lose_nothing() {
    const EACH: usize = 200;
    let context = Driver::over(cuda_mem_sim::table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let (exporter, importer) = ends(&context);
    let pool = SharedPool::new(&context, &SharedPoolOptions::default()).unwrap();
    let (handed, received) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for giver in 0..2u32 {
            let (context, pool, exporter, handed) = (&context, &pool, &exporter, &handed);
            scope.spawn(move || {
                let stream = Stream::new(context).unwrap();
                for index in 0..EACH {
                    let buffer = pool.allocate(1000, &stream).unwrap();
                    let sequence = exporter.hand_over(&buffer, &stream, LIMIT).unwrap();
                    handed.lock().unwrap().push(sequence);
                    if index % 3 == 0 {
                        thread::sleep(PAUSE * giver);
                    }
                }
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let sequence = importer.recv(LIMIT).unwrap().sequence();
                    received.lock().unwrap().push(sequence);
                }
            });
        }
    });
    let [mut handed, mut received] = [handed, received].map(|numbers| numbers.into_inner().unwrap());
    handed.sort_unstable();
    received.sort_unstable();
    assert_eq!(handed, received);
    wait_for_leases(&exporter);
}

#[test]
fn who_looks_for_a_moment_again_and_again_hears_of_the_end() {
    let context = Driver::over(cuda_mem_sim::table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let (exporter, importer) = ends(&context);
    drop(exporter);
    let start = Instant::now();
    let error = loop {
        match importer.recv(Duration::from_micros(10)) {
            Err(error) if error.is_timeout() => assert!(start.elapsed() < LIMIT),
            Err(error) => break error,
            Ok(received) => panic!("{received:?} was not handed over"),
        }
    };
    assert!(error.is_gone(), "{error}");
}

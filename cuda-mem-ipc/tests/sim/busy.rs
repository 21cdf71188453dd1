//! Memory that was used on a stream which always has something to do.

use std::time::{Duration, Instant};

use cuda_mem_core::{Driver, FenceLine, Stream};
use cuda_mem_ipc::shared::{MemoryKind, SharedPool, SharedPoolOptions};
use cuda_mem_sim::Sim;

use crate::other::LIMIT;
use crate::own_sim::OwnSim;

/// Whether something becomes so. The streams are let go before anything fails.
fn comes(mut is_so: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !is_so() && start.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(1));
    }
    is_so()
}

#[test]
fn memory_ends_when_its_uses_do_though_their_stream_goes_on() {
    let sim = OwnSim::of(Sim::builder());
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let stream = Stream::new(&context).unwrap();
    let options = SharedPoolOptions { kind: MemoryKind::Device, ..SharedPoolOptions::default() };
    let pool = SharedPool::new(&context, &options).unwrap();
    let buffer = pool.allocate_isolated(1, &stream).unwrap();
    let (uses, more) = (FenceLine::new(&context).unwrap(), FenceLine::new(&context).unwrap());
    uses.fence(1).unwrap().make_wait(&stream).unwrap();
    drop(buffer.on(&stream).unwrap());
    sim.record(true);
    let called = |name| sim.log().records().iter().filter(|record| record.function == name).count();
    drop(buffer);
    let has_point = comes(|| called("cuEventRecord") == 2);
    more.fence(1).unwrap().make_wait(&stream).unwrap();
    let unmapped_before = called("cuMemUnmap");
    uses.poison();
    let is_unmapped = comes(|| called("cuMemUnmap") == 1);
    let goes_on = !stream.is_idle().unwrap();
    more.poison();
    stream.synchronize().unwrap();
    assert!(has_point, "a point behind the use is recorded, besides that of the pool");
    assert_eq!(unmapped_before, 0);
    assert!(goes_on && is_unmapped, "it is unmapped while the stream has something to do");
}

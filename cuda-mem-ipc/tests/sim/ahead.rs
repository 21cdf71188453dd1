//! What the first buffer of a segment costs that was announced ahead, and who does what for it.

use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_core::sys::CUresult;
use cuda_mem_core::{Context, Driver, Stream};
use cuda_mem_ipc::Error;
use cuda_mem_ipc::shared::{
    AheadLimit, Exportable, Exporter, Importer, MemoryKind, SharedPool, SharedPoolOptions, wire,
};
use cuda_mem_pool::MemoryResource;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_sim::Sim;

use crate::calls::calls_of;
use crate::other::{LIMIT, SHORT, both_ends};
use crate::own_sim::OwnSim;

const IMPORT: &str = "cuMemImportFromShareableHandle";

/// A driver, both ends of a connection that take so much ahead, and a pool whose segments have one buffer each.
struct Link {
    exporter: Exporter,
    importer: Importer,
    pool: SharedPool,
    stream: Stream,
    /// Last: all of it is given back to it.
    sim: OwnSim,
}

impl Link {
    fn new(limit: AheadLimit) -> Self {
        let sim = OwnSim::of(Sim::builder());
        let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
        let (exporter, importer) = ends(&context, limit);
        let options = SharedPoolOptions { kind: MemoryKind::Device, segment_bytes: 2 << 20 };
        let pool = SharedPool::new(&context, &options).unwrap();
        let stream = Stream::new(&context).unwrap();
        sim.record(true);
        Self { exporter, importer, pool, stream, sim }
    }

    /// How often a function was called by anybody.
    fn count(&self, function: &str) -> usize {
        self.sim.log().records().iter().filter(|record| record.function == function).count()
    }

    fn wait_until(&self, is_so: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < LIMIT);
            thread::yield_now();
        }
    }
}

fn ends(context: &Context, limit: AheadLimit) -> (Exporter, Importer) {
    let (here, there) = both_ends();
    let theirs = context.clone();
    let importer = thread::spawn(move || Importer::with_ahead(&theirs, there, limit, LIMIT).unwrap());
    (Exporter::new(context, here, LIMIT).unwrap(), importer.join().unwrap())
}

#[test]
fn the_first_buffer_of_a_segment_announced_ahead_costs_no_call() {
    let link = Link::new(AheadLimit::default());
    link.exporter.attach(&link.pool).unwrap();
    let buffer = link.pool.allocate(2 << 20, &link.stream).unwrap();
    link.wait_until(|link| link.importer.mapped_ahead() == 1);
    link.exporter.hand_over(&buffer, &link.stream, LIMIT).unwrap();
    let (received, receiving) = calls_of(&link.sim, || link.importer.recv(LIMIT).unwrap());
    assert!(receiving.is_empty(), "{receiving:?}");
    drop(received);
}

#[test]
fn a_buffer_that_comes_while_its_segment_is_mapped_waits_for_that() {
    let link = Link::new(AheadLimit::default());
    link.exporter.attach(&link.pool).unwrap();
    // Long enough that the buffer is there first, whoever is slow.
    link.sim.delay(IMPORT, Duration::from_millis(200));
    let buffer = link.pool.allocate(2 << 20, &link.stream).unwrap();
    link.wait_until(|link| link.count("cuMemAddressReserve") == 2);
    link.exporter.hand_over(&buffer, &link.stream, LIMIT).unwrap();
    let received = link.importer.recv(LIMIT).unwrap();
    assert_ne!(received.as_raw(), buffer.as_raw());
    assert_eq!(link.count(IMPORT), 2, "the exporter's own, and one");
    assert_eq!(link.count("cuMemAddressReserve"), 2);
}

/// The driver takes long over one segment: whoever is handed another one maps that meanwhile, and what it gives back is taken.
#[test]
fn a_segment_that_takes_long_to_map_holds_up_no_other() {
    let link = Link::new(AheadLimit::default());
    let options = SharedPoolOptions { kind: MemoryKind::Host, segment_bytes: 1000 };
    let other = SharedPool::new(link.stream.context(), &options).unwrap();
    let [slow, quick] = [&link.pool, &other].map(|pool| pool.allocate_isolated(1000, &link.stream).unwrap());
    link.sim.delay(IMPORT, Duration::from_secs(3));
    assert!(link.exporter.announce(&slow).unwrap());
    link.wait_until(|link| link.count("cuMemAddressReserve") == 2);
    assert!(link.exporter.announce(&quick).unwrap());
    link.exporter.hand_over(&quick, &link.stream, LIMIT).unwrap();
    drop(link.importer.recv(LIMIT).unwrap());
    link.wait_until(|link| link.exporter.leases() == 0);
    assert_eq!(link.importer.mapped_ahead(), 0, "it is still being mapped");
    link.exporter.hand_over(&slow, &link.stream, LIMIT).unwrap();
    drop(link.importer.recv(LIMIT).unwrap());
    assert_eq!(link.count(IMPORT), 2, "by either side once");
}

/// Whoever comes first maps it: the thread that hears of it, one of the background, or the receiver.
#[test]
fn a_segment_is_mapped_once_whoever_is_first() {
    let link = Link::new(AheadLimit::default());
    let buffers = (0..100).map(|_| link.pool.allocate_isolated(1000, &link.stream).unwrap());
    let buffers = buffers.collect::<Vec<_>>();
    for buffer in &buffers {
        link.exporter.announce(buffer).unwrap();
        link.exporter.hand_over(buffer, &link.stream, LIMIT).unwrap();
        assert_ne!(link.importer.recv(LIMIT).unwrap().as_raw(), buffer.as_raw());
    }
    assert_eq!((link.count(IMPORT), link.count("cuMemAddressReserve")), (200, 200));
}

/// An importer that takes nothing ahead is told of each segment with its first buffer.
#[test]
fn nothing_is_mapped_ahead_beyond_the_limit() {
    for limit in [AheadLimit::NONE, AheadLimit { segments: 1, bytes: 1 << 20 }] {
        let link = Link::new(limit);
        link.exporter.attach(&link.pool).unwrap();
        let buffer = link.pool.allocate(2 << 20, &link.stream).unwrap();
        assert!(!link.exporter.announce(&buffer).unwrap());
        link.exporter.hand_over(&buffer, &link.stream, LIMIT).unwrap();
        let (_received, receiving) = calls_of(&link.sim, || link.importer.recv(LIMIT).unwrap());
        assert!(receiving.contains(&IMPORT), "{receiving:?}");
    }
}

/// The buffer follows at once, by the ring or by a message, so that nobody has heard of the segment yet.
#[test]
fn a_buffer_does_not_overtake_its_segment() {
    let link = Link::new(AheadLimit::default());
    link.exporter.attach(&link.pool).unwrap();
    for _ in 0..100 {
        let buffer = link.pool.allocate(2 << 20, &link.stream).unwrap();
        link.exporter.hand_over(&buffer, &link.stream, LIMIT).unwrap();
        drop((link.importer.recv(LIMIT).unwrap(), buffer));
        link.pool.trim();
    }
}

#[test]
fn a_segment_that_cannot_be_mapped_ahead_is_an_error_of_its_buffers_alone() {
    let link = Link::new(AheadLimit::default());
    // Its exporter has mapped it.
    let buffer = link.pool.allocate_isolated(1000, &link.stream).unwrap();
    link.sim.fail_call(IMPORT, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    assert!(link.exporter.announce(&buffer).unwrap());
    link.wait_until(|link| !link.sim.struck().is_empty());
    for _ in 0..2 {
        link.exporter.hand_over(&buffer, &link.stream, LIMIT).unwrap();
        assert!(matches!(link.importer.recv(LIMIT), Err(Error::Core(_))));
    }
    link.wait_until(|link| link.exporter.leases() == 0);
    let next = link.pool.allocate_isolated(1000, &link.stream).unwrap();
    assert!(link.exporter.announce(&next).unwrap());
    link.wait_until(|link| link.importer.mapped_ahead() == 1);
    link.exporter.hand_over(&next, &link.stream, LIMIT).unwrap();
    drop(link.importer.recv(LIMIT).unwrap());
}

/// Segments come and go, and no buffer of them ever comes: the importer is not asked to receive anything.
#[test]
fn what_is_announced_and_retired_leaves_nothing() {
    let link = Link::new(AheadLimit { segments: 3, ..AheadLimit::default() });
    link.exporter.attach(&link.pool).unwrap();
    for round in 0..50 {
        let buffers = [(); 5].map(|()| link.pool.allocate(2 << 20, &link.stream).unwrap());
        if round == 0 {
            // Otherwise nothing may be mapped yet when all is looked at below.
            link.wait_until(|link| link.importer.mapped_ahead() == 3);
        }
        drop(buffers);
        assert_eq!(link.pool.trim(), 10 << 20);
    }
    link.wait_until(|link| {
        let calls = |function| link.count(function);
        let is_unmapped = calls("cuMemUnmap") == calls("cuMemMap");
        // The importer may be between two of them, with others to come.
        let is_all = is_unmapped && link.importer.mapped_ahead() == 0;
        is_all && calls("cuMemAddressFree") == calls("cuMemAddressReserve")
    });
}

/// The importer hears of a segment before its exporter has mapped it.
#[test]
fn a_segment_that_its_exporter_cannot_map_is_forgotten() {
    let link = Link::new(AheadLimit::default());
    link.exporter.attach(&link.pool).unwrap();
    let is_refused = |_| {
        // So that the next one takes a new segment.
        link.pool.trim();
        link.sim.fail_call("cuMemSetAccess", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let refused = link.pool.allocate(2 << 20, &link.stream).is_err();
        // Otherwise it was the importer's call, which may come first.
        link.wait_until(|link| refused || !link.sim.struck().is_empty());
        link.sim.clear_faults();
        refused
    };
    assert!((0..100).any(is_refused));
    link.pool.trim();
    assert_eq!(link.pool.reserved_bytes(), 0);
    link.wait_until(|link| {
        // The importer may be between two of them, with others to come.
        link.count("cuMemUnmap") == link.count("cuMemMap") && link.importer.mapped_ahead() == 0
    });
}

/// Its importer, who is not asked to receive anything, hears of the end where it heard of the beginning.
#[test]
fn a_hand_over_that_fails_leaves_its_segment_announced_ahead() {
    let link = Link::new(AheadLimit::default());
    link.exporter.attach(&link.pool).unwrap();
    let buffer = link.pool.allocate(2 << 20, &link.stream).unwrap();
    link.wait_until(|link| link.importer.mapped_ahead() == 1);
    link.sim.fail_call("cuStreamWriteValue64", 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    link.exporter.hand_over(&buffer, &link.stream, LIMIT).unwrap_err();
    assert_eq!(link.sim.struck().len(), 1);
    drop(buffer);
    assert_eq!(link.pool.trim(), 2 << 20);
    link.wait_until(|link| link.importer.mapped_ahead() == 0);
    link.wait_until(|link| link.count("cuMemUnmap") == link.count("cuMemMap"));
}

/// Its queue is full, and stays so: nobody reads what is sent to it.
#[test]
fn a_receiver_without_room_costs_one_export_of_each_handle() {
    let sim = OwnSim::of(Sim::builder());
    let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let (here, there) = both_ends();
    // It maps any number of segments ahead, it says.
    there.send(wire::ACCEPT, &[0xff; 16], &[], LIMIT).unwrap();
    let exporter = Exporter::new(&context, here, LIMIT).unwrap();
    let stream = Stream::new(&context).unwrap();
    let pool = SharedPool::new(&context, &SharedPoolOptions::default()).unwrap();
    let mut told = Vec::new();
    loop {
        told.push(pool.allocate_isolated(1, &stream).unwrap());
        if !exporter.announce(&told[told.len() - 1]).unwrap() {
            break;
        }
    }
    let allocator = CachingAllocator::new(&context, &CachingOptions::default()).unwrap();
    let block = Exportable::new(&allocator, allocator.allocate(10 << 20, &stream).unwrap()).unwrap();
    sim.record(true);
    let refused = exporter.hand_over(&block, &stream, SHORT);
    assert!(matches!(refused, Err(Error::Timeout { .. })), "{refused:?}");
    let exports = sim.log().count("cuMemExportToShareableHandle");
    assert!((1..=8).contains(&exports), "{exports}");
}

/// The importer is about to map it while everything is dropped.
#[test]
fn what_is_mapped_when_its_link_ends_goes_back_to_the_driver_that_it_came_from() {
    let link = Link::new(AheadLimit::default());
    let buffer = link.pool.allocate_isolated(1000, &link.stream).unwrap();
    link.sim.delay(IMPORT, Duration::from_millis(200));
    assert!(link.exporter.announce(&buffer).unwrap());
    link.wait_until(|link| link.count("cuMemAddressReserve") == 2);
    let log = link.sim.log();
    drop((buffer, link));
    let start = Instant::now();
    // What a call does is done before it is in the log.
    while log.counts().get("cuMemAddressFree") != Some(&2) {
        assert!(start.elapsed() < LIMIT, "{:?}", log.counts());
        thread::yield_now();
    }
    let counts = log.counts();
    assert_eq!(counts.get("cuMemUnmap"), counts.get("cuMemMap"), "{counts:?}");
}

#[test]
fn a_limit_beyond_what_an_importer_knows_is_refused() {
    let context = Driver::over(cuda_mem_sim::table()).unwrap().device(0).unwrap().primary_context().unwrap();
    let (here, _there) = both_ends();
    let limit = AheadLimit { segments: 4097, ..AheadLimit::default() };
    let refused = Importer::with_ahead(&context, here, limit, LIMIT);
    assert!(
        matches!(refused, Err(Error::Core(cuda_mem_core::Error::NotAccepted { value: 4097, .. }))),
        "{refused:?}"
    );
}

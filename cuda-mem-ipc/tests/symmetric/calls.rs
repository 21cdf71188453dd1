//! What an allocation costs the driver.

use std::thread;
use std::time::{Duration, Instant};

use cuda_mem_core::Driver;
use cuda_mem_ipc::symmetric::{Error, GroupOptions, NativeBackend, SymmetricBackend};
use cuda_mem_sim::Sim;

use crate::common::{Backend, World, backend, driver};
use crate::own_sim::OwnSim;
use crate::rank::{Rank, Seat, options};

const COUNT: usize = 200;

/// Allocates and brings together again and again, and counts the driver's calls meanwhile where they can be counted.
fn allocate(seat: &Seat) {
    let sim = (backend() == Backend::Simulator).then(|| OwnSim::of(Sim::builder().record(true)));
    let driver = sim.as_ref().map_or_else(driver, |sim| Driver::over(sim.table()).unwrap());
    let options = GroupOptions { segment_allocations: COUNT + 10, ..options() };
    let rank = Rank::new(seat.context(driver), seat, &options, None);
    let first = rank.memory(1000);
    let calls = || sim.as_ref().map(|sim| sim.log().counts());
    let before = calls();
    let mut all = Vec::new();
    for index in 0..COUNT {
        let buffer = rank.empty(1000 + index);
        let memory = buffer.rendezvous(None).unwrap();
        for peer in 0..rank.ranks() {
            let distance = memory.buffer_ptrs()[peer] - first.buffer_ptrs()[peer];
            assert!(distance < 4 << 20, "of the same segment");
        }
        all.push((buffer, memory));
    }
    assert_eq!(calls(), before);
    rank.meet(&*first);
    let waits = || sim.as_ref().map(|sim| sim.log().counts().get("cuStreamSynchronize").copied());
    let before = waits();
    drop(all);
    assert_eq!(waits(), before, "nobody waits for the pads of what is freed");
    drop(first);
    rank.finish();
    if let Some(sim) = sim {
        let misuse: Vec<_> = sim.misuse().iter().map(ToString::to_string).collect();
        assert!(misuse.is_empty(), "misused: {misuse:#?}");
        // What other threads may have given the legacy stream is waited for in the background, and the words' memory goes then.
        let dropped = Instant::now();
        while !sim.leaks().is_empty() {
            let leaks: Vec<_> = sim.leaks().iter().map(ToString::to_string).collect();
            assert!(dropped.elapsed() < Duration::from_secs(60), "leaked: {leaks:#?}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// What a new segment takes from the driver once words for signals are there, its own and then another rank's, by function.
const MADE: &[(&str, u64)] = &[
    ("cuCtxGetCurrent", 1),
    ("cuCtxPopCurrent", 1),
    ("cuCtxPushCurrent", 1),
    ("cuDeviceGetAttribute", 2),
    ("cuMemAddressReserve", 1),
    ("cuMemCreate", 1),
    ("cuMemExportToShareableHandle", 1),
    ("cuMemMap", 1),
    ("cuMemSetAccess", 1),
    ("cuMemsetD8Async", 1),
    ("cuStreamSynchronize", 1),
    ("cuThreadExchangeStreamCaptureMode", 4),
];
const MAPPED: &[(&str, u64)] = &[
    ("cuMemAddressReserve", 1),
    ("cuMemGetAllocationPropertiesFromHandle", 1),
    ("cuMemImportFromShareableHandle", 1),
    ("cuMemMap", 1),
    ("cuMemSetAccess", 1),
    ("cuThreadExchangeStreamCaptureMode", 2),
];

/// Fills a segment with each allocation, and counts the driver's calls where they can be counted.
fn grow(seat: &Seat) {
    let sim = (backend() == Backend::Simulator).then(|| OwnSim::of(Sim::builder().record(true)));
    let driver = sim.as_ref().map_or_else(driver, |sim| Driver::over(sim.table()).unwrap());
    let options = GroupOptions { segment_bytes: 2 << 20, ..options() };
    let rank = Rank::new(seat.context(driver), seat, &options, None);
    let whole = || rank.empty(2 << 20);
    let first = whole();
    let met = first.rendezvous(None).unwrap();
    let mut all = Vec::new();
    for _ in 0..3 {
        let calls = |expected: &[(&str, u64)]| {
            let Some(sim) = &sim else { return };
            let counts = sim.log().counts().into_iter().collect::<Vec<_>>();
            assert_eq!(counts, expected);
            sim.log().clear();
        };
        if let Some(sim) = &sim {
            sim.log().clear();
        }
        let buffer = whole();
        calls(MADE);
        let memory = buffer.rendezvous(None).unwrap();
        calls(MAPPED);
        all.push((buffer, memory));
    }
    rank.meet(&*met);
    drop((all, met, first));
    rank.finish();
}

#[test]
fn memory_inside_a_segment_takes_no_driver_call() {
    on_ranks!(2, |seat| allocate(seat));
}

#[test]
fn a_new_segment_takes_few_driver_calls() {
    on_ranks!(2, |seat| grow(seat));
}

#[test]
fn the_native_backend_allocates_for_a_group_only() {
    let (world, native) = (World::new(), NativeBackend::new());
    let device = world.context.device();
    let without = native.alloc(100, device, None);
    assert!(matches!(&without, Err(Error::GroupNeeded { backend }) if backend == "NATIVE"), "{without:?}");
    let unknown = native.alloc(100, device, Some("nobody"));
    assert!(matches!(&unknown, Err(Error::UnknownGroup { name, .. }) if name == "nobody"), "{unknown:?}");
    let nothing = native.find(0x1000);
    assert!(matches!(nothing, Err(Error::UnknownAddress { address: 0x1000, .. })), "{nothing:?}");
}

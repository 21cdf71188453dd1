//! `PluggableAllocator`: statistics, snapshots and history.

use std::sync::{Arc, Mutex};

use cuda_mem_torch::CudaAllocator;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::MempoolId;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::history::{HistoryOptions, RecordContext};
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::segments::Filter;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::snapshot::{Action, BlockState, Frame, TraceEntry};

use crate::common::World;
use crate::common::gate::Gate;
use crate::program::{MIB, Program, free};

#[test]
fn the_statistics_are_those_of_pytorch() {
    let world = World::new();
    let (allocator, device) = (Program::new().allocator(&world), world.context.device());
    let small = allocator.malloc(1000, device, &world.stream).unwrap();
    let large = allocator.malloc(3 * MIB, device, &world.stream).unwrap();
    free(&*allocator, small);
    let stats = allocator.device_stats(device).unwrap();
    let (allocation, allocated) = (stats.allocation, stats.allocated_bytes);
    assert_eq!((allocation.all.current, allocation.small_pool.freed), (1, 1));
    assert_eq!(allocated.all.peak, 3 * MIB as u64 + 1000);
    assert_eq!(stats.requested_bytes.large_pool.current, 3 * MIB as u64);
    assert_eq!(stats.reserved_bytes.all.allocated, 3 * MIB as u64 + 1000);
    assert_eq!((stats.num_device_alloc, stats.num_device_free), (2, 1));
    allocator.reset_peak_stats(device).unwrap();
    allocator.reset_accumulated_stats(device).unwrap();
    let stats = allocator.device_stats(device).unwrap();
    assert_eq!(stats.allocated_bytes.all.peak, 3 * MIB as u64);
    assert_eq!((stats.allocation.all.allocated, stats.num_device_alloc), (0, 0));
    free(&*allocator, large);
}

#[test]
fn a_snapshot_has_each_allocation_as_a_segment() {
    let world = World::new();
    let (allocator, device) = (Program::new().allocator(&world), world.context.device());
    let side = world.new_stream();
    let live = allocator.malloc(1000, device, &world.stream).unwrap();
    let freed = allocator.malloc(3 * MIB, device, &world.stream).unwrap();
    allocator.record_stream(freed, &side).unwrap();
    let gate = Gate::before(&side);
    free(&*allocator, freed);
    let snapshot = allocator.snapshot(MempoolId::NONE).unwrap();
    let mut segments = snapshot.segments.clone();
    segments.sort_by_key(|segment| segment.total_size);
    let states: Vec<_> = segments.iter().map(|segment| segment.blocks[0].state).collect();
    assert_eq!(states, [BlockState::ActiveAllocated, BlockState::ActivePendingFree]);
    assert_eq!((segments[0].address, segments[0].requested_size), (live, 1000));
    assert_eq!((segments[1].address, segments[1].allocated_size), (freed, 0));
    assert_eq!(segments[1].active_size, 3 * MIB as u64);
    assert_eq!(segments[0].stream, world.stream.as_raw() as usize as u64);
    let mut file = Vec::new();
    snapshot.write_pickle(&mut file).unwrap();
    assert!(!file.is_empty());
    let other = allocator.snapshot(MempoolId::for_user()).unwrap();
    assert!(other.segments.is_empty(), "of a pool, its segments alone");
    gate.open();
    free(&*allocator, live);
}

#[test]
fn the_history_has_what_happened_and_who_asked() {
    let world = World::new();
    let (program, device) = (Program::new(), world.context.device());
    let allocator = program.allocator(&world);
    // Before the device was used: it is told all the same.
    let told = Arc::new(Mutex::new(Vec::new()));
    let telling = told.clone();
    let tracker = move |entry: &TraceEntry| telling.lock().unwrap().push((entry.action, entry.size));
    allocator.attach_allocator_trace_tracker(Arc::new(tracker)).unwrap();
    let frame = Frame { filename: "train.py".into(), line: 7, name: "forward".into() };
    let frames = Arc::from([frame]);
    let options = HistoryOptions::default()
        .with_max_entries(100)
        .with_frames(RecordContext::All, move || Arc::clone(&frames))
        .with_clear_history(true);
    allocator.record_history(true, &options).unwrap();
    let block = allocator.malloc(1000, device, &world.stream).unwrap();
    let snapshot = allocator.snapshot(MempoolId::NONE).unwrap();
    assert_eq!(snapshot.segments[0].blocks[0].frames.as_ref().unwrap()[0].line, 7);
    free(&*allocator, block);
    program.limit(Some(0));
    assert!(allocator.malloc(500, device, &world.stream).is_err());
    let trace = allocator.snapshot(MempoolId::NONE).unwrap().device_traces.remove(0);
    let own = |(action, _): &(Action, u64)| *action != Action::Snapshot;
    let recorded: Vec<_> = trace.iter().map(|entry| (entry.action, entry.size)).filter(own).collect();
    let expected = [
        (Action::SegmentAlloc, 1000),
        (Action::Alloc, 1000),
        (Action::FreeRequested, 1000),
        (Action::FreeCompleted, 1000),
        (Action::SegmentFree, 1000),
        (Action::Oom, 500),
    ];
    assert_eq!(recorded, expected);
    assert!(trace[1].frames.is_some());
    assert_eq!(*told.lock().unwrap().iter().copied().filter(own).collect::<Vec<_>>(), expected);
    allocator.record_history(false, &HistoryOptions::default()).unwrap();
    let traces = allocator.snapshot(MempoolId::NONE).unwrap().device_traces;
    assert!(traces.iter().all(Vec::is_empty));
}

#[test]
fn what_pools_do_is_in_the_same_history() {
    let world = World::new();
    let (device, id) = (world.context.device(), MempoolId::for_user());
    let allocator = Program::new().allocator(&world);
    let told = Arc::new(Mutex::new(Vec::new()));
    let telling = told.clone();
    let tracker = move |entry: &TraceEntry| telling.lock().unwrap().push((entry.action, entry.size));
    allocator.attach_allocator_trace_tracker(Arc::new(tracker)).unwrap();
    allocator.record_history(true, &HistoryOptions::default()).unwrap();
    allocator.begin_allocate_to_pool(device, id, Filter::this_thread()).unwrap();
    let inside = allocator.malloc(1000, device, &world.stream).unwrap();
    allocator.end_allocate_to_pool(device, id).unwrap();
    let outside = allocator.malloc(2000, device, &world.stream).unwrap();
    let trace = allocator.snapshot(MempoolId::NONE).unwrap().device_traces.remove(0);
    let allocs: Vec<_> =
        trace.iter().filter(|entry| entry.action == Action::Alloc).map(|entry| entry.size).collect();
    assert_eq!(allocs, [1000, 2000]);
    let told = told.lock().unwrap().clone();
    assert!(
        told.contains(&(Action::SegmentAlloc, 2 << 20)) && told.contains(&(Action::Alloc, 2000)),
        "{told:?}"
    );
    free(&*allocator, inside);
    free(&*allocator, outside);
    allocator.release_pool(device, id).unwrap();
}

//! `NativeAllocator`: the caching allocator through PyTorch's interface.

use std::sync::{Arc, Mutex};

use cuda_mem_core::{Event, Stream};
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::history::HistoryOptions;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::segments::Filter;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::snapshot::{Action, TraceEntry};
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::statistics::PoolSize;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::{self, MempoolId};
use cuda_mem_torch::{CudaAllocator, Error, NativeAllocator};

use crate::common::World;
use crate::common::capture::{Capture, GLOBAL};
use crate::program::{MIB, free};

pub(crate) fn native(world: &World) -> NativeAllocator {
    let allocator = NativeAllocator::new(world.driver);
    allocator.init(world.driver.device_count().unwrap()).unwrap();
    allocator
}

#[test]
fn before_init_a_device_is_unknown_and_init_only_adds() {
    let world = World::new();
    let (allocator, device) = (NativeAllocator::new(world.driver), world.context.device());
    assert!(!allocator.initialized());
    let refused = allocator.malloc(100, device, &world.stream).unwrap_err();
    assert!(matches!(refused, Error::NotInitialized { count: 0, .. }), "{refused}");
    allocator.init(1).unwrap();
    let block = allocator.malloc(100, device, &world.stream).unwrap();
    allocator.init(0).unwrap();
    allocator.init(1).unwrap();
    assert_eq!(allocator.device_stats(device).unwrap().allocation.all.current, 1);
    free(&allocator, block);
}

#[test]
fn blocks_come_go_and_are_known_by_their_address() {
    let world = World::new();
    let (allocator, device) = (native(&world), world.context.device());
    for device in world.driver.devices().unwrap() {
        let stream = Stream::new(&device.primary_context().unwrap()).unwrap();
        let block = allocator.raw_alloc_with_stream(3 * MIB, &stream).unwrap();
        let (base, bytes) = allocator.base_allocation(block).unwrap();
        assert!(base <= block && block + 3 * MIB as u64 <= base + bytes as u64);
        allocator.record_stream(block, &stream).unwrap();
        assert_eq!(allocator.device_stats(device).unwrap().allocation.all.current, 1);
        free(&allocator, block);
        assert_eq!(allocator.device_stats(device).unwrap().allocation.all.current, 0);
        // SAFETY: refused, because it is free.
        let again = unsafe { allocator.raw_delete(block) };
        assert!(matches!(again, Err(Error::UnknownPointer { address }) if address == block), "{again:?}");
        stream.synchronize().unwrap();
    }
    allocator.reset_peak_stats(device).unwrap();
    allocator.reset_accumulated_stats(device).unwrap();
    let stats = allocator.device_stats(device).unwrap();
    assert_eq!((stats.allocated_bytes.all.peak, stats.allocation.all.allocated), (0, 0));
    assert!(allocator.empty_cache(MempoolId::default()).unwrap() >= 2 * MIB);
}

#[test]
fn the_largest_block_and_the_mapped_bytes_are_told() {
    let world = World::new();
    let (allocator, device) = (native(&world), world.context.device());
    let mut largest = 1;
    allocator.cache_info(device, &mut largest).unwrap();
    assert_eq!(largest, 1, "nothing is cached");
    assert_eq!(allocator.expandable_segment_sizes(device).unwrap(), []);
    let (large, small) = (
        allocator.malloc(9 * MIB, device, &world.stream).unwrap(),
        allocator.malloc(1000, device, &world.stream).unwrap(),
    );
    let sizes = allocator.expandable_segment_sizes(device).unwrap();
    let of = |pool| sizes.iter().filter(|size| size.pool == pool).map(|size| size.mapped).sum::<u64>();
    assert!(sizes.iter().all(|size| size.stream == world.stream.id()), "{sizes:?}");
    assert!(of(PoolSize::Small) >= 2 * MIB as u64 && of(PoolSize::Large) >= 9 * MIB as u64, "{sizes:?}");
    let reserved = allocator.device_stats(device).unwrap().reserved_bytes.all.current;
    assert_eq!(of(PoolSize::Small) + of(PoolSize::Large), reserved);
    free(&allocator, large);
    allocator.cache_info(device, &mut largest).unwrap();
    assert!(largest >= 9 * MIB, "{largest}");
    // Of private pools too.
    let id = MempoolId::for_user();
    allocator.begin_allocate_to_pool(device, id, Filter::this_thread()).unwrap();
    let inside = allocator.malloc(100 * MIB, device, &world.stream).unwrap();
    allocator.end_allocate_to_pool(device, id).unwrap();
    free(&allocator, inside);
    let mut largest = 1;
    allocator.cache_info(device, &mut largest).unwrap();
    assert_eq!(largest, 100 * MIB);
    let mut free_of_driver = 0;
    allocator.cache_info(device, &mut free_of_driver).unwrap();
    assert!(free_of_driver >= largest);
    allocator.release_pool(device, id).unwrap();
    free(&allocator, small);
}

#[test]
fn the_fraction_limits_and_observers_hear_of_it() {
    let world = World::new();
    let (allocator, device) = (native(&world), world.context.device());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    allocator
        .attach_out_of_memory_observer(Arc::new(move |report| noted.lock().unwrap().push(report.clone())))
        .unwrap();
    let total = device.total_memory().unwrap();
    allocator.set_memory_fraction(32.0 * MIB as f64 / total as f64, device).unwrap();
    let refused = allocator.malloc(64 * MIB, device, &world.stream).unwrap_err();
    assert!(refused.is_out_of_memory(), "{refused}");
    let seen = seen.lock().unwrap();
    assert_eq!((seen.len(), seen[0].requested, seen[0].total), (1, 64 * MIB, total));
    assert!(seen[0].allowed <= 32 * MIB && seen[0].allowed > 31 * MIB);
    assert!(allocator.memory_fraction(device).unwrap() < 1.0);
    let refused = allocator.set_memory_fraction(2.0, device).unwrap_err();
    assert!(matches!(refused, Error::Pool(cuda_mem_pool::Error::InvalidFraction { .. })), "{refused}");
    assert_eq!(allocator.device_stats(device).unwrap().num_ooms, 1);
}

#[test]
fn history_and_trackers_are_those_of_all_devices() {
    let world = World::new();
    let (allocator, device) = (NativeAllocator::new(world.driver), world.context.device());
    let told = Arc::new(Mutex::new(Vec::new()));
    let telling = told.clone();
    let tracker = move |entry: &TraceEntry| telling.lock().unwrap().push(entry.action);
    allocator.attach_allocator_trace_tracker(Arc::new(tracker)).unwrap();
    allocator.record_history(true, &HistoryOptions::default()).unwrap();
    // Devices that come later record and tell too.
    allocator.init(world.driver.device_count().unwrap()).unwrap();
    let block = allocator.malloc(1000, device, &world.stream).unwrap();
    let snapshot = allocator.snapshot(MempoolId::NONE).unwrap();
    assert_eq!(snapshot.device_traces.len(), world.driver.device_count().unwrap());
    assert!(snapshot.device_traces[0].iter().any(|entry| entry.action == Action::Alloc));
    assert!(snapshot.segments.iter().any(|segment| segment.requested_size == 1000));
    assert!(snapshot.allocator_settings.expandable_segments);
    free(&allocator, block);
    let heard = told.lock().unwrap().clone();
    assert!(heard.ends_with(&[Action::FreeRequested, Action::FreeCompleted]), "{heard:?}");
    allocator.record_history(false, &HistoryOptions::default()).unwrap();
    assert!(allocator.snapshot(MempoolId::NONE).unwrap().device_traces.iter().all(Vec::is_empty));
}

#[test]
fn off_memory_comes_straight_from_the_driver() {
    let world = World::new();
    let (allocator, device) = (native(&world), world.context.device());
    let cached = allocator.malloc(1000, device, &world.stream).unwrap();
    allocator.enable(false);
    let direct = allocator.malloc(1000, device, &world.stream).unwrap();
    let known = cuda_mem_core::pointer::attributes(&world.context, direct).unwrap();
    assert_eq!((known.range_start, known.range_size), (direct, 2 * MIB));
    assert_eq!(allocator.device_stats(device).unwrap().allocation.all.allocated, 1, "it is not counted");
    free(&allocator, cached);
    free(&allocator, direct);
    let gone = cuda_mem_core::pointer::attributes(&world.context, direct).unwrap();
    assert_eq!(gone.kind, cuda_mem_core::pointer::MemoryKind::Unknown, "it went straight back");
    allocator.enable(true);
    assert!(allocator.is_enabled());
}

#[test]
fn clones_are_handles_to_the_same_one() {
    let world = World::new();
    let allocator = native(&world);
    let block = allocator.malloc(1000, world.context.device(), &world.stream).unwrap();
    free(&allocator.clone(), block);
    assert_eq!(allocator.clone().raw_deleter(), allocator.raw_deleter());
    assert_ne!(native(&world).raw_deleter(), allocator.raw_deleter());
}

#[test]
fn a_forked_child_is_told_so() {
    let world = World::new();
    let (allocator, device) = (native(&world), world.context.device());
    let block = world.context.with_current(|| allocator.allocate(1000)).unwrap().unwrap();
    crate::common::child::forked(|| {
        let refused = allocator.device_stats(device);
        drop(block);
        match refused {
            Err(Error::Core(cuda_mem_core::Error::Forked)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    // The child's drop did nothing; this process has dropped it by now.
    assert_eq!(allocator.device_stats(device).unwrap().allocation.all.current, 0);
}

/// Whether a block that a side stream used serves its capture again once that stream is joined.
fn comes_back(world: &World, allocator: &NativeAllocator) -> bool {
    let (device, id) = (world.context.device(), MempoolId::for_graph());
    let (stream, side) = (world.new_stream(), world.new_stream());
    let join = |from: &Stream, to: &Stream| {
        let event = Event::new(&world.context).unwrap();
        from.record(&event).unwrap();
        // SAFETY: nobody else works at the captures of this test, and its graphs are not launched.
        unsafe { to.join_capture(&event) }.unwrap();
    };
    allocator.begin_allocate_to_pool(device, id, Filter::this_thread()).unwrap();
    let capture = Capture::begin(&stream, GLOBAL);
    let block = allocator.malloc(MIB, device, &stream).unwrap();
    join(&stream, &side);
    // SAFETY: the memory is the pool's until after the capture, which nobody launches.
    unsafe { cuda_mem_core::copy::memset_async(&side, block, 1, MIB) }.unwrap();
    allocator.record_stream(block, &side).unwrap();
    free(allocator, block);
    let early = allocator.malloc(MIB, device, &stream).unwrap();
    assert_ne!(early, block, "nobody was joined");
    join(&side, &stream);
    let late = allocator.malloc(MIB, device, &stream).unwrap();
    capture.end().expect("to ask leaves a capture alone");
    allocator.end_allocate_to_pool(device, id).unwrap();
    [early, late].into_iter().for_each(|block| free(allocator, block));
    allocator.release_pool(device, id).unwrap();
    late == block
}

#[test]
fn blocks_serve_their_capture_again_on_devices_that_are_there_and_on_those_to_come() {
    let world = World::new();
    for is_early in [true, false] {
        let allocator = NativeAllocator::new(world.driver);
        // SAFETY: the captures are this thread's, and nobody changes their graphs.
        let set = |reuse| unsafe { allocator.set_graph_capture_record_stream_reuse(reuse) }.unwrap();
        if is_early {
            set(true);
        }
        allocator.init(1).unwrap();
        if !is_early {
            assert!(!comes_back(&world, &allocator), "it was not asked for");
            set(true);
        }
        assert!(comes_back(&world, &allocator), "{is_early}");
        set(false);
        assert!(!comes_back(&world, &allocator), "it is asked for no more");
    }
}

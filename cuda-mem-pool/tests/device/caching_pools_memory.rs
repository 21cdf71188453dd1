//! Where the memory of `CachingAllocator`'s private pools comes from and goes, who reaches it, and how it counts.

use std::sync::Arc;

use cuda_mem_core::Stream;
use cuda_mem_core::ipc::MemoryHandle;
use cuda_mem_pool::caching::{CachingAllocator, Pin};
use cuda_mem_pool::segments::Filter;
use cuda_mem_pool::snapshot::{BlockState, SegmentInfo};
use cuda_mem_pool::statistics::PoolSize;
use cuda_mem_pool::{Error, MemoryResource, MempoolId, TrackingAdaptor};

use crate::common::World;
use crate::common::capture::{Capture, GLOBAL};
use crate::common::gate::Gate;
use crate::common::kernels::Kernels;
use crate::support::{allocator, device, free, on, shown};

const MIB: usize = 1 << 20;

/// The legacy handle of a block, which no process opens.
fn handle_of(allocator: &CachingAllocator, block: u64) -> cuda_mem_pool::Result<MemoryHandle> {
    // SAFETY: nobody opens it.
    unsafe { allocator.ipc_handle(block) }
}

#[test]
fn memory_stays_while_its_stream_runs() {
    let world = World::new();
    let (allocator, id) = (allocator(&world), MempoolId::for_user());
    let stream = world.new_stream();
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    let block = allocator.allocate_by_address(MIB, &stream).unwrap();
    allocator.end_allocate_to_pool(id).unwrap();
    let gate = Gate::before(&stream);
    free(&allocator, block);
    allocator.release_pool(id).unwrap();
    assert_eq!(allocator.empty_cache().unwrap(), 0);
    assert_eq!(allocator.reserved_bytes(), 2 * MIB);
    gate.open();
    stream.synchronize().unwrap();
    assert_eq!(allocator.empty_cache().unwrap(), 2 * MIB);
    assert_eq!(allocator.reserved_bytes(), 0);
}

#[test]
fn segments_come_from_a_pools_own_source_and_go_back_to_it() {
    let world = World::new();
    let (allocator, id, stream) = (allocator(&world), MempoolId::for_user(), world.stream.clone());
    let upstream = TrackingAdaptor::new(device(&world), false);
    allocator.create_or_incref_pool(id, Some(upstream.raw())).unwrap();
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    let mut block = allocator.allocate(100_000, &stream).unwrap();
    assert_eq!(upstream.bytes().current, 2 << 20);
    block.as_device_range().fill_bytes(&stream, 9).unwrap();
    assert_eq!(block.to_vec(&stream).unwrap(), vec![9; 100_000]);
    drop(block);
    allocator.end_allocate_to_pool(id).unwrap();
    [(), ()].into_iter().for_each(|()| allocator.release_pool(id).unwrap());
    stream.synchronize().unwrap();
    assert_eq!(allocator.empty_cache().unwrap(), 2 * MIB);
    assert_eq!(upstream.bytes().current, 0);
}

#[test]
fn a_released_pool_without_memory_lets_its_source_go() {
    let world = World::new();
    let allocator = allocator(&world);
    let source = TrackingAdaptor::new(self::allocator(&world), false);
    let (raw, id) = (source.raw(), MempoolId::for_user());
    let before = Arc::strong_count(&raw);
    allocator.create_or_incref_pool(id, Some(Arc::clone(&raw))).unwrap();
    assert_eq!(Arc::strong_count(&raw), before + 1);
    allocator.release_pool(id).unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(Arc::strong_count(&raw), before);
}

#[test]
fn an_allocator_is_no_source_of_its_own() {
    let world = World::new();
    let (allocator, id) = (allocator(&world), MempoolId::for_user());
    let refused = allocator.create_or_incref_pool(id, Some(allocator.raw())).unwrap_err();
    assert!(matches!(refused, Error::OwnSource { .. }), "{refused}");
    // An adaptor hides it until it is asked.
    let hidden = TrackingAdaptor::new(allocator.clone(), false);
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    allocator.end_allocate_to_pool(id).unwrap();
    let other = MempoolId::for_user();
    allocator.create_or_incref_pool(other, Some(hidden.raw())).unwrap();
    allocator.begin_allocate_to_pool(other, Filter::this_thread()).unwrap();
    let refused = allocator.allocate_by_address(512, &world.stream).unwrap_err();
    assert!(matches!(refused, Error::OwnSource { id } if id == other), "{refused}");
    assert_eq!(allocator.statistics().allocation.all.current, 0, "the source has its memory again");
    allocator.end_allocate_to_pool(other).unwrap();
    [other, other, id].into_iter().for_each(|id| allocator.release_pool(id).unwrap());
    allocator.empty_cache().unwrap();
}

#[test]
fn private_blocks_count_with_the_others() {
    let world = World::new();
    let (allocator, id, stream) = (allocator(&world), MempoolId::for_user(), world.stream.clone());
    let common = allocator.allocate_by_address(MIB, &stream).unwrap();
    let before = allocator.statistics().reserved_bytes.small_pool.current;
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    let [small, large] = [1000, 3 * MIB].map(|bytes| allocator.allocate_by_address(bytes, &stream).unwrap());
    let statistics = allocator.statistics();
    assert_eq!(statistics.allocation.small_pool.current, 2);
    assert_eq!(statistics.allocated_bytes.all.current, (MIB + 1024 + 3 * MIB) as u64);
    assert_eq!(statistics.requested_bytes.all.current, (MIB + 1000 + 3 * MIB) as u64);
    assert_eq!(statistics.reserved_bytes.small_pool.current - before, 2 << 20);
    [common, small, large].into_iter().for_each(|block| free(&allocator, block));
    let statistics = allocator.statistics();
    assert_eq!((statistics.active.all.current, statistics.active.all.peak), (0, 3));
    allocator.end_allocate_to_pool(id).unwrap();
    allocator.release_pool(id).unwrap();
}

#[test]
fn peers_reach_what_there_is_and_what_comes() {
    let world = World::new();
    let (allocator, id, stream) = (allocator(&world), MempoolId::for_user(), world.stream.clone());
    allocator.begin_allocate_to_pool(id, on(&stream)).unwrap();
    let others = world.new_stream();
    let blocks = |seed: u8| {
        [&stream, &others].map(|stream| {
            let mut block = allocator.allocate(4096, stream).unwrap();
            block.as_device_range().fill_bytes(stream, seed).unwrap();
            stream.synchronize().unwrap();
            block
        })
    };
    allocator.enable_peer_access(world.context.device()).unwrap();
    for peer in world.driver.devices().unwrap().into_iter().skip(1) {
        let before = blocks(1);
        if !peer.can_access_peer(world.context.device()).unwrap() {
            let refused = allocator.enable_peer_access(peer).unwrap_err();
            assert!(matches!(refused, Error::NoPeerAccess { device, .. } if device == peer), "{refused}");
            continue;
        }
        allocator.enable_peer_access(peer).unwrap();
        allocator.enable_peer_access(peer).unwrap();
        let context = peer.primary_context().unwrap();
        let kernels = Kernels::load(&context);
        let remote = Stream::new(&context).unwrap();
        for block in before.iter().chain(&blocks(2)) {
            {
                let words = block.on(&remote).unwrap();
                // SAFETY: the allocation knows that this stream uses it.
                unsafe { kernels.fill_u32(&remote, words.address(), 1024, 0x0707_0707) };
            }
            assert_eq!(block.to_vec(block.stream()).unwrap(), vec![7; 4096]);
        }
    }
    allocator.end_allocate_to_pool(id).unwrap();
    allocator.release_pool(id).unwrap();
}

/// Graphs' buffers travel to other processes by `cudaIpcGetMemHandle`, which the driver answers for `cuMemAlloc` alone.
#[test]
fn private_memory_has_legacy_handles_also_while_a_stream_captures() {
    let world = World::new();
    let (allocator, id, stream) = (allocator(&world), MempoolId::for_graph(), world.new_stream());
    let common = allocator.allocate_by_address(MIB, &stream).unwrap();
    let capture = Capture::begin(&stream, GLOBAL);
    allocator.begin_allocate_to_pool(id, on(&stream)).unwrap();
    let [first, second] =
        [3 * MIB, 5 * MIB].map(|bytes| allocator.allocate_by_address(bytes, &stream).unwrap());
    let [of_first, of_second] = [first, second].map(|block| handle_of(&allocator, block).unwrap());
    allocator.end_allocate_to_pool(id).unwrap();
    drop(capture.end().expect("the capture survives"));
    assert_eq!(of_first.base(), of_second.base(), "they share a segment");
    assert_eq!((of_first.offset(), of_first.len()), (0, 3 << 20));
    assert_eq!((of_second.offset(), of_second.len()), (3 << 20, 5 << 20));
    // SAFETY: nobody opens it.
    let drivers = unsafe { MemoryHandle::of_address(&world.context, second, 5 << 20) }.unwrap();
    assert_eq!(drivers, of_second);

    let refused = handle_of(&allocator, common).unwrap_err();
    assert!(matches!(refused, Error::NoLegacyHandle { address } if address == common), "{refused}");
    assert!(refused.to_string().contains("private pool"), "{refused}");
    let refused = allocator.pin(first, 1, Pin::Exported).unwrap_err();
    assert!(matches!(refused, Error::UnknownAddress { address } if address == first), "{refused}");
    [first, second, common].into_iter().for_each(|block| free(&allocator, block));
    let refused = handle_of(&allocator, first).unwrap_err();
    assert!(matches!(refused, Error::UnknownAddress { .. }), "{refused}");
    allocator.release_pool(id).unwrap();
}

/// What the pool's segments are in the snapshot, and what is held by all counts, as long as they are there.
#[test]
fn the_default_pool_has_segments_while_it_does_not_expand() {
    let world = World::new();
    let (allocator, stream) = (allocator(&world), world.stream.clone());
    let expandable = |address: u64| {
        let snapshot = allocator.snapshot();
        let is_it = |one: &&SegmentInfo| (one.address..one.address + one.total_size).contains(&address);
        let segment = snapshot.segments.iter().find(is_it).unwrap();
        assert_eq!(segment.segment_pool_id, MempoolId::NONE);
        (segment.is_expandable, snapshot.allocator_settings.expandable_segments)
    };
    let allocate = |bytes| allocator.allocate_by_address(bytes, &stream).unwrap();
    let paged = allocate(30 * MIB);
    assert_eq!(expandable(paged), (true, true));
    allocator.set_expandable_segments(false).unwrap();
    let still = allocate(50 * MIB);
    assert_eq!((expandable(still), expandable(paged)), ((false, false), (true, false)));
    assert_eq!(handle_of(&allocator, still).unwrap().len(), 50 << 20);
    // What was freed of either kind serves that kind alone.
    free(&allocator, paged);
    free(&allocator, still);
    let again = allocate(50 * MIB);
    assert_eq!(again, still);
    allocator.set_expandable_segments(true).unwrap();
    assert_eq!((allocate(30 * MIB), expandable(again)), (paged, (false, true)));
    free(&allocator, paged);
    free(&allocator, again);
    stream.synchronize().unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.reserved_bytes(), 0);
    // It serves again after it went.
    allocator.set_expandable_segments(false).unwrap();
    free(&allocator, allocate(MIB));
    assert_eq!(allocator.snapshot().segments.iter().filter(|one| !one.is_expandable).count(), 1);
}

#[test]
fn private_segments_are_shown_and_counted_with_all_others() {
    let world = World::new();
    let (allocator, stream, id) = (allocator(&world), world.stream.clone(), MempoolId::for_graph());
    let default = allocator.allocate_by_address(5 * MIB, &stream).unwrap();
    let held = allocator.reserved_bytes();
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    let large = allocator.allocate_by_address(3 * MIB - 100, &stream).unwrap();
    let small = allocator.allocate_by_address(1000, &stream).unwrap();
    allocator.end_allocate_to_pool(id).unwrap();

    let snapshot = allocator.snapshot();
    let of_pool = |segment: &&SegmentInfo| segment.segment_pool_id == id;
    let segments: Vec<_> = snapshot.segments.iter().filter(of_pool).collect();
    let mut sizes: Vec<_> =
        segments.iter().map(|one| (one.address, one.total_size, one.segment_type)).collect();
    sizes.sort_by_key(|(_, size, _)| *size);
    assert_eq!(sizes, [(small, 2 << 20, PoolSize::Small), (large, 20 << 20, PoolSize::Large)]);
    let of_large = segments.iter().find(|segment| segment.address == large).unwrap();
    assert_eq!((of_large.requested_size, of_large.active_size), (3 * (1 << 20) - 100, 3 << 20));
    assert_eq!(of_large.stream, shown(&stream));
    assert!(!of_large.is_expandable);
    let states: Vec<_> = of_large.blocks.iter().map(|block| (block.size, block.state)).collect();
    assert_eq!(states, [(3 << 20, BlockState::ActiveAllocated), (17 << 20, BlockState::Inactive)]);
    assert!(snapshot.segments.iter().any(|one| one.segment_pool_id == MempoolId::NONE));

    let shown: u64 = snapshot.segments.iter().map(|segment| segment.total_size).sum();
    let statistics = allocator.statistics();
    assert_eq!((shown, statistics.reserved_bytes.all.current), (allocator.reserved_bytes() as u64, shown));
    assert_eq!(statistics.inactive_split_bytes.small_pool.current, (2 << 20) - 1024);
    assert!(statistics.inactive_split_bytes.large_pool.current >= 17 << 20);
    let peak = held + 22 * MIB;
    assert_eq!(
        (allocator.reserved_bytes() as u64, statistics.reserved_bytes.all.peak),
        (peak as u64, peak as u64)
    );

    [large, small].into_iter().for_each(|block| free(&allocator, block));
    allocator.release_pool(id).unwrap();
    stream.synchronize().unwrap();
    // Released and not given back, it is still memory that is held.
    assert_eq!(allocator.snapshot().segments.iter().filter(of_pool).count(), 2);
    assert_eq!(allocator.empty_pool_cache(id).unwrap(), 22 * MIB);
    assert_eq!(allocator.snapshot().segments.iter().filter(of_pool).count(), 0);
    assert_eq!(allocator.statistics().reserved_bytes.all.peak, peak as u64);
    allocator.reset_peak_statistics();
    assert_eq!(allocator.statistics().reserved_bytes.all.peak, held as u64);
    assert_eq!(allocator.reserved_bytes(), held);
    free(&allocator, default);
}

//! `PluggableAllocator`: private pools, whose segments the program's functions give.

use std::collections::HashSet;

use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::MempoolId;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::segments::{Filter, PoolError};
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::{self};
use cuda_mem_torch::{CudaAllocator, Error};

use crate::common::World;
use crate::common::capture::{Capture, RELAXED};
use crate::program::{Call, MIB, Program, free};

#[test]
fn a_pool_gets_segments_of_the_functions_and_gives_them_back() {
    let world = World::new();
    let (program, device, id) = (Program::new(), world.context.device(), MempoolId::for_graph());
    let allocator = program.allocator(&world);
    allocator.begin_allocate_to_pool(device, id, Filter::this_thread()).unwrap();
    assert_eq!(allocator.pool_use_count(device, id).unwrap(), 1);
    let (one, two) = (
        allocator.malloc(3 * MIB, device, &world.stream).unwrap(),
        allocator.malloc(3 * MIB, device, &world.stream).unwrap(),
    );
    allocator.end_allocate_to_pool(device, id).unwrap();
    let calls = program.calls();
    assert!(matches!(calls[..], [Call::Alloc(size, ..)] if size == 20 * MIB), "{calls:?}");
    assert_eq!(allocator.base_allocation(two).unwrap(), (one, 20 * MIB));
    assert_eq!(two, one + 3 * MIB as u64);
    let both = HashSet::from([one, two]);
    assert!(allocator.check_pool_live_allocations(device, id, &both).unwrap());
    let outside = allocator.malloc(3 * MIB, device, &world.stream).unwrap();
    assert_eq!(program.calls(), [Call::Alloc(3 * MIB, device, world.stream.id().as_raw())]);
    let stats = allocator.device_stats(device).unwrap();
    assert_eq!((stats.allocation.all.current, stats.segment.all.current), (3, 2));
    assert_eq!(stats.reserved_bytes.all.current, 23 * MIB as u64);
    assert_eq!(stats.reserved_bytes.all.peak, 23 * MIB as u64);
    for block in [one, two, outside] {
        free(&*allocator, block);
    }
    program.calls();
    world.stream.synchronize().unwrap();
    assert_eq!(allocator.empty_cache(id).unwrap(), 0, "in use");
    allocator.release_pool(device, id).unwrap();
    assert_eq!(allocator.empty_cache(id).unwrap(), 20 * MIB);
    assert!(
        matches!(program.calls()[..], [Call::Free(address, size, ..)] if (address, size) == (one, 20 * MIB))
    );
    assert_eq!(program.out(), 0);
    let again = allocator.release_pool(device, id).unwrap_err();
    assert!(matches!(again, Error::Pool(cuda_mem_pool::Error::Pool(PoolError::Unknown { .. }))), "{again}");
}

#[test]
fn a_pool_that_gets_no_segment_is_out_of_memory() {
    let world = World::new();
    let (program, device, id) = (Program::new(), world.context.device(), MempoolId::for_user());
    let allocator = program.allocator(&world);
    program.limit(Some(10 * MIB));
    allocator.create_or_incref_pool(device, id, None).unwrap();
    allocator.begin_allocate_to_pool(device, id, Filter::this_thread()).unwrap();
    assert_eq!(allocator.pool_use_count(device, id).unwrap(), 2);
    let refused = allocator.malloc(3 * MIB, device, &world.stream).unwrap_err();
    assert!(refused.is_out_of_memory(), "{refused}");
    let small = allocator.malloc(1000, device, &world.stream).unwrap();
    free(&*allocator, small);
    allocator.end_allocate_to_pool(device, id).unwrap();
    let twice = allocator.end_allocate_to_pool(device, id).unwrap_err();
    assert!(matches!(twice, Error::Pool(cuda_mem_pool::Error::Pool(PoolError::NotRouted { .. }))), "{twice}");
    allocator.release_pool(device, id).unwrap();
    allocator.release_pool(device, id).unwrap();
    world.stream.synchronize().unwrap();
    allocator.empty_cache(MempoolId::NONE).unwrap();
    assert_eq!(program.out(), 0);
}

#[test]
fn a_pool_that_cannot_begin_has_no_use_more() {
    let world = World::new();
    let (allocator, device) = (Program::new().allocator(&world), world.context.device());
    let refused = allocator.begin_allocate_to_pool(device, MempoolId::NONE, Filter::this_thread());
    assert!(matches!(refused, Err(Error::Pool(cuda_mem_pool::Error::Pool(PoolError::NoPool)))));
    let id = MempoolId::for_user();
    allocator.begin_allocate_to_pool(device, id, Filter::this_thread()).unwrap();
    let again = allocator.begin_allocate_to_pool(device, id, Filter::this_thread()).unwrap_err();
    assert!(
        matches!(again, Error::Pool(cuda_mem_pool::Error::Pool(PoolError::AlreadyRouted { .. }))),
        "{again}"
    );
    assert_eq!(allocator.pool_use_count(device, id).unwrap(), 1);
    allocator.end_allocate_to_pool(device, id).unwrap();
    allocator.release_pool(device, id).unwrap();
}

#[test]
fn a_checkpoint_says_what_it_freed_and_remade() {
    let world = World::new();
    let (program, device, id) = (Program::new(), world.context.device(), MempoolId::for_graph());
    let allocator = program.allocator(&world);
    let allocate = |size| allocator.malloc(size, device, &world.stream).unwrap();
    allocator.begin_allocate_to_pool(device, id, Filter::this_thread()).unwrap();
    let (kept, gone) = (allocate(MIB), allocate(3 * MIB));
    let state = allocator.checkpoint_state(device, id).unwrap();
    free(&*allocator, gone);
    let later = allocate(2 * MIB);
    // SAFETY: nothing uses the pool's memory, and what is called freed is not freed again.
    let delta = unsafe { allocator.set_checkpoint_pool_state(device, &state) }.unwrap();
    assert_eq!(HashSet::from_iter(delta.ptrs_freed), HashSet::from([kept, later]));
    let remade: HashSet<u64> = delta.dataptrs_allocd.iter().map(|block| block.address()).collect();
    assert_eq!(remade, HashSet::from([kept, gone]));
    assert!(delta.dataptrs_allocd.iter().all(|block| block.deleter() == &allocator.raw_deleter()));
    assert!(allocator.check_pool_live_allocations(device, id, &remade).unwrap());
    drop(delta.dataptrs_allocd);
    assert!(allocator.check_pool_live_allocations(device, id, &HashSet::new()).unwrap());
    allocator.end_allocate_to_pool(device, id).unwrap();
    allocator.release_pool(device, id).unwrap();
    let other = world.driver.devices().unwrap().into_iter().nth(1);
    if let Some(other) = other {
        // SAFETY: refused: it is of another device.
        let refused = unsafe { allocator.set_checkpoint_pool_state(other, &state) }.unwrap_err();
        assert!(matches!(refused, Error::OtherDevice { .. }), "{refused}");
    }
    let unknown = allocator.checkpoint_state(device, MempoolId::for_user()).unwrap_err();
    assert!(matches!(unknown, Error::Pool(_)), "{unknown}");
}

#[test]
fn what_a_graph_was_captured_from_serves_nobody_else_until_it_is_released() {
    let world = World::new();
    let (program, device, id) = (Program::new(), world.context.device(), MempoolId::for_graph());
    let (allocator, stream) = (program.allocator(&world), world.new_stream());
    allocator.begin_allocate_to_pool(device, id, Filter::stream(stream.id().as_raw())).unwrap();
    let capture = Capture::begin(&stream, RELAXED);
    let inside = allocator.malloc(3 * MIB, device, &stream).unwrap();
    free(&*allocator, inside);
    let graph = capture.end().unwrap();
    allocator.end_allocate_to_pool(device, id).unwrap();
    program.calls();
    let outside = allocator.malloc(3 * MIB, device, &stream).unwrap();
    assert!(!(inside..inside + 20 * MIB as u64).contains(&outside), "the graph writes there");
    // SAFETY: the graph has no nodes.
    unsafe { graph.run(&stream) };
    assert_eq!(allocator.empty_cache(MempoolId::NONE).unwrap(), 0);
    free(&*allocator, outside);
    allocator.release_pool(device, id).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(allocator.empty_cache(MempoolId::NONE).unwrap(), 20 * MIB);
    assert_eq!(program.out(), 0);
}

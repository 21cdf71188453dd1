//! `MemPool`, rule by rule.

use std::sync::{Arc, Mutex};

use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::MempoolId;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::segments::Filter;
use cuda_mem_torch::cuda_mem_ipc::cuda_mem_pool::{self};
use cuda_mem_torch::{CudaAllocator, Error, MemPool};

use crate::common::World;
use crate::common::capture::{Capture, RELAXED};
use crate::native::native;
use crate::program::{Call, MIB, Program, free};

type Shared = Arc<dyn CudaAllocator>;

fn owner(world: &World) -> Shared {
    Arc::new(native(world))
}

fn pool(world: &World, owner: &Shared, allocator: Option<Shared>) -> MemPool {
    world.context.with_current(|| MemPool::of(owner, allocator, true, false, false)).unwrap().unwrap()
}

/// A block of the pool.
fn inside(world: &World, owner: &Shared, id: MempoolId, size: usize) -> u64 {
    let device = world.context.device();
    owner.begin_allocate_to_pool(device, id, Filter::this_thread()).unwrap();
    let block = owner.malloc(size, device, &world.stream).unwrap();
    owner.end_allocate_to_pool(device, id).unwrap();
    owner.release_pool(device, id).unwrap();
    block
}

#[test]
fn it_is_bound_to_the_device_that_was_current() {
    let world = World::new();
    let owner = owner(&world);
    for device in world.driver.devices().unwrap() {
        let context = device.primary_context().unwrap();
        let make = || MemPool::of(&owner, None, true, false, false);
        let pool = context.with_current(make).unwrap().unwrap();
        // Another one is current by now.
        world.context.with_current(|| assert_eq!(pool.device(), device)).unwrap();
        assert_eq!(pool.use_count().unwrap(), 1);
    }
    let none = std::thread::scope(|scope| {
        scope.spawn(|| MemPool::of(&owner, None, true, false, false).map(drop)).join().unwrap()
    });
    assert!(matches!(none, Err(Error::Pool(cuda_mem_pool::Error::NoCurrentContext { .. }))), "{none:?}");
}

#[test]
fn names_of_users_and_graphs_are_counted_apart_and_never_0_0() {
    let world = World::new();
    let owner = owner(&world);
    let (user, graph) = (MemPool::graph_pool_handle(true), MemPool::graph_pool_handle(false));
    assert_eq!((user.0, graph.1), (0, 0));
    assert!(user.1 >= 1 && graph.0 >= 1);
    // The name alone: there is no such pool.
    assert_eq!(owner.pool_use_count(world.context.device(), user).unwrap(), 0);
    let make =
        |user| world.context.with_current(|| MemPool::of(&owner, None, user, false, false)).unwrap().unwrap();
    let (one, two, three) = (make(true), make(true), make(false));
    assert!(one.id().0 == 0 && one.id().1 > user.1 && two.id().1 > one.id().1);
    assert!(three.id().1 == 0 && three.id().0 > graph.0);
}

#[test]
fn its_segments_are_the_named_allocators_memory() {
    let world = World::new();
    let (owner, program) = (owner(&world), Program::new());
    let source: Shared = program.allocator(&world);
    let pool = pool(&world, &owner, Some(source.clone()));
    assert!(Arc::ptr_eq(pool.allocator().unwrap(), &source));
    let block = inside(&world, &owner, pool.id(), 3 * MIB);
    assert!(matches!(program.calls()[..], [Call::Alloc(size, ..)] if size == 20 * MIB));
    assert_eq!(owner.base_allocation(block).unwrap(), (block, 20 * MIB));
    free(&*owner, block);
    world.stream.synchronize().unwrap();
    drop(pool);
    assert!(matches!(program.calls()[..], [Call::Free(_, size, ..)] if size == 20 * MIB));
    assert_eq!(program.out(), 0);
    let none = self::pool(&world, &owner, None);
    assert!(none.allocator().is_none());
}

#[test]
fn dropped_it_leaves_allocations_and_their_memory_goes_with_the_last() {
    let world = World::new();
    let (owner, program) = (owner(&world), Program::new());
    let source: Shared = program.allocator(&world);
    let pool = pool(&world, &owner, Some(source));
    let (device, id) = (pool.device(), pool.id());
    let block = inside(&world, &owner, id, 3 * MIB);
    drop(pool);
    assert_eq!(owner.pool_use_count(device, id).unwrap(), 0);
    assert_eq!(program.out(), 1, "an allocation is in it");
    free(&*owner, block);
    world.stream.synchronize().unwrap();
    assert_eq!(owner.empty_cache(MempoolId::default()).unwrap(), 20 * MIB);
    assert_eq!(program.out(), 0);
}

#[test]
fn dropped_while_a_graph_holds_it_the_memory_stays_for_the_graph() {
    let world = World::new();
    let owner = owner(&world);
    let (pool, stream) = (pool(&world, &owner, None), world.new_stream());
    let (device, id) = (pool.device(), pool.id());
    // As a graph does: a use of its own, from the beginning of the capture to its reset.
    owner.begin_allocate_to_pool(device, id, Filter::stream(stream.id().as_raw())).unwrap();
    let capture = Capture::begin(&stream, RELAXED);
    let block = owner.malloc(3 * MIB, device, &stream).unwrap();
    free(&*owner, block);
    assert_eq!(pool.use_count().unwrap(), 2);
    // In the middle of it.
    drop(pool);
    let graph = capture.end().unwrap();
    owner.end_allocate_to_pool(device, id).unwrap();
    assert_eq!(owner.pool_use_count(device, id).unwrap(), 1);
    assert_eq!(owner.empty_cache(id).unwrap(), 0, "the graph has it");
    // SAFETY: the graph has no nodes.
    unsafe { graph.run(&stream) };
    owner.release_pool(device, id).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(owner.empty_cache(id).unwrap(), 20 * MIB);
}

#[test]
fn with_use_on_oom_it_helps_out_and_without_it_does_not() {
    let world = World::new();
    let (owner, device) = (owner(&world), world.context.device());
    for use_on_oom in [true, false] {
        let make = || MemPool::of(&owner, None, true, use_on_oom, false);
        let pool = world.context.with_current(make).unwrap().unwrap();
        let block = inside(&world, &owner, pool.id(), 30 * MIB);
        free(&*owner, block);
        // Nothing more than what is held may be.
        let held = owner.device_stats(device).unwrap().reserved_bytes.all.current as f64;
        owner.set_memory_fraction(held / device.total_memory().unwrap() as f64, device).unwrap();
        let got = owner.malloc(29 * MIB, device, &world.stream);
        assert_eq!(got.is_ok(), use_on_oom, "{got:?}");
        if let Ok(address) = got {
            assert_eq!(address, block);
            free(&*owner, address);
        }
        owner.set_memory_fraction(1.0, device).unwrap();
        world.stream.synchronize().unwrap();
    }
}

/// They get what they ask for, of exact size; a pool lends pieces of its segments.
#[test]
fn a_pool_helps_out_no_request_of_a_programs_functions() {
    let world = World::new();
    let (device, program) = (world.context.device(), Program::new());
    let owner: Shared = program.allocator(&world);
    let make = || MemPool::of(&owner, None, true, true, false);
    let pool = world.context.with_current(make).unwrap().unwrap();
    program.limit(Some(30 * MIB));
    free(&*owner, inside(&world, &owner, pool.id(), 30 * MIB));
    assert!(owner.malloc(29 * MIB, device, &world.stream).unwrap_err().is_out_of_memory());
    drop(pool);
    free(&*owner, owner.malloc(29 * MIB, device, &world.stream).unwrap());
}

#[test]
fn dropped_while_a_graph_holds_it_it_helps_out_no_more() {
    let world = World::new();
    let (owner, device) = (owner(&world), world.context.device());
    let make = || MemPool::of(&owner, None, true, true, false);
    let pool = world.context.with_current(make).unwrap().unwrap();
    let id = pool.id();
    let block = inside(&world, &owner, id, 30 * MIB);
    // As a graph does.
    owner.create_or_incref_pool(device, id, None).unwrap();
    drop(pool);
    free(&*owner, block);
    let held = owner.device_stats(device).unwrap().reserved_bytes.all.current as f64;
    owner.set_memory_fraction(held / device.total_memory().unwrap() as f64, device).unwrap();
    let got = owner.malloc(29 * MIB, device, &world.stream);
    assert!(got.is_err(), "a graph writes where it allocated: {got:?}");
    owner.set_memory_fraction(1.0, device).unwrap();
    owner.release_pool(device, id).unwrap();
}

#[test]
fn with_no_split_a_request_gets_all_of_a_block() {
    let world = World::new();
    let owner = owner(&world);
    for no_split in [true, false] {
        let make = || MemPool::of(&owner, None, true, false, no_split);
        let pool = world.context.with_current(make).unwrap().unwrap();
        let first = inside(&world, &owner, pool.id(), MIB + 512);
        let second = inside(&world, &owner, pool.id(), MIB + 512);
        let shared = owner.base_allocation(first).unwrap() == owner.base_allocation(second).unwrap();
        assert_eq!(shared, !no_split);
        free(&*owner, first);
        free(&*owner, second);
    }
}

#[test]
fn its_snapshot_has_its_own_segments() {
    let world = World::new();
    let owner = owner(&world);
    let (one, two) = (pool(&world, &owner, None), pool(&world, &owner, None));
    let block = inside(&world, &owner, one.id(), 3 * MIB);
    let outside = owner.malloc(3 * MIB, one.device(), &world.stream).unwrap();
    let snapshot = one.snapshot().unwrap();
    assert_eq!(snapshot.segments.len(), 1);
    assert_eq!((snapshot.segments[0].address, snapshot.segments[0].segment_pool_id), (block, one.id()));
    assert_eq!(snapshot.segments[0].requested_size, 3 * MIB as u64);
    assert!(two.snapshot().unwrap().segments.is_empty());
    let all = owner.snapshot(MempoolId::NONE).unwrap();
    assert!(all.segments.iter().any(|segment| segment.segment_pool_id == MempoolId::NONE));
    assert!(all.segments.iter().any(|segment| segment.segment_pool_id == one.id()));
    free(&*owner, block);
    free(&*owner, outside);
}

#[test]
fn a_pool_of_its_own_allocator_is_refused() {
    let world = World::new();
    let owner = owner(&world);
    let make = || MemPool::of(&owner, Some(owner.clone()), true, false, false).map(drop);
    let refused = world.context.with_current(make).unwrap().unwrap_err();
    assert!(matches!(refused, Error::Pool(cuda_mem_pool::Error::OwnSource { .. })), "{refused}");
}

#[test]
fn a_pool_that_never_had_memory_keeps_its_allocator_no_longer_than_itself() {
    let world = World::new();
    let owner = owner(&world);
    let source: Shared = Program::new().allocator(&world);
    let weak = Arc::downgrade(&source);
    drop(pool(&world, &owner, Some(source)));
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_pool_may_be_of_an_allocator_of_functions() {
    let world = World::new();
    let program = Program::new();
    let owner: Shared = program.allocator(&world);
    owner.init(1).unwrap();
    let pool = pool(&world, &owner, None);
    let block = inside(&world, &owner, pool.id(), 3 * MIB);
    assert!(matches!(program.calls()[..], [Call::Alloc(size, ..)] if size == 20 * MIB));
    free(&*owner, block);
    world.stream.synchronize().unwrap();
    let failures = world.driver.release_failures();
    drop(pool);
    assert_eq!(program.out(), 0);
    assert_eq!(world.driver.release_failures(), failures);
}

/// It is kept here with no memory, for its uses alone.
#[test]
fn a_pool_of_an_allocator_whose_pools_are_the_programs_ends() {
    let world = World::new();
    let (device, failures) = (world.context.device(), world.driver.release_failures());
    let told = Arc::new(Mutex::new(Vec::new()));
    for has_all in [true, false] {
        let (allocator, program) = (Program::new().allocator(&world), Program::new());
        let [begin, end, release] = [(); 3].map(|()| told.clone());
        allocator.set_begin_allocate_to_pool(move |_, _, _| begin.lock().unwrap().push("begin"));
        if has_all {
            allocator.set_end_allocate_to_pool_fn(move |_, _| end.lock().unwrap().push("end"));
            allocator.set_release_pool(move |_, _| release.lock().unwrap().push("release"));
        }
        let owner: Shared = allocator;
        let source: Shared = program.allocator(&world);
        let weak = Arc::downgrade(&source);
        let pool = pool(&world, &owner, Some(source));
        let id = pool.id();
        assert_eq!(pool.use_count().unwrap(), 1);
        if has_all {
            free(&*owner, inside(&world, &owner, id, MIB));
            assert_eq!(pool.use_count().unwrap(), 1);
        }
        drop(pool);
        assert_eq!(owner.pool_use_count(device, id).unwrap(), 0);
        assert_eq!(world.driver.release_failures(), failures);
        assert!(weak.upgrade().is_none());
        assert_eq!(program.calls(), [], "each request is of the owner's functions");
    }
    assert_eq!(*told.lock().unwrap(), ["begin", "end", "release", "release"]);
}

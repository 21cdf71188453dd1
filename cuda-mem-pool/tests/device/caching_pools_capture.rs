//! Graphs that are captured from private pools of `CachingAllocator`.

use cuda_mem_pool::MempoolId;

use crate::common::World;
use crate::common::capture::{Capture, GLOBAL, RELAXED, THREAD_LOCAL};
use crate::common::gate::Gate;
use crate::common::kernels::Kernels;
use crate::support::{allocator, free, on};

const MIB: usize = 1 << 20;
const COUNT: u64 = 1000;

#[test]
fn a_graph_has_its_memory_until_its_pool_is_released() {
    let world = World::new();
    let kernels = Kernels::load(&world.context);
    for mode in [GLOBAL, THREAD_LOCAL, RELAXED] {
        let (allocator, id) = (allocator(&world), MempoolId::for_graph());
        let (stream, launched_on) = (world.new_stream(), world.new_stream());
        let result = allocator.allocate_by_address(4 * COUNT as usize, &launched_on).unwrap();
        allocator.empty_cache().unwrap();
        let before = allocator.reserved_bytes();
        allocator.begin_allocate_to_pool(id, on(&stream)).unwrap();
        let capture = Capture::begin(&stream, mode);
        // Segments are got, and a block is freed and had again, all while the stream captures.
        let first = allocator.allocate_by_address(4 * COUNT as usize, &stream).unwrap();
        // SAFETY: the memory is the pool's until after the last launch, as that which it is copied to.
        unsafe { kernels.fill_u32(&stream, first, COUNT, 41) };
        let large = allocator.allocate_by_address(30 * MIB, &stream).unwrap();
        free(&allocator, large);
        let again = allocator.allocate_by_address(30 * MIB, &stream).unwrap();
        assert_eq!(again, large);
        // SAFETY: as above.
        unsafe { kernels.add_one_u32(&stream, first, COUNT) };
        // SAFETY: as above.
        unsafe { kernels.copy_u8(&stream, result, first, 4 * COUNT) };
        [first, again].into_iter().for_each(|block| free(&allocator, block));
        // What others do meanwhile takes nothing away.
        allocator.empty_cache().unwrap();
        let graph = capture.end().unwrap();
        allocator.end_allocate_to_pool(id).unwrap();
        allocator.empty_cache().unwrap();
        assert_eq!(allocator.reserved_bytes() - before, 32 * MIB);
        for _ in 0..2 {
            // SAFETY: the pool is there.
            unsafe { graph.run(&launched_on) };
        }
        let mut bytes = vec![0; 4 * COUNT as usize];
        // SAFETY: a whole block of the bytes' size; the copy is waited for.
        unsafe {
            cuda_mem_core::copy::memcpy_async(&launched_on, bytes.as_mut_ptr() as u64, result, bytes.len())
        }
        .unwrap();
        launched_on.synchronize().unwrap();
        assert!(bytes.chunks_exact(4).all(|word| word == 42u32.to_ne_bytes()));
        allocator.release_pool(id).unwrap();
        assert_eq!(allocator.empty_pool_cache(id).unwrap(), 32 * MIB);
        free(&allocator, result);
    }
}

#[test]
fn a_graphs_memory_waits_for_launches_on_other_streams() {
    let world = World::new();
    let (allocator, id) = (allocator(&world), MempoolId::for_graph());
    let (stream, launched_on) = (world.new_stream(), world.new_stream());
    let known = allocator.allocate_by_address(512, &launched_on).unwrap();
    allocator.begin_allocate_to_pool(id, on(&stream)).unwrap();
    let capture = Capture::begin(&stream, THREAD_LOCAL);
    let block = allocator.allocate_by_address(512, &stream).unwrap();
    free(&allocator, block);
    drop(capture.end().unwrap());
    allocator.end_allocate_to_pool(id).unwrap();
    allocator.release_pool(id).unwrap();
    let gate = Gate::before(&launched_on);
    assert_eq!(allocator.empty_cache().unwrap(), 0);
    gate.open();
    assert_eq!(allocator.empty_pool_cache(id).unwrap(), 2 * MIB, "it waits");
    free(&allocator, known);
}

#[test]
fn a_capture_on_one_stream_stops_nobody_else() {
    let world = World::new();
    let (allocator, graphs, users) = (allocator(&world), MempoolId::for_graph(), MempoolId::for_user());
    let (captured, stream, helper) = (world.new_stream(), world.new_stream(), world.new_stream());
    allocator.begin_allocate_to_pool(users, on(&stream)).unwrap();
    let block = allocator.allocate_by_address(MIB, &stream).unwrap();
    let common = allocator.allocate_by_address(50 * MIB, &helper).unwrap();
    allocator.end_allocate_to_pool(users).unwrap();
    allocator.begin_allocate_to_pool(graphs, on(&captured)).unwrap();
    let capture = Capture::begin(&captured, GLOBAL);
    let kept = allocator.allocate_by_address(MIB, &captured).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            allocator.record_stream(block, &helper).unwrap();
            free(&allocator, block);
            free(&allocator, common);
            [&stream, &helper].into_iter().for_each(|stream| stream.synchronize().unwrap());
            allocator.release_pool(users).unwrap();
            assert!(allocator.empty_cache().unwrap() >= 52 * MIB);
            assert_eq!(allocator.reserved_bytes(), 2 * MIB);
            let again = allocator.allocate_by_address(50 * MIB, &helper).unwrap();
            free(&allocator, again);
        });
    });
    free(&allocator, kept);
    drop(capture.end().expect("the capture survives"));
    allocator.end_allocate_to_pool(graphs).unwrap();
    allocator.release_pool(graphs).unwrap();
}

#[test]
fn uses_of_streams_that_capture_are_waited_for_once_they_have_ended() {
    let world = World::new();
    let (allocator, id) = (allocator(&world), MempoolId::for_graph());
    let stream = world.new_stream();
    let (other, user) = (world.new_stream(), world.new_stream());
    allocator.begin_allocate_to_pool(id, on(&other)).unwrap();
    let block = allocator.allocate_by_address(MIB, &other).unwrap();
    allocator.end_allocate_to_pool(id).unwrap();
    let capture = Capture::begin(&user, GLOBAL);
    allocator.record_stream(block, &user).unwrap();
    free(&allocator, block);
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.statistics().active.all.current, 1);
    // The same in the default pool.
    let common = allocator.allocate_by_address(MIB, &stream).unwrap();
    allocator.record_stream(common, &user).unwrap();
    free(&allocator, common);
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.statistics().active.all.current, 2);
    drop(capture.end().expect("the capture survives"));
    allocator.empty_cache().unwrap();
    user.synchronize().unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.statistics().active.all.current, 0);
    allocator.release_pool(id).unwrap();
}

#[test]
fn what_waits_stays_away_while_allocations_go_to_a_graphs_pool() {
    let world = World::new();
    let (allocator, id) = (allocator(&world), MempoolId::for_graph());
    let (stream, other) = (world.new_stream(), world.new_stream());
    allocator.begin_allocate_to_pool(id, on(&stream)).unwrap();
    let capture = Capture::begin(&stream, GLOBAL);
    let block = allocator.allocate_by_address(MIB, &stream).unwrap();
    allocator.record_stream(block, &other).unwrap();
    free(&allocator, block);
    let second = allocator.allocate_by_address(MIB, &stream).unwrap();
    assert_ne!(second, block);
    drop(capture.end().expect("the capture survives"));
    other.synchronize().unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.statistics().active.all.current, 2, "another graph may follow");
    allocator.end_allocate_to_pool(id).unwrap();
    allocator.empty_cache().unwrap();
    assert_eq!(allocator.statistics().active.all.current, 1);
    allocator.begin_allocate_to_pool(id, on(&stream)).unwrap();
    assert_eq!(allocator.allocate_by_address(MIB, &stream).unwrap(), block);
    [block, second].into_iter().for_each(|block| free(&allocator, block));
    allocator.end_allocate_to_pool(id).unwrap();
    [(), ()].into_iter().for_each(|()| allocator.release_pool(id).unwrap());
}

//! Private pools of `PinnedCachingAllocator`, and captures.

use cuda_mem_core::{Error as CoreError, StreamId};
use cuda_mem_pool::pinned_cache::PinnedCacheOptions;
use cuda_mem_pool::segments::PoolError;
use cuda_mem_pool::{Error, MempoolId, PinnedCachingAllocator};

use crate::common::World;
use crate::common::capture::{Capture, RELAXED};

const MIB: usize = 1 << 20;
const POOL: MempoolId = MempoolId(0, 1);
const OTHER: MempoolId = MempoolId(7, 0);

fn allocator(world: &World) -> PinnedCachingAllocator {
    let options = PinnedCacheOptions::default().with_returns_surplus(false);
    PinnedCachingAllocator::with_options(&world.context, options)
}

fn everything(_: Option<StreamId>) -> bool {
    true
}

#[test]
fn pools_share_nothing() {
    let world = World::new();
    let allocator = allocator(&world);
    let common = allocator.allocate(MIB).unwrap().as_ptr().addr();
    let mut seen = vec![common];
    for pool in [POOL, OTHER] {
        allocator.begin_allocate_to_pool(pool, everything).unwrap();
        let block = allocator.allocate(MIB).unwrap();
        assert!(!seen.contains(&block.as_ptr().addr()));
        seen.push(block.as_ptr().addr());
        assert_eq!(block.pool(), Some(pool));
        drop(block);
        assert_eq!(allocator.allocate(MIB).unwrap().as_ptr().addr(), *seen.last().unwrap(), "its own again");
        allocator.end_allocate_to_pool(pool).unwrap();
    }
    assert_eq!(allocator.allocate(MIB).unwrap().as_ptr().addr(), common);
    let two = [allocator.allocate(MIB).unwrap(), allocator.allocate(MIB).unwrap()];
    assert!(two.iter().all(|block| !seen[1..].contains(&block.as_ptr().addr())), "another pool's");
    allocator.release_pool(POOL).unwrap();
    allocator.release_pool(OTHER).unwrap();
    drop(two);
    allocator.empty_cache();
    assert_eq!(allocator.statistics().allocated_bytes.current, 0);
}

#[test]
fn the_name_of_no_pool_is_refused() {
    let world = World::new();
    let allocator = allocator(&world);
    let refused = allocator.begin_allocate_to_pool(MempoolId::NONE, everything).unwrap_err();
    assert!(matches!(refused, Error::Pool(PoolError::NoPool)), "{refused}");
    assert_eq!(allocator.allocate(MIB).unwrap().pool(), None);
}

#[test]
fn filters_choose_by_stream() {
    let world = World::new();
    let allocator = allocator(&world);
    let (mine, other) = (world.new_stream(), world.new_stream());
    let id = mine.id();
    allocator.begin_allocate_to_pool(POOL, move |stream| stream == Some(id)).unwrap();
    let block = allocator.allocate_with(5000, Some(&mine), None).unwrap();
    assert_eq!(block.pool(), Some(POOL));
    let others =
        [allocator.allocate_with(5000, Some(&other), None).unwrap(), allocator.allocate(5000).unwrap()];
    assert!(others.iter().all(|block| block.pool().is_none()));
    drop((block, others));
    allocator.end_allocate_to_pool(POOL).unwrap();
    drop(allocator.allocate_with(5000, Some(&mine), None).unwrap());
    allocator.release_pool(POOL).unwrap();
}

#[test]
fn of_nested_pools_the_innermost_is_asked_first() {
    let world = World::new();
    let allocator = allocator(&world);
    allocator.begin_allocate_to_pool(POOL, everything).unwrap();
    let outer = allocator.allocate(5000).unwrap();
    allocator.begin_allocate_to_pool(OTHER, everything).unwrap();
    let inner = allocator.allocate(5000).unwrap();
    assert_eq!((outer.pool(), inner.pool()), (Some(POOL), Some(OTHER)));
    allocator.end_allocate_to_pool(OTHER).unwrap();
    let outer_again = allocator.allocate(5000).unwrap();
    assert_eq!(outer_again.pool(), Some(POOL));
    drop((outer, inner, outer_again));
    allocator.end_allocate_to_pool(POOL).unwrap();
    allocator.release_pool(POOL).unwrap();
    allocator.release_pool(OTHER).unwrap();
}

#[test]
fn uses_of_a_pool_are_counted_and_its_memory_goes_with_the_last() {
    let world = World::new();
    let allocator = allocator(&world);
    for _ in 0..2 {
        allocator.begin_allocate_to_pool(POOL, everything).unwrap();
        let twice = allocator.begin_allocate_to_pool(POOL, everything).unwrap_err();
        assert!(matches!(twice, Error::Pool(PoolError::AlreadyRouted { id: POOL })));
        allocator.end_allocate_to_pool(POOL).unwrap();
    }
    assert!(matches!(
        allocator.end_allocate_to_pool(POOL).unwrap_err(),
        Error::Pool(PoolError::NotRouted { id: POOL })
    ));
    allocator.begin_allocate_to_pool(POOL, everything).unwrap();
    let mut block = allocator.allocate(3 * MIB).unwrap();
    drop(allocator.allocate(5 * MIB).unwrap());
    allocator.release_pool(POOL).unwrap();
    allocator.release_pool(POOL).unwrap();
    assert_eq!(allocator.statistics().allocations.current, 2);
    allocator.release_pool(POOL).unwrap();
    let ended = allocator.end_allocate_to_pool(POOL).unwrap_err();
    assert!(
        matches!(ended, Error::Pool(PoolError::NotRouted { id: POOL })),
        "the last use ended it: {ended}"
    );
    assert_eq!(allocator.statistics().allocations.current, 1, "all but what is in use goes back");
    block.as_mut_slice().unwrap().fill(1);
    drop(block);
    assert_eq!(allocator.statistics().allocations.current, 0);
    let gone = allocator.release_pool(POOL).unwrap_err();
    assert_eq!(
        gone.to_string(),
        "there is no private pool (0, 1): it was never made, or was released and its memory given back"
    );
}

#[test]
fn a_graph_takes_blocks_of_a_private_pool_alone_and_keeps_them() {
    let world = World::new();
    let allocator = allocator(&world);
    let stream = world.new_stream();
    let common = allocator.allocate(MIB).unwrap();
    allocator.begin_allocate_to_pool(POOL, everything).unwrap();
    let capture = Capture::begin(&stream, RELAXED);
    for refused in [common.on(&stream).map(drop), common.record_stream(&stream)] {
        assert!(
            matches!(refused.unwrap_err(), CoreError::Capturing { call } if call.starts_with("PinnedBlock::"))
        );
    }
    let captured = allocator.allocate(MIB).unwrap();
    let address = captured.as_ptr().addr();
    drop(captured.on(&stream).unwrap());
    drop(captured);
    let next = allocator.allocate(MIB).unwrap();
    assert_ne!(next.as_ptr().addr(), address, "handed out under a graph");
    drop(next);
    let graph = capture.end().unwrap();
    allocator.end_allocate_to_pool(POOL).unwrap();
    allocator.empty_cache();
    let others: Vec<_> = (0..4).map(|_| allocator.allocate(MIB).unwrap()).collect();
    assert!(others.iter().all(|block| block.as_ptr().addr() != address), "handed out under a graph");
    drop((others, common, graph));
    allocator.release_pool(POOL).unwrap();
    allocator.empty_cache();
    assert_eq!(allocator.statistics().allocated_bytes.current, 0);
}

#[test]
fn a_block_whose_stream_captures_when_it_is_freed_waits_for_the_end_of_that() {
    let world = World::new();
    let allocator = allocator(&world);
    let stream = world.new_stream();
    let block = allocator.allocate(MIB).unwrap();
    let address = block.as_ptr().addr();
    block.record_stream(&stream).unwrap();
    let capture = Capture::begin(&stream, RELAXED);
    drop(block);
    let next = allocator.allocate(MIB).unwrap();
    assert_ne!(next.as_ptr().addr(), address);
    let graph = capture.end().unwrap();
    assert_eq!(graph.len(), 0, "the free left something in the graph");
    stream.synchronize().unwrap();
    assert_eq!(allocator.allocate(MIB).unwrap().as_ptr().addr(), address);
}

#[test]
fn an_allocator_may_end_while_its_blocks_streams_capture() {
    let world = World::new();
    let allocator = allocator(&world);
    let stream = world.new_stream();
    let blocks = [allocator.allocate(MIB).unwrap(), allocator.allocate(2000).unwrap()];
    blocks.iter().for_each(|block| block.record_stream(&stream).unwrap());
    let capture = Capture::begin(&stream, RELAXED);
    drop(blocks);
    drop(allocator);
    assert_eq!(capture.end().unwrap().len(), 0);
    assert_eq!(world.driver.reclaim(), 0);
}

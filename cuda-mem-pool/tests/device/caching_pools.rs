//! Private pools of `CachingAllocator`: routes, uses, layout, and where their memory comes from and goes.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cuda_mem_core::Stream;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::segments::{Filter, Options, PoolError};
use cuda_mem_pool::{Error, MemoryResource, MempoolId, TrackingAdaptor};

use crate::common::World;
use crate::common::gate::Gate;
use crate::support::{allocator, device, free, on};

const MIB: usize = 1 << 20;

/// The pool in which a block is, of those that are asked.
fn pool_of(allocator: &CachingAllocator, pools: &[MempoolId], block: u64) -> Vec<bool> {
    let only = HashSet::from([block]);
    pools.iter().map(|&id| allocator.check_pool_live_allocations(id, &only).unwrap()).collect()
}

#[test]
fn a_pool_serves_nobody_else_and_gives_its_memory_back_when_released() {
    let world = World::new();
    let (allocator, stream, id) = (allocator(&world), world.stream.clone(), MempoolId::for_user());
    allocator.create_or_incref_pool(id, None).unwrap();
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    assert_eq!(allocator.pool_use_count(id), 2);
    let block = allocator.allocate_by_address(3 * MIB, &stream).unwrap();
    assert_eq!(allocator.base_allocation(block).unwrap(), (block, 20 * MIB));
    allocator.end_allocate_to_pool(id).unwrap();
    let other = allocator.allocate_by_address(3 * MIB, &stream).unwrap();
    assert!(!(block..block + 20 * MIB as u64).contains(&other));
    free(&allocator, block);
    // SAFETY: refused, because it is free.
    let again = unsafe { allocator.free_by_address(block) };
    assert!(matches!(again, Err(Error::UnknownAddress { address }) if address == block));

    stream.synchronize().unwrap();
    assert_eq!(allocator.empty_pool_cache(id).unwrap(), 0, "in use");
    allocator.release_pool(id).unwrap();
    assert_eq!(allocator.empty_pool_cache(id).unwrap(), 0, "still in use");
    allocator.release_pool(id).unwrap();
    assert_eq!(allocator.pool_use_count(id), 0);
    let refused = allocator.release_pool(id).unwrap_err();
    assert!(matches!(refused, Error::Pool(PoolError::Released { .. })), "{refused}");
    // Of the default pool the host waits for released ones too.
    let gate = Gate::before(&stream);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            gate.open();
        });
        assert!(allocator.empty_pool_cache(MempoolId::NONE).unwrap() >= 20 * MIB);
    });
    assert_eq!(allocator.empty_pool_cache(id).unwrap(), 0);
    let refused = allocator.release_pool(id).unwrap_err();
    assert!(matches!(refused, Error::Pool(PoolError::Unknown { .. })), "{refused}");
    free(&allocator, other);
}

#[test]
fn emptying_a_released_pool_waits_for_its_users() {
    let world = World::new();
    // By its own id, and by that of the default pool, with which all of them go.
    emptied_by(&world, |id| id);
    emptied_by(&world, |_| MempoolId::NONE);
}

#[track_caller]
fn emptied_by(world: &World, by: impl Fn(MempoolId) -> MempoolId) {
    let (allocator, side, id) = (allocator(world), world.new_stream(), MempoolId::for_user());
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    let block = allocator.allocate_by_address(3 * MIB, &world.stream).unwrap();
    allocator.end_allocate_to_pool(id).unwrap();
    allocator.record_stream(block, &side).unwrap();
    let gate = Gate::before(&side);
    free(&allocator, block);
    allocator.release_pool(id).unwrap();
    assert_eq!(allocator.empty_cache().unwrap(), 0, "nobody waits there");
    thread::scope(|scope| {
        scope.spawn(|| {
            // So that the wait has begun, if there is one.
            thread::sleep(Duration::from_millis(20));
            gate.open();
        });
        assert_eq!(allocator.empty_pool_cache(by(id)).unwrap(), 20 * MIB);
    });
}

#[test]
fn the_innermost_route_that_accepts_decides() {
    let world = World::new();
    let allocator = allocator(&world);
    let (mine, other) = (world.new_stream(), world.new_stream());
    let [thread, stream] = [MempoolId::for_user(), MempoolId::for_user()];
    allocator.begin_allocate_to_pool(thread, Filter::this_thread()).unwrap();
    allocator.begin_allocate_to_pool(stream, on(&mine)).unwrap();
    let pools = [thread, stream];
    let take = |on: &Stream| allocator.allocate_by_address(1000, on).unwrap();

    let block = take(&mine);
    assert_eq!(pool_of(&allocator, &pools, block), [false, true]);
    free(&allocator, block);
    let block = take(&other);
    assert_eq!(pool_of(&allocator, &pools, block), [true, false]);
    free(&allocator, block);
    thread::scope(|scope| {
        scope.spawn(|| {
            let block = take(&other);
            assert_eq!(pool_of(&allocator, &pools, block), [false, false], "another thread's");
            free(&allocator, block);
        });
    });
    // The outer one may end first.
    allocator.end_allocate_to_pool(thread).unwrap();
    let block = take(&other);
    assert_eq!(pool_of(&allocator, &pools, block), [false, false]);
    free(&allocator, block);
    let block = take(&mine);
    assert_eq!(pool_of(&allocator, &pools, block), [false, true]);
    free(&allocator, block);
    allocator.end_allocate_to_pool(stream).unwrap();
    let block = take(&mine);
    assert_eq!(pool_of(&allocator, &pools, block), [false, false]);
    free(&allocator, block);
    pools.into_iter().for_each(|id| allocator.release_pool(id).unwrap());
}

#[test]
fn what_a_filter_allocates_is_not_asked_for_again() {
    let world = World::new();
    let (allocator, id) = (allocator(&world), MempoolId::for_user());
    let (inside, stream) = (allocator.clone(), world.stream.clone());
    let filter = Filter::new(move |_| {
        let block = inside.allocate_by_address(512, &stream).unwrap();
        free(&inside, block);
        true
    });
    allocator.begin_allocate_to_pool(id, filter).unwrap();
    let block = allocator.allocate_by_address(512, &world.stream).unwrap();
    assert_eq!(pool_of(&allocator, &[id], block), [true]);
    free(&allocator, block);
    // The filter has a handle to the allocator: it must go for that to end.
    allocator.end_allocate_to_pool(id).unwrap();
    allocator.release_pool(id).unwrap();
}

#[test]
fn what_cannot_be_right_is_refused() {
    let world = World::new();
    let (allocator, id) = (allocator(&world), MempoolId::for_user());
    let pool = |result: Result<(), Error>| match result.unwrap_err() {
        Error::Pool(error) => error,
        other => panic!("{other}"),
    };
    assert_eq!(pool(allocator.create_or_incref_pool(MempoolId::NONE, None)), PoolError::NoPool);
    assert_eq!(pool(allocator.end_allocate_to_pool(id)), PoolError::NotRouted { id });
    assert_eq!(pool(allocator.release_pool(id)), PoolError::Unknown { id });
    assert_eq!(pool(allocator.set_use_on_oom(id, true)), PoolError::Unknown { id });
    assert_eq!(pool(allocator.set_no_split(id)), PoolError::Unknown { id });
    assert_eq!(pool(allocator.checkpoint_pool(id).map(drop)), PoolError::Unknown { id });
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    assert_eq!(
        pool(allocator.begin_allocate_to_pool(id, Filter::this_thread())),
        PoolError::AlreadyRouted { id }
    );
    let source = Some(device(&world).raw());
    assert_eq!(pool(allocator.create_or_incref_pool(id, source)), PoolError::SourceIsSet { id });
    let large = allocator.allocate_by_address(usize::MAX, &world.stream).unwrap_err();
    assert!(matches!(large, Error::TooLarge { bytes: usize::MAX }), "{large}");
    allocator.release_pool(id).unwrap();
    assert_eq!(pool(allocator.end_allocate_to_pool(id)), PoolError::NotRouted { id });
    assert_eq!(pool(allocator.create_or_incref_pool(id, None)), PoolError::Released { id });
    let unknown = allocator.base_allocation(0x1000).unwrap_err();
    assert!(matches!(unknown, Error::UnknownAddress { address: 0x1000 }), "{unknown}");
}

#[test]
fn pools_end_in_any_order_and_what_is_out_stays_valid() {
    let world = World::new();
    let (allocator, stream) = (allocator(&world), world.stream.clone());
    let pools = [(); 3].map(|()| MempoolId::for_user());
    let mut blocks = Vec::new();
    for id in pools {
        allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
        blocks.push(allocator.allocate(2 * MIB, &stream).unwrap());
    }
    allocator.end_allocate_to_pool(pools[1]).unwrap();
    allocator.release_pool(pools[1]).unwrap();
    assert_eq!(allocator.empty_cache().unwrap(), 0, "there is a block in it");
    for (block, seed) in blocks.iter_mut().zip(1u8..) {
        block.as_device_range().fill_bytes(&stream, seed).unwrap();
    }
    for (block, seed) in blocks.iter().zip(1u8..) {
        assert_eq!(block.to_vec(&stream).unwrap(), vec![seed; 2 * MIB]);
    }
    drop(blocks);
    stream.synchronize().unwrap();
    assert_eq!(allocator.empty_cache().unwrap(), 20 * MIB);
    for id in [pools[0], pools[2]] {
        allocator.end_allocate_to_pool(id).unwrap();
        allocator.release_pool(id).unwrap();
    }
    assert_eq!(allocator.empty_cache().unwrap(), 40 * MIB);
    assert_eq!(allocator.reserved_bytes(), 0);
}

#[test]
fn options_hold_as_a_whole() {
    let world = World::new();
    let quarters = Options::default().with_roundup_power2_divisions([4; 16]);
    let options = CachingOptions::default().with_segments(quarters);
    let allocator = CachingAllocator::new(&world.context, &options).unwrap();
    let (stream, id) = (world.stream.clone(), MempoolId::for_user());
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    let take = |bytes: usize| {
        let before = allocator.statistics().allocated_bytes.all.current;
        let block = allocator.allocate_by_address(bytes, &stream).unwrap();
        (block, allocator.statistics().allocated_bytes.all.current - before)
    };
    let (first, bytes) = take(11 * MIB);
    assert_eq!(bytes, 12 << 20);
    let unsplit = Options::default().with_max_split_size(Some(20 << 20));
    allocator.set_segment_options(unsplit).unwrap();
    let (large, bytes) = take(30 * MIB);
    assert_eq!(bytes, 30 << 20);
    free(&allocator, large);
    let (small, bytes) = take(11 * MIB);
    assert_eq!((bytes, small == large), (12 << 20, false), "a block of more than the split size is not cut");
    free(&allocator, small);
    free(&allocator, first);
    allocator.set_segment_options(Options::default()).unwrap();
    allocator.set_no_split(id).unwrap();
    let (whole, bytes) = take(4 * MIB);
    assert_eq!(bytes, 12 << 20, "the smallest that fits, whole");
    free(&allocator, whole);
    allocator.end_allocate_to_pool(id).unwrap();
    allocator.release_pool(id).unwrap();
}

#[test]
fn blocks_that_other_streams_use_stay_away_until_those_are_done() {
    let world = World::new();
    let (allocator, id) = (allocator(&world), MempoolId::for_user());
    let (stream, other) = (world.new_stream(), world.new_stream());
    allocator.begin_allocate_to_pool(id, on(&stream)).unwrap();
    let take = || allocator.allocate_by_address(MIB, &stream).unwrap();
    let block = take();
    let gate = Gate::before(&other);
    allocator.record_stream(block, &other).unwrap();
    allocator.record_stream(block, &stream).unwrap();
    free(&allocator, block);
    let refused = allocator.checkpoint_pool(id).map(drop).unwrap_err();
    assert!(matches!(refused, Error::Pool(PoolError::Pending { .. })), "{refused}");
    let second = take();
    assert_ne!(second, block);
    let statistics = allocator.statistics();
    assert_eq!((statistics.allocation.all.current, statistics.active.all.current), (1, 2));
    gate.open();
    other.synchronize().unwrap();
    // Nothing else is free in the pool.
    assert_eq!(take(), block);
    [block, second].into_iter().for_each(|block| free(&allocator, block));
    allocator.end_allocate_to_pool(id).unwrap();
    allocator.release_pool(id).unwrap();
}

#[test]
fn an_owner_that_another_stream_used_last_waits_for_that() {
    let world = World::new();
    let (allocator, id) = (allocator(&world), MempoolId::for_user());
    let (stream, other) = (world.new_stream(), world.new_stream());
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    let mut block = allocator.allocate(4096, &stream).unwrap();
    let address = block.address();
    let gate = Gate::before(&other);
    block.as_device_range().fill_bytes(&other, 1).unwrap();
    drop(block);
    // The release is ordered on the owner's stream, which waits: the block is its again.
    let mut again = allocator.allocate(4096, &stream).unwrap();
    assert_eq!(again.address(), address);
    again.as_device_range().fill_bytes(&stream, 2).unwrap();
    gate.open();
    assert_eq!(again.to_vec(&stream).unwrap(), vec![2; 4096]);
    drop(again);
    allocator.end_allocate_to_pool(id).unwrap();
    allocator.release_pool(id).unwrap();
}

#[test]
fn a_checkpoint_comes_back() {
    let world = World::new();
    let (allocator, id, stream) = (allocator(&world), MempoolId::for_graph(), world.stream.clone());
    allocator.begin_allocate_to_pool(id, Filter::this_thread()).unwrap();
    let blocks = [(); 3].map(|()| allocator.allocate_by_address(1000, &stream).unwrap());
    free(&allocator, blocks[1]);
    let checkpoint = allocator.checkpoint_pool(id).unwrap();
    let at_checkpoint = allocator.statistics();
    free(&allocator, blocks[0]);
    let late = allocator.allocate_by_address(5 * MIB, &stream).unwrap();
    // SAFETY: nothing uses any of the blocks, and nobody frees those that are freed here.
    let restored = unsafe { allocator.restore_pool(id, &checkpoint) }.unwrap();
    let addresses = |blocks: &[u64]| blocks.iter().copied().collect::<HashSet<_>>();
    assert_eq!(addresses(&restored.freed), HashSet::from([blocks[2], late]));
    let expected = HashSet::from([blocks[0], blocks[2]]);
    assert_eq!(addresses(&restored.allocated), expected);
    assert!(allocator.check_pool_live_allocations(id, &expected).unwrap());
    let now = allocator.statistics();
    assert_eq!(now.allocation.all.current, at_checkpoint.allocation.all.current);
    assert_eq!(now.requested_bytes.all.current, at_checkpoint.requested_bytes.all.current);
    // SAFETY: refused, because it was freed by the restore.
    assert!(unsafe { allocator.free_by_address(late) }.is_err());
    expected.into_iter().for_each(|block| free(&allocator, block));
    assert_eq!(allocator.statistics().active_bytes.all.current, 0);
    allocator.end_allocate_to_pool(id).unwrap();
    allocator.release_pool(id).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(allocator.empty_cache().unwrap(), 22 * MIB);
}

#[test]
fn threads_share_a_pool() {
    let world = World::new();
    let (allocator, id) = (Arc::new(allocator(&world)), MempoolId::for_user());
    allocator.begin_allocate_to_pool(id, Filter::new(|_| true)).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            let (allocator, stream) = (Arc::clone(&allocator), world.new_stream());
            scope.spawn(move || {
                for round in 1..100 {
                    let blocks = [1usize, 700, 5000]
                        .map(|bytes| allocator.allocate_by_address(bytes * round, &stream).unwrap());
                    blocks.into_iter().for_each(|block| free(&allocator, block));
                }
            });
        }
        scope.spawn(|| (0..50).for_each(|_| assert!(allocator.empty_cache().is_ok())));
    });
    assert!(allocator.check_pool_live_allocations(id, &HashSet::new()).unwrap());
    assert_eq!(allocator.statistics().active_bytes.all.current, 0);
    assert_eq!(allocator.statistics().allocation.all.allocated, 4 * 99 * 3);
    allocator.end_allocate_to_pool(id).unwrap();
    allocator.release_pool(id).unwrap();
}

/// A pool that is held by its value is used as long as that and its routes are there.
#[test]
fn a_pool_by_value_ends_its_uses() {
    let world = World::new();
    let (allocator, stream) = (allocator(&world), world.new_stream());
    let pool = allocator.private_pool(None).unwrap();
    let id = pool.id();
    let route = pool.route(Filter::stream(stream.id().as_raw())).unwrap();
    assert_eq!(allocator.pool_use_count(id), 2);
    let again = pool.route_this_thread().unwrap_err();
    assert!(matches!(again, Error::Pool(PoolError::AlreadyRouted { .. })), "{again}");
    let block = allocator.allocate_by_address(3 << 20, &stream).unwrap();
    assert_eq!(allocator.base_allocation(block).unwrap(), (block, 20 << 20));
    drop(route);
    assert_eq!(allocator.pool_use_count(id), 1);
    {
        let _route = pool.route_this_thread().unwrap();
        free(&allocator, block);
        assert_eq!(allocator.allocate_by_address(3 << 20, &stream).unwrap(), block);
    }
    let elsewhere = allocator.allocate_by_address(3 << 20, &stream).unwrap();
    assert_ne!(allocator.base_allocation(elsewhere).unwrap().0, block);
    [block, elsewhere].into_iter().for_each(|block| free(&allocator, block));
    // Ended by its name, its end by value does nothing.
    let route = pool.route_this_thread().unwrap();
    allocator.end_allocate_to_pool(id).unwrap();
    allocator.release_pool(id).unwrap();
    drop(route);
    assert_eq!(allocator.pool_use_count(id), 1);
}

#[test]
fn a_pool_by_value_has_its_own_source() {
    let world = World::new();
    let allocator = allocator(&world);
    let source = TrackingAdaptor::new(device(&world), false);
    let pool = allocator.private_pool(Some(source.raw())).unwrap();
    let block = {
        let _route = pool.route_this_thread().unwrap();
        allocator.allocate(100_000, &world.stream).unwrap()
    };
    assert_eq!(source.bytes().current, 2 << 20);
    drop((block, pool));
    world.stream.synchronize().unwrap();
    assert_eq!(allocator.empty_cache().unwrap(), 2 << 20);
    assert_eq!(source.bytes().current, 0);
    let own = allocator.private_pool(Some(allocator.raw())).unwrap_err();
    assert!(matches!(own, Error::OwnSource { .. }), "{own}");
}

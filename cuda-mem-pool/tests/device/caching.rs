//! The caching allocator: blocks by address and by owner.

use cuda_mem_pool::segments::Options;
use cuda_mem_pool::{Error, MemoryResource};

use crate::common::World;
use crate::common::gate::Gate;
use crate::support::allocator;

#[test]
fn what_is_freed_is_given_again_without_a_driver_call() {
    let world = World::new();
    let (allocator, stream) = (allocator(&world), world.stream.clone());
    for bytes in [512, 100 << 10, 30 << 20] {
        let first = allocator.allocate_by_address(bytes, &stream).unwrap();
        // SAFETY: allocated above and not used.
        unsafe { allocator.free_by_address(first) }.unwrap();
        let calls = allocator.driver_calls();
        let again = allocator.allocate_by_address(bytes, &stream).unwrap();
        assert_eq!((again, allocator.driver_calls()), (first, calls));
        // SAFETY: as above.
        unsafe { allocator.free_by_address(again) }.unwrap();
        // SAFETY: refused, because no block begins there.
        let refused = unsafe { allocator.free_by_address(again) };
        assert!(matches!(refused, Err(Error::UnknownAddress { address }) if address == again));
        for stream in [&stream, &world.new_stream()] {
            let refused = allocator.record_stream(again, stream);
            assert!(matches!(refused, Err(Error::UnknownAddress { address }) if address == again));
        }
    }
    let statistics = allocator.statistics();
    assert_eq!(statistics.allocation.all.current, 0);
    assert_eq!(statistics.allocation.all.allocated, 6);
    assert_eq!(statistics.requested_bytes.large_pool.peak, 30 << 20);
}

#[test]
fn a_block_that_waited_for_another_stream_serves_the_next_of_its_size() {
    let world = World::new();
    let (allocator, stream) = (allocator(&world), world.stream.clone());
    for bytes in [512, 100 << 10, 30 << 20] {
        let user = world.new_stream();
        let allocate = || allocator.allocate_by_address(bytes, &stream).unwrap();
        let block = allocate();
        allocator.record_stream(block, &user).unwrap();
        let gate = Gate::before(&user);
        // SAFETY: allocated above, and used by the recorded stream alone.
        unsafe { allocator.free_by_address(block) }.unwrap();
        let meanwhile = allocate();
        assert_ne!(meanwhile, block, "the stream is not done");
        gate.open();
        user.synchronize().unwrap();
        // There is room for it elsewhere too.
        let next = allocate();
        assert_eq!(next, block);
        for block in [meanwhile, next] {
            // SAFETY: allocated above and not used.
            unsafe { allocator.free_by_address(block) }.unwrap();
        }
    }
}

#[test]
fn sizes_are_rounded_in_steps_between_powers_of_two() {
    let world = World::new();
    let allocator = allocator(&world);
    let mut blocks = Vec::new();
    let mut take = |bytes: usize| {
        let sums = || {
            let statistics = allocator.statistics();
            let (active, allocated) = (statistics.active_bytes.all, statistics.allocated_bytes.all);
            (active.allocated, allocated.current, statistics.requested_bytes.all.allocated)
        };
        let before = sums();
        blocks.push(allocator.allocate_by_address(bytes, &world.stream).unwrap());
        let after = sums();
        assert_eq!(after.2 - before.2, bytes as u64);
        assert_eq!(after.0 - before.0, after.1 - before.1);
        after.0 - before.0
    };
    let set = |options: Options| allocator.set_segment_options(options).unwrap();
    assert_eq!(take(21 << 20), 21 << 20);
    set(Options::default().with_roundup_power2_divisions([4; 16]));
    assert_eq!([take(21 << 20), take(700_000), take(1000)], [24 << 20, 768 << 10, 1024]);
    set(Options::default().with_garbage_collection_threshold(Some(0.5)));
    assert_eq!([take(21 << 20), take(1025)], [21 << 20, 1536], "a new setting is a whole one");
    let mut divisions = [8; 16];
    divisions[5..].fill(2);
    set(Options::default().with_roundup_power2_divisions(divisions));
    assert_eq!([take(21 << 20), take(33 << 20)], [22 << 20, 48 << 20]);
    set(Options::default().with_roundup_power2_divisions([1; 16]));
    assert_eq!(take(21 << 20), 21 << 20);
    let refused = allocator.allocate_by_address(usize::MAX, &world.stream);
    assert!(matches!(refused, Err(Error::TooLarge { bytes: usize::MAX })), "{refused:?}");
    for block in blocks {
        // SAFETY: allocated above and not used.
        unsafe { allocator.free_by_address(block) }.unwrap();
    }
    let statistics = allocator.statistics();
    assert_eq!((statistics.active_bytes.all.current, statistics.requested_bytes.all.current), (0, 0));
}

#[test]
fn owners_give_back_what_they_have() {
    let world = World::new();
    let (allocator, stream) = (allocator(&world), world.stream.clone());
    let blocks: Vec<_> = (1..40).map(|n| allocator.allocate(n * n * 10_000, &stream).unwrap()).collect();
    let mut ranges: Vec<(u64, u64)> =
        blocks.iter().map(|block| (block.address(), block.address() + block.len() as u64)).collect();
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0));
    drop(blocks);
    assert_eq!(allocator.statistics().active_bytes.all.current, 0);
}

#[test]
fn the_cache_goes_back_when_it_is_asked_to() {
    let world = World::new();
    let allocator = allocator(&world);
    drop(allocator.allocate(100 << 20, &world.stream).unwrap());
    let kept = allocator.allocate(1000, &world.stream).unwrap();
    assert!(allocator.reserved_bytes() >= 100 << 20);
    world.stream.synchronize().unwrap();
    assert!(allocator.empty_cache().unwrap() >= 80 << 20);
    assert!(allocator.reserved_bytes() <= 32 << 20);
    drop(kept);
    assert!(allocator.empty_cache().unwrap() > 0);
    assert_eq!(allocator.reserved_bytes(), 0);
}

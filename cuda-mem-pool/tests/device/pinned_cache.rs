//! `PinnedCachingAllocator`: what any driver shows.

use std::sync::Barrier;
use std::thread;

use cuda_mem_core::host::numa;
use cuda_mem_core::{DeviceBuffer, Error as CoreError, Transfer, scope};
use cuda_mem_pool::pinned_cache::PinnedCacheOptions;
use cuda_mem_pool::{Error, PinnedCachingAllocator};

use crate::common::gate::Gate;
use crate::common::{World, is_filled, pattern};

const MIB: usize = 1 << 20;

fn without_thread() -> PinnedCacheOptions {
    PinnedCacheOptions::default().with_returns_surplus(false)
}

fn allocator(world: &World) -> PinnedCachingAllocator {
    PinnedCachingAllocator::with_options(&world.context, without_thread())
}

#[test]
fn blocks_of_any_size_are_apart_aligned_and_copied_from_and_to() {
    let world = World::new();
    let allocator = PinnedCachingAllocator::new(&world.context);
    let sizes = [0, 1, 255, 256, 257, 3001, 70_001, MIB - 1, MIB, MIB + 1, 5_000_001];
    let mut blocks: Vec<_> = sizes.iter().map(|&len| allocator.allocate(len).unwrap()).collect();
    for (seed, block) in (0u8..).zip(&mut blocks) {
        assert_eq!(block.as_ptr().addr() % 256, 0);
        assert!(block.capacity() >= block.len() && block.capacity() <= block.len() + block.len() / 32 + 256);
        let bytes = pattern(block.len(), seed);
        block.as_mut_slice().unwrap().copy_from_slice(&bytes);
    }
    for (seed, block) in (0u8..).zip(blocks) {
        let len = block.len();
        assert_eq!(block.as_slice().unwrap(), pattern(len, seed));
        let device = DeviceBuffer::<u8>::uninit(&world.stream, len).unwrap();
        let block = Transfer::upload(&world.stream, block, &device.whole()).unwrap().wait().unwrap();
        let back = allocator.allocate(len).unwrap();
        let back = Transfer::download(&world.stream, &device.whole(), back).unwrap().wait().unwrap();
        assert_eq!(back.as_slice().unwrap(), block.as_slice().unwrap());
        let mut target = vec![0; len];
        scope(&world.context, |scope| {
            scope.upload_bytes(&world.stream, &block, 0..len, &device.whole())?;
            scope.download(&world.stream, &device.whole(), &mut target)
        })
        .unwrap();
        assert_eq!(target, pattern(len, seed));
    }
    assert_eq!(allocator.statistics().active_requests.current, 0);
}

#[test]
fn what_a_thread_frees_it_gets_again() {
    let world = World::new();
    let allocator = allocator(&world);
    for len in [100, 60_000, 3_000_001, 20 << 20] {
        let mut block = allocator.allocate(len).unwrap();
        block.as_mut_slice().unwrap().fill(9);
        let address = block.as_ptr().addr();
        drop(block);
        let again = allocator.allocate(len).unwrap();
        assert_eq!(again.as_ptr().addr(), address);
        assert!(is_filled(again.as_slice().unwrap(), 9));
    }
}

#[test]
fn what_one_thread_kept_serves_others_when_it_ends_or_when_much_is_needed() {
    let world = World::new();
    let allocator = allocator(&world);
    let (small, large) = thread::scope(|scope| {
        let kept = scope.spawn(|| {
            let (small, large) = (allocator.allocate(5000).unwrap(), allocator.allocate(8 * MIB).unwrap());
            (small.as_ptr().addr(), large.as_ptr().addr())
        });
        kept.join().unwrap()
    });
    let block = allocator.allocate(8 * MIB).unwrap();
    assert_eq!(block.as_ptr().addr(), large, "an ended thread kept its block");
    assert_eq!(allocator.allocate(5000).unwrap().as_ptr().addr(), small);
    drop(block);
    // Kept by this thread, which lives on.
    let address = thread::scope(|scope| {
        scope.spawn(|| allocator.allocate(8 * MIB).unwrap().as_ptr().addr()).join().unwrap()
    });
    assert_eq!(address, large, "pinned anew beside a kept block");
    assert_eq!(allocator.statistics().num_host_alloc, 2);
}

#[test]
fn a_block_that_a_stream_uses_is_handed_out_behind_it_and_holds_up_no_other() {
    let world = World::new();
    let allocator = allocator(&world);
    let (slow, quick) = (world.new_stream(), world.new_stream());
    let gate = Gate::before(&slow);
    let (first, second) = (allocator.allocate(2 * MIB).unwrap(), allocator.allocate(2 * MIB).unwrap());
    let (held_up, ready) = (first.as_ptr().addr(), second.as_ptr().addr());
    drop(first.on(&slow).unwrap());
    drop(second.on(&quick).unwrap());
    drop(first);
    drop(second);
    quick.synchronize().unwrap();
    let next = allocator.allocate(2 * MIB).unwrap();
    assert_eq!(next.as_ptr().addr(), ready, "a slow stream holds up the block of another");
    let other = allocator.allocate(2 * MIB).unwrap();
    assert_ne!(other.as_ptr().addr(), held_up, "handed out under a stream that uses it");
    gate.open();
    slow.synchronize().unwrap();
    assert_eq!(allocator.allocate(2 * MIB).unwrap().as_ptr().addr(), held_up);
    assert_eq!(allocator.statistics().allocations.current, 3);
}

#[test]
fn a_block_of_two_streams_waits_for_both() {
    let world = World::new();
    let allocator = allocator(&world);
    let (one, two) = (world.new_stream(), world.new_stream());
    for slow in [&one, &two] {
        let block = allocator.allocate(2 * MIB).unwrap();
        let address = block.as_ptr().addr();
        block.record_stream(&one).unwrap();
        block.record_stream(&two).unwrap();
        let gate = Gate::before(slow);
        drop(block);
        let other = allocator.allocate(2 * MIB).unwrap();
        assert_ne!(other.as_ptr().addr(), address);
        drop(other);
        gate.open();
        slow.synchronize().unwrap();
        allocator.empty_cache();
        assert_eq!(allocator.statistics().allocated_bytes.current, 0);
    }
}

#[test]
fn the_bytes_are_shown_after_the_uses() {
    let world = World::new();
    let allocator = allocator(&world);
    let device = DeviceBuffer::from_slice(&world.stream, &[3u8; 4096]).unwrap();
    let mut block = allocator.allocate(4096).unwrap();
    {
        let used = block.on(&world.stream).unwrap();
        let source = device.on(&world.stream).unwrap();
        // SAFETY: both live until the stream has run it, and nobody looks before.
        unsafe { cuda_mem_core::copy::memcpy_async(&world.stream, used.address(), source.address(), 4096) }
            .unwrap();
    }
    assert!(block.as_mut_slice().unwrap().iter().all(|&byte| byte == 3));
}

#[test]
fn figures_are_exact_and_start_anew_when_told() {
    let world = World::new();
    let allocator = allocator(&world);
    let one = allocator.allocate(1000).unwrap();
    let two = allocator.allocate(3 * MIB).unwrap();
    drop(one);
    let three = allocator.allocate(1000).unwrap();
    three.record_stream(&world.stream).unwrap();
    drop(three);
    let stats = allocator.statistics();
    let large = (3 * MIB) as u64;
    assert_eq!((stats.active_requests.current, stats.active_requests.peak), (1, 2));
    assert_eq!((stats.active_requests.allocated, stats.active_requests.freed), (3, 2));
    assert_eq!((stats.active_bytes.current, stats.active_bytes.peak), (large, large + 1024));
    assert_eq!((stats.active_bytes.allocated, stats.active_bytes.freed), (large + 2048, 2048));
    assert_eq!((stats.allocations.current, stats.num_host_alloc, stats.num_host_free), (2, 2, 0));
    assert_eq!(stats.allocated_bytes.current, large + (2 << 20));
    assert_eq!(stats.host_alloc_time.count, 2);
    assert!(stats.host_alloc_time.min <= stats.host_alloc_time.max);
    let table = stats.to_string();
    assert_eq!(table.lines().count(), 8, "{table}");
    assert!(table.contains("host_free_time      0 calls, 0 us in all, 0 to 0 us each"), "{table}");

    drop(two);
    allocator.reset_peak_statistics();
    allocator.reset_accumulated_statistics();
    let stats = allocator.statistics();
    assert_eq!((stats.active_requests.current, stats.active_requests.peak), (0, 0));
    assert_eq!((stats.active_requests.allocated, stats.active_requests.freed), (0, 0));
    assert_eq!((stats.num_host_alloc, stats.host_alloc_time.count), (0, 0));
    world.stream.synchronize().unwrap();
    allocator.empty_cache();
    let stats = allocator.statistics();
    assert_eq!((stats.allocations.current, stats.allocated_bytes.current), (0, 0));
    assert_eq!((stats.allocations.allocated, stats.allocations.freed, stats.num_host_free), (0, 2, 2));
    assert_eq!(stats.host_free_time.count, 2);
}

#[test]
fn the_cache_is_trimmed_and_bounded() {
    let world = World::new();
    let allocator = allocator(&world);
    let blocks: Vec<_> = [1, 2, 4, 8].iter().map(|&mib| allocator.allocate(mib * MIB).unwrap()).collect();
    drop(blocks);
    let held =
        |allocator: &PinnedCachingAllocator| allocator.statistics().allocated_bytes.current as usize / MIB;
    assert_eq!(held(&allocator), 15);
    allocator.trim_to(8 * MIB);
    assert_eq!(held(&allocator), 7, "largest first");
    allocator.empty_cache();
    assert_eq!(held(&allocator), 0);

    let options = without_thread().with_max_cached_bytes(5 * MIB);
    let bounded = PinnedCachingAllocator::with_options(&world.context, options);
    let blocks: Vec<_> = [1, 2, 4, 8].iter().map(|&mib| bounded.allocate(mib * MIB).unwrap()).collect();
    assert_eq!(held(&bounded), 15, "blocks in use are not bounded");
    drop(blocks);
    assert!(held(&bounded) <= 5, "{} MiB", held(&bounded));
}

#[test]
fn a_bound_of_nothing_keeps_nothing() {
    let world = World::new();
    let options = PinnedCacheOptions::default().with_max_cached_bytes(0);
    let allocator = PinnedCachingAllocator::with_options(&world.context, options);
    for len in [10, 70_000, 2 * MIB] {
        drop(allocator.allocate(len).unwrap());
        assert_eq!(allocator.statistics().allocated_bytes.current, 0);
    }
}

#[test]
fn threads_together_keep_less_than_the_bound() {
    let world = World::new();
    let options = without_thread().with_max_cached_bytes(8 * MIB);
    let allocator = PinnedCachingAllocator::with_options(&world.context, options);
    let all = Barrier::new(8);
    let held = thread::scope(|scope| {
        let threads = [(); 8].map(|()| {
            scope.spawn(|| {
                let blocks = [(); 4].map(|()| allocator.allocate(MIB).unwrap());
                all.wait();
                drop(blocks);
                all.wait();
                allocator.statistics().allocated_bytes.current
            })
        });
        threads.map(|thread| thread.join().unwrap())
    });
    assert!(held.iter().all(|&bytes| bytes <= (16 * MIB) as u64), "{held:?} bytes are kept");
}

#[test]
fn nodes_have_memory_of_their_own() {
    let world = World::new();
    let allocator = allocator(&world);
    let nodes = numa::nodes().unwrap();
    let missing = nodes.iter().max().unwrap() + 1;
    let refused = allocator.allocate_with(5000, None, Some(missing)).unwrap_err();
    assert!(
        matches!(&refused, Error::Core(CoreError::NoSuchNumaNode { node, .. }) if *node == missing),
        "{refused}"
    );
    let anywhere = allocator.allocate(5000).unwrap().as_ptr().addr();
    match allocator.allocate_with(5000, None, Some(nodes[0])) {
        Ok(block) => {
            assert_eq!(block.numa_id(), Some(nodes[0]));
            assert_ne!(block.as_ptr().addr(), anywhere);
            if let Ok(report) = numa::nodes_of_pages(block.as_ptr(), block.len()) {
                assert!(matches!(report.pages[..], [(node, _)] if node == nodes[0]), "{report:?}");
            }
            let address = block.as_ptr().addr();
            drop(block);
            assert_ne!(allocator.allocate(5000).unwrap().as_ptr().addr(), address, "reused across nodes");
            assert_eq!(allocator.allocate_with(5000, None, Some(nodes[0])).unwrap().as_ptr().addr(), address);
        }
        // Containers may forbid it.
        Err(Error::Core(CoreError::Io { call: "mbind", .. })) => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn too_much_is_an_error_that_says_what_there_is() {
    let world = World::new();
    let allocator = allocator(&world);
    let refused = allocator.allocate(usize::MAX).unwrap_err();
    assert!(matches!(refused, Error::TooLarge { bytes: usize::MAX }), "{refused}");
    let held = allocator.allocate(3 * MIB).unwrap();
    let refused = allocator.allocate(1 << 45).unwrap_err();
    assert!(
        matches!(refused, Error::OutOfMemory { requested, used, limit: 0, source: Some(_) }
            if requested == 1 << 45 && used == (3 * MIB) as u64),
        "{refused}"
    );
    drop(held);
    assert_eq!(allocator.allocate(100).unwrap().len(), 100);
}

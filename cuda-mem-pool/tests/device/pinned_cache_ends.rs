//! How `PinnedCachingAllocator`, its blocks and its threads end.

use std::cell::RefCell;
use std::thread;

use cuda_mem_core::Stream;
use cuda_mem_pool::pinned_cache::PinnedCacheOptions;
use cuda_mem_pool::{PinnedBlock, PinnedCachingAllocator};

use crate::common::World;

const MIB: usize = 1 << 20;

fn allocator(world: &World) -> PinnedCachingAllocator {
    let options = PinnedCacheOptions::default().with_returns_surplus(false);
    PinnedCachingAllocator::with_options(&world.context, options)
}

#[test]
fn blocks_and_allocators_end_in_any_order_and_thread() {
    let world = World::new();
    let allocator = allocator(&world);
    let mut block = allocator.allocate(10_000).unwrap();
    let large = allocator.allocate(2 * MIB).unwrap();
    let kept = allocator.allocate(500).unwrap();
    drop(kept);
    let clone = allocator.clone();
    drop(allocator);
    assert_eq!(clone.statistics().active_requests.current, 2);
    large.record_stream(&world.stream).unwrap();
    drop(clone);
    block.as_mut_slice().unwrap().fill(1);
    thread::spawn(move || {
        assert!(block.as_slice().unwrap().iter().all(|&byte| byte == 1));
        drop(large);
        drop(block);
    })
    .join()
    .unwrap();
}

/// Uses the allocator when its thread ends.
struct AtTheEnd(RefCell<Option<(PinnedCachingAllocator, PinnedBlock, Stream)>>);

impl Drop for AtTheEnd {
    fn drop(&mut self) {
        let Some((allocator, mut block, stream)) = self.0.take() else { return };
        block.as_mut_slice().unwrap().fill(1);
        drop(block);
        let again = allocator.allocate(5000).unwrap();
        again.record_stream(&stream).unwrap();
        drop(again);
        drop(allocator.allocate(5000).unwrap());
    }
}

thread_local! {
    static AT_THE_END: AtTheEnd = const { AtTheEnd(RefCell::new(None)) };
}

#[test]
fn values_of_a_thread_may_use_it_when_the_thread_ends() {
    let world = World::new();
    let allocator = allocator(&world);
    // The thread's own cache goes before such a value, or after it.
    for cache_first in [false, true] {
        let handle = allocator.clone();
        // A thread's default stream would be another one there.
        let stream = world.new_stream();
        thread::spawn(move || {
            if cache_first {
                drop(handle.allocate(5000).unwrap());
            }
            AT_THE_END.with(|value| {
                let block = handle.allocate(5000).unwrap();
                *value.0.borrow_mut() = Some((handle.clone(), block, stream));
            });
            drop(handle.allocate(5000).unwrap());
        })
        .join()
        .unwrap();
    }
    assert_eq!(allocator.statistics().active_requests.current, 0);
    world.stream.synchronize().unwrap();
    allocator.empty_cache();
    assert_eq!(allocator.statistics().allocated_bytes.current, 0, "a thread that ended keeps something");
}

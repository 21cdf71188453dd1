//! Blocks at addresses that the caller names.

use cuda_mem_core::{Context, Stream};
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::history::HistoryOptions;
use cuda_mem_pool::segments::Filter;
use cuda_mem_pool::snapshot::Action;
use cuda_mem_pool::{Error, MempoolId, Result};
use cuda_mem_sim::Sim;

use crate::common::gate::Gate;
use crate::rig::on;

const MIB: usize = 1 << 20;

struct World {
    allocator: CachingAllocator,
    stream: Stream,
}

impl World {
    fn new(context: &Context) -> Self {
        let allocator = CachingAllocator::new(context, &CachingOptions::default()).unwrap();
        Self { allocator, stream: Stream::new(context).unwrap() }
    }

    fn take(&self, bytes: usize) -> u64 {
        self.allocator.allocate_by_address(bytes, &self.stream).unwrap()
    }

    fn free(&self, address: u64) {
        // SAFETY: nothing uses it.
        unsafe { self.allocator.free_by_address(address) }.unwrap();
    }

    /// No call of the driver is made for it.
    fn at(&self, bytes: usize, address: u64) -> Result<u64> {
        let allocator = self.allocator.of_stream(&self.stream)?;
        let before = self.allocator.driver_calls();
        let found = allocator.allocate_at(bytes, address);
        assert_eq!(self.allocator.driver_calls(), before, "{bytes} bytes at {address:#x}");
        found
    }

    fn expect_at(&self, bytes: usize, address: u64) {
        assert_eq!(self.at(bytes, address).unwrap(), address);
    }

    fn expect_none(&self, bytes: usize, address: u64) {
        let found = self.at(bytes, address);
        assert!(matches!(found, Err(Error::UnknownAddress { address: at }) if at == address), "{found:?}");
    }

    fn allocated(&self) -> (i64, i64, i64) {
        let statistics = self.allocator.statistics();
        let [allocated, requested] =
            [statistics.allocated_bytes, statistics.requested_bytes].map(|bytes| bytes.all.current as i64);
        assert_eq!(statistics.active_bytes.all.current as i64, allocated);
        (statistics.allocation.all.current as i64, allocated, requested)
    }
}

fn in_world(test: impl FnOnce(&Context, World)) {
    on(Sim::builder().memory(1 << 30), |_, context| test(context, World::new(context)));
}

#[test]
fn a_large_block_is_cut_where_it_is_asked_for() {
    in_world(|_, world| {
        let [used, block] = [4, 100].map(|mib| world.take(mib * MIB));
        world.expect_none(4 * MIB, used);
        world.free(block);
        world.expect_at(100 * MIB, block);
        world.free(block);
        let at = |mib: usize| block + (mib * MIB) as u64;
        world.expect_at(10 * MIB, block);
        world.expect_at(5 * MIB, at(20));
        world.expect_none(15 * MIB, at(10));
        world.expect_none(2 * MIB, at(8));
        world.expect_none(2 * MIB, at(40) + 100);
        world.expect_at(2 * MIB + 5, at(50));
        world.expect_none(usize::MAX, at(60));
        world.expect_none(600 * MIB, at(60));
        for address in [0, 0x10_0000_0000, at(3 << 10), u64::MAX - 511] {
            world.expect_none(2 * MIB, address);
        }
        // What it left free before, between and behind serves others.
        let snapshot = world.allocator.snapshot();
        let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
        let in_use = blocks.filter(|block| block.requested_size > 0).count();
        assert_eq!(in_use, 4);
        world.expect_at(10 * MIB, at(10));
        [block, at(10), at(20), at(50)].into_iter().for_each(|address| world.free(address));
        world.expect_at(100 * MIB, block);
    });
}

#[test]
fn a_small_block_comes_to_where_such_were() {
    in_world(|_, world| {
        for bytes in [1000, 100_000] {
            let [kept, first, second] = [(); 3].map(|()| world.take(bytes));
            let large = world.take(8 * MIB);
            [first, second, large].into_iter().for_each(|address| world.free(address));
            world.expect_none(bytes, kept);
            // A page that is wholly free takes small blocks from then on.
            world.expect_at(bytes, large);
            world.free(large);
            world.expect_at(bytes, second);
            world.expect_none(bytes, second - 512);
            world.expect_at(bytes - 512, first);
            [kept, first, second].into_iter().for_each(|address| world.free(address));
            // All of the slab joins, so that any address will do.
            world.expect_at(bytes, first + 512);
            world.free(first + 512);
            // SAFETY: nothing uses it.
            assert!(unsafe { world.allocator.free_by_address(first) }.is_err());
        }
    });
}

/// An empty slab goes back when the next one is empty: not the one that is asked for.
#[test]
fn a_small_block_comes_to_any_of_several_slabs() {
    in_world(|_, world| {
        let blocks: Vec<u64> = (0..8).map(|_| world.take(MIB)).collect();
        blocks.iter().for_each(|block| world.free(*block));
        for block in &blocks[3..5] {
            world.expect_at(MIB, *block);
            world.free(*block);
        }
    });
}

#[test]
fn memory_of_others_is_refused() {
    in_world(|context, world| {
        let other = World { allocator: world.allocator.clone(), stream: Stream::new(context).unwrap() };
        let block = world.take(8 * MIB);
        world.free(block);
        other.expect_none(8 * MIB, block);
        let id = MempoolId::for_user();
        world.allocator.begin_allocate_to_pool(id, Filter::new(|_| true)).unwrap();
        world.expect_none(8 * MIB, block);
        world.allocator.end_allocate_to_pool(id).unwrap();
        world.expect_at(8 * MIB, block);
        world.allocator.release_pool(id).unwrap();
    });
}

#[test]
fn memory_that_another_stream_uses_is_refused_until_that_is_done() {
    in_world(|context, world| {
        let (other, block) = (Stream::new(context).unwrap(), world.take(8 * MIB));
        let gate = Gate::before(&other);
        world.allocator.record_stream(block, &other).unwrap();
        world.free(block);
        let allocator = world.allocator.of_stream(&world.stream).unwrap();
        assert!(matches!(allocator.allocate_at(3 * MIB, block), Err(Error::UnknownAddress { .. })));
        gate.open();
        other.synchronize().unwrap();
        assert_eq!(allocator.allocate_at(3 * MIB, block).unwrap(), block);
    });
}

#[test]
fn it_counts_and_is_told_as_any_other() {
    in_world(|_, world| {
        let block = world.take(8 * MIB);
        world.free(block);
        world.allocator.history().start(&HistoryOptions::default());
        let (count, allocated, requested) = world.allocated();
        world.expect_at(2 * MIB + 5, block + 512);
        world.expect_none(2 * MIB, block);
        let now = (count + 1, allocated + (2 << 20) + 512, requested + (2 << 20) + 5);
        assert_eq!(world.allocated(), now);
        world.free(block + 512);
        assert_eq!(world.allocated(), (count, allocated, requested));
        let entries = world.allocator.history().entries();
        let told: Vec<_> = entries.iter().map(|entry| (entry.action, entry.address, entry.size)).collect();
        let size = (2 << 20) + 5;
        let actions = [Action::Alloc, Action::FreeRequested, Action::FreeCompleted];
        assert_eq!(told, actions.map(|action| (action, block + 512, size)));
    });
}

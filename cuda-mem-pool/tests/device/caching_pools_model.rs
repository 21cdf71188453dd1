//! Routes, uses and blocks of `CachingAllocator`'s private pools, beside a plain model.

use std::collections::{BTreeMap, HashSet};

use cuda_mem_core::Stream;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::segments::Filter;
use cuda_mem_pool::{Error, MempoolId};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::common::World;

const POOLS: [MempoolId; 3] = [MempoolId(0, 1001), MempoolId(0, 1002), MempoolId(1001, 0)];
const STREAMS: usize = 2;

#[derive(Debug, Clone)]
enum Op {
    Create(usize),
    /// The streams that are accepted, as bits.
    Begin(usize, u8),
    End(usize),
    Release(usize),
    Allocate {
        stream: usize,
        bytes: usize,
    },
    Free {
        which: Index,
        elsewhere: bool,
    },
    Record {
        which: Index,
        stream: usize,
    },
    Empty(usize),
    EmptyAll,
}

fn op() -> impl Strategy<Value = Op> {
    let pool = 0..POOLS.len();
    let bytes = prop_oneof![1..5000usize, 1..2_000_000usize, Just(30 << 20)];
    prop_oneof![
        1 => pool.clone().prop_map(Op::Create),
        3 => (pool.clone(), 0..4u8).prop_map(|(pool, streams)| Op::Begin(pool, streams)),
        2 => pool.clone().prop_map(Op::End),
        2 => pool.clone().prop_map(Op::Release),
        8 => (0..STREAMS, bytes).prop_map(|(stream, bytes)| Op::Allocate { stream, bytes }),
        6 => (any::<Index>(), any::<bool>()).prop_map(|(which, elsewhere)| Op::Free { which, elsewhere }),
        1 => (any::<Index>(), 0..STREAMS).prop_map(|(which, stream)| Op::Record { which, stream }),
        1 => pool.prop_map(Op::Empty),
        1 => Just(Op::EmptyAll),
    ]
}

#[derive(Debug, Default)]
struct Model {
    uses: BTreeMap<MempoolId, u64>,
    routes: Vec<(MempoolId, u8)>,
    blocks: Vec<Block>,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    address: u64,
    bytes: usize,
    pool: Option<MempoolId>,
}

impl Model {
    fn is_routed(&self, id: MempoolId) -> bool {
        self.routes.iter().any(|&(routed, _)| routed == id)
    }

    fn in_use(&self, id: MempoolId) -> bool {
        self.uses.get(&id).is_some_and(|&uses| uses > 0)
    }

    fn live(&self, id: MempoolId) -> HashSet<u64> {
        self.blocks.iter().filter(|block| block.pool == Some(id)).map(|block| block.address).collect()
    }
}

struct Bench<'w> {
    world: &'w World,
    streams: Vec<Stream>,
    allocator: CachingAllocator,
    model: Model,
}

impl Bench<'_> {
    fn step(&mut self, op: &Op) {
        let (allocator, model) = (&self.allocator, &mut self.model);
        match *op {
            // A released pool may or may not be there yet, by what is in it: whether it is made anew the allocator says.
            Op::Create(pool) => {
                let made = allocator.create_or_incref_pool(POOLS[pool], None).is_ok();
                assert!(made || !model.in_use(POOLS[pool]) && model.uses.contains_key(&POOLS[pool]));
                if made {
                    *model.uses.entry(POOLS[pool]).or_default() += 1;
                }
            }
            Op::Begin(pool, streams) => {
                let id = POOLS[pool];
                let accepted: Vec<u64> = (0..STREAMS)
                    .filter(|stream| streams >> stream & 1 != 0)
                    .map(|stream| self.streams[stream].id().as_raw())
                    .collect();
                let filter = Filter::new(move |stream| accepted.contains(&stream));
                let begun = allocator.begin_allocate_to_pool(id, filter).is_ok();
                let possible = !model.is_routed(id);
                assert!(!begun || possible);
                assert!(begun || !possible || !model.in_use(id) && model.uses.contains_key(&id));
                if begun {
                    *model.uses.entry(id).or_default() += 1;
                    model.routes.push((id, streams));
                }
            }
            Op::End(pool) => {
                let id = POOLS[pool];
                assert_eq!(allocator.end_allocate_to_pool(id).is_ok(), model.is_routed(id));
                model.routes.retain(|&(routed, _)| routed != id);
            }
            Op::Release(pool) => {
                let id = POOLS[pool];
                let last = model.uses.get(&id) == Some(&1);
                let possible = model.in_use(id);
                assert_eq!(allocator.release_pool(id).is_ok(), possible);
                if possible {
                    *model.uses.entry(id).or_default() -= 1;
                    model.routes.retain(|&(routed, _)| !last || routed != id);
                }
            }
            Op::Allocate { stream, bytes } => {
                let route = model.routes.iter().rev().find(|(_, streams)| streams >> stream & 1 != 0);
                let pool = route.map(|&(id, _)| id);
                let address = allocator.allocate_by_address(bytes, &self.streams[stream]).unwrap();
                assert!(address.is_multiple_of(512));
                let end = address + bytes as u64;
                let overlaps =
                    |other: &&Block| other.address < end && address < other.address + other.bytes as u64;
                assert_eq!(model.blocks.iter().find(overlaps).map(|other| other.address), None);
                model.blocks.push(Block { address, bytes, pool });
            }
            Op::Free { which, elsewhere } => {
                if model.blocks.is_empty() {
                    return;
                }
                let block = model.blocks.swap_remove(which.index(model.blocks.len()));
                if elsewhere {
                    allocator.record_stream(block.address, &self.world.stream).unwrap();
                }
                // SAFETY: allocated above, used by nobody, and freed once.
                unsafe { allocator.free_by_address(block.address) }.unwrap();
                if block.pool.is_some() {
                    // SAFETY: refused, as no block begins there until the next is handed out.
                    let again = unsafe { allocator.free_by_address(block.address) };
                    assert!(matches!(again, Err(Error::UnknownAddress { .. })));
                }
            }
            Op::Record { which, stream } => {
                if let Some(block) = (!model.blocks.is_empty()).then(|| which.get(&model.blocks)) {
                    allocator.record_stream(block.address, &self.streams[stream]).unwrap();
                }
            }
            Op::Empty(pool) => drop(allocator.empty_pool_cache(POOLS[pool]).unwrap()),
            Op::EmptyAll => drop(allocator.empty_cache().unwrap()),
        }
    }

    fn check(&self) {
        let (allocator, model) = (&self.allocator, &self.model);
        for id in POOLS {
            assert_eq!(allocator.pool_use_count(id), model.uses.get(&id).copied().unwrap_or(0));
            match allocator.check_pool_live_allocations(id, &model.live(id)) {
                Ok(same) => assert!(same, "{id}"),
                Err(_) => assert!(!model.in_use(id) && model.live(id).is_empty(), "{id} is gone"),
            }
        }
        for block in &model.blocks {
            let (start, bytes) = allocator.base_allocation(block.address).unwrap();
            assert!(start <= block.address);
            assert!(block.address + block.bytes as u64 <= start + bytes as u64);
        }
        let statistics = allocator.statistics();
        let requested: usize = model.blocks.iter().map(|block| block.bytes).sum();
        assert_eq!(statistics.allocation.all.current, model.blocks.len() as u64);
        assert!(statistics.requested_bytes.all.current >= requested as u64, "what waits is requested too");
        assert!(statistics.active_bytes.all.current <= allocator.reserved_bytes() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn pools_are_as_the_model_says(ops in prop::collection::vec(op(), 1..120)) {
        let world = World::new();
        let streams = (0..STREAMS).map(|_| world.new_stream()).collect();
        let allocator = CachingAllocator::new(&world.context, &CachingOptions::default()).unwrap();
        let mut bench = Bench { world: &world, streams, allocator, model: Model::default() };
        for op in &ops {
            bench.step(op);
            bench.check();
        }
        // At the end nothing is left, whatever the order was.
        for id in POOLS {
            let _ = bench.allocator.end_allocate_to_pool(id);
            for _ in 0..bench.allocator.pool_use_count(id) {
                bench.allocator.release_pool(id).unwrap();
            }
        }
        for block in bench.model.blocks.drain(..) {
            // SAFETY: as above.
            unsafe { bench.allocator.free_by_address(block.address) }.unwrap();
        }
        bench.streams.iter().chain([&world.stream]).for_each(|stream| stream.synchronize().unwrap());
        // Twice: what waited for other streams is free after the first.
        let _ = bench.allocator.empty_cache().unwrap();
        let _ = bench.allocator.empty_cache().unwrap();
        let statistics = bench.allocator.statistics();
        prop_assert_eq!((statistics.active.all.current, statistics.requested_bytes.all.current), (0, 0));
        prop_assert_eq!(bench.allocator.reserved_bytes(), 0);
    }
}

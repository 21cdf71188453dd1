//! Any sequence of calls on private pools, against counts kept beside them.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use proptest::sample::Index;

use super::support::{MIB, reserved};
use crate::engine::segments::{Allocation, Filter, Options, PoolError, PoolTable};
use crate::mempool_id::MempoolId;

#[derive(Debug, Clone)]
enum Step {
    Create(u64, Option<u8>),
    /// For this stream alone, or for all.
    Begin(u64, Option<u64>),
    End(u64),
    Release(u64),
    Allocate(u64, u64),
    OnOom(u64, u64),
    SetOnOom(u64, bool),
    Free(Index),
    /// Of one, or of all; the source may refuse.
    Take(u64, bool),
}

#[derive(Debug, Default)]
struct Pool {
    uses: u64,
    source: Option<u8>,
    on_oom: bool,
}

struct Machine {
    pools: PoolTable<u8>,
    model: BTreeMap<u64, Pool>,
    routes: Vec<(u64, Option<u64>)>,
    /// By address: pool, source, bytes.
    segments: HashMap<u64, (u64, Option<u8>, u64)>,
    blocks: Vec<(u64, u64)>,
    next: u64,
}

/// Number 0 stands for no pool.
fn id(number: u64) -> MempoolId {
    MempoolId(0, number)
}

impl Machine {
    fn new() -> Self {
        Self {
            pools: PoolTable::new(Options::default()),
            model: BTreeMap::new(),
            routes: Vec::new(),
            segments: HashMap::new(),
            blocks: Vec::new(),
            next: 1 << 40,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Create(pool, source) => {
                let expected = self.create(pool, source);
                assert_eq!(self.pools.create_or_incref(id(pool), source), expected);
            }
            Step::Begin(pool, stream) => {
                let routed = self.routes.iter().any(|&(routed, _)| routed == pool);
                let error = PoolError::AlreadyRouted { id: id(pool) };
                let expected = if routed { Err(error) } else { self.create(pool, None) };
                let filter = stream.map_or(Filter::new(|_| true), Filter::stream);
                assert_eq!(self.pools.begin_allocate(id(pool), filter), expected);
                if expected.is_ok() {
                    self.routes.push((pool, stream));
                }
            }
            Step::End(pool) => {
                let before = self.routes.len();
                self.routes.retain(|&(routed, _)| routed != pool);
                let ended = self.pools.end_allocate(id(pool), None).is_ok();
                assert_eq!(ended, self.routes.len() < before);
            }
            Step::Release(pool) => {
                let routed = self.routes.iter().any(|&(routed, _)| routed == pool);
                let uses = self.model.get(&pool).map(|pool| pool.uses);
                let id = id(pool);
                let expected = match uses {
                    None => Err(PoolError::Unknown { id }),
                    Some(0) => Err(PoolError::Released { id }),
                    Some(uses) => Ok(uses == 1 && routed),
                };
                assert_eq!(self.pools.release_pool(id).map(|ended| ended.is_some()), expected);
                if let Ok(ends) = expected {
                    self.model.get_mut(&pool).unwrap().uses -= 1;
                    self.routes.retain(|&(routed, _)| !ends || routed != pool);
                }
            }
            Step::Allocate(stream, bytes) => self.allocate(stream, bytes),
            Step::OnOom(stream, bytes) => {
                let held = self.reserved();
                if let Some((MempoolId(_, pool), block)) = self.pools.allocate_on_oom(stream, bytes) {
                    assert!(self.model[&pool].on_oom && self.model[&pool].uses > 0);
                    self.blocks.push((pool, block.address));
                }
                assert_eq!(self.reserved(), held, "grew");
            }
            Step::SetOnOom(pool, on_oom) => {
                let done = self.pools.in_use(id(pool)).map(|pool| pool.use_on_oom = on_oom).is_ok();
                let known = self.model.get_mut(&pool).filter(|pool| pool.uses > 0);
                assert_eq!(done, known.is_some());
                known.into_iter().for_each(|pool| pool.on_oom = on_oom);
            }
            Step::Free(index) if !self.blocks.is_empty() => {
                let (pool, block) = self.blocks.swap_remove(index.index(self.blocks.len()));
                self.pools.get_mut(id(pool)).unwrap().heap.free(block).unwrap();
            }
            Step::Free(_) => {}
            Step::Take(pool, refuse) => self.take(pool, refuse),
        }
    }

    fn create(&mut self, pool: u64, source: Option<u8>) -> Result<(), PoolError> {
        let id = id(pool);
        match self.model.get_mut(&pool) {
            _ if pool == 0 => return Err(PoolError::NoPool),
            Some(Pool { uses: 0, .. }) => return Err(PoolError::Released { id }),
            Some(_) if source.is_some() => return Err(PoolError::SourceIsSet { id }),
            Some(pool) => pool.uses += 1,
            None => drop(self.model.insert(pool, Pool { uses: 1, source, on_oom: false })),
        }
        Ok(())
    }

    fn allocate(&mut self, stream: u64, bytes: u64) {
        let mut innermost = self.routes.iter().rev();
        let routed =
            innermost.find(|(_, only)| only.is_none_or(|only| only == stream)).map(|&(pool, _)| pool);
        assert_eq!(self.pools.routes().find(stream), routed.map(id));
        let Some(pool) = routed else { return };
        let private = self.pools.get_mut(id(pool)).unwrap();
        let source = private.source;
        let block = match private.heap.allocate(stream, bytes).unwrap() {
            Allocation::Hit(block) => block,
            Allocation::Miss(wanted) => {
                self.segments.insert(self.next, (pool, source, wanted.bytes));
                let block = private.heap.add_segment(&wanted, self.next).unwrap();
                self.next += wanted.bytes;
                block
            }
        };
        assert!(self.segments.range_of(block.address).is_some_and(|of| of == pool), "another pool's memory");
        self.blocks.push((pool, block.address));
    }

    fn take(&mut self, pool: u64, refuse: bool) {
        for taken in self.pools.take_cached(id(pool)).0 {
            let address = taken.segment.address;
            let (of, _, bytes) = self.segments[&address];
            assert_eq!((taken.id, taken.segment.bytes), (id(of), bytes));
            assert!(pool == 0 || pool == of);
            assert_eq!(self.model[&of].uses, 0, "a pool that is in use");
            if refuse {
                self.pools.put_back(&taken).unwrap();
            } else {
                self.pools.given_back(&taken);
                self.segments.remove(&address);
            }
        }
        let held: Vec<u64> = self.segments.values().map(|&(of, ..)| of).collect();
        self.model.retain(|of, model| {
            let asked = pool == 0 || pool == *of;
            !(asked && model.uses == 0) || held.contains(of)
        });
    }

    fn reserved(&self) -> u64 {
        self.pools.iter().map(|(_, pool)| reserved(&pool.heap)).sum()
    }

    fn check(&self) {
        let here: Vec<_> = self.pools.iter().map(|(id, pool)| (id.1, pool.uses)).collect();
        let expected: Vec<_> = self.model.iter().map(|(&number, pool)| (number, Some(pool.uses))).collect();
        assert_eq!(here, expected);
        assert_eq!(self.reserved(), self.segments.values().map(|&(.., bytes)| bytes).sum::<u64>());
        for (MempoolId(_, number), pool) in self.pools.iter() {
            assert_eq!(pool.source, self.model[&number].source);
            let mine = self.blocks.iter().filter(|&&(of, _)| of == number);
            let addresses = mine.map(|(_, block)| *block).collect();
            assert!(pool.heap.check_live_allocations(&addresses));
        }
    }
}

/// The pool of the segment that an address is in.
trait RangeOf {
    fn range_of(&self, address: u64) -> Option<u64>;
}

impl RangeOf for HashMap<u64, (u64, Option<u8>, u64)> {
    fn range_of(&self, address: u64) -> Option<u64> {
        let mut inside = self.iter().filter(|&(&at, &(.., bytes))| (at..at + bytes).contains(&address));
        inside.next().map(|(_, &(of, ..))| of)
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pool = || 0u64..4;
    let bytes = || prop_oneof![1u64..4000, MIB..(15 * MIB)];
    let step = prop_oneof![
        2 => (pool(), prop::option::of(0u8..3)).prop_map(|(pool, source)| Step::Create(pool, source)),
        3 => (pool(), prop::option::of(0u64..3)).prop_map(|(pool, stream)| Step::Begin(pool, stream)),
        2 => pool().prop_map(Step::End),
        3 => pool().prop_map(Step::Release),
        9 => (0u64..3, bytes()).prop_map(|(stream, bytes)| Step::Allocate(stream, bytes)),
        1 => (0u64..3, bytes()).prop_map(|(stream, bytes)| Step::OnOom(stream, bytes)),
        1 => (pool(), any::<bool>()).prop_map(|(pool, on_oom)| Step::SetOnOom(pool, on_oom)),
        6 => any::<Index>().prop_map(Step::Free),
        2 => (pool(), any::<bool>()).prop_map(|(pool, refuse)| Step::Take(pool, refuse)),
    ];
    prop::collection::vec(step, 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn private_pools_keep_their_books(steps in steps()) {
        let mut machine = Machine::new();
        for step in &steps {
            machine.step(step);
            machine.check();
        }
        // In any order: uses end, blocks are freed, memory goes back.
        let numbers: Vec<u64> = machine.model.keys().rev().copied().collect();
        for pool in numbers {
            machine.step(&Step::End(pool));
            while machine.pools.get(id(pool)).is_ok_and(|pool| !pool.is_freeable()) {
                machine.step(&Step::Release(pool));
            }
        }
        machine.step(&Step::Take(0, false));
        while let Some((pool, block)) = machine.blocks.pop() {
            machine.pools.get_mut(id(pool)).unwrap().heap.free(block).unwrap();
        }
        machine.step(&Step::Take(0, false));
        prop_assert!(machine.segments.is_empty(), "leaked {:?}", machine.segments);
        prop_assert_eq!(machine.pools.iter().count(), 0);
    }
}

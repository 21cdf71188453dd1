//! `PinnedCachingAllocator` against a model that knows who may have which bytes.

use cuda_mem_core::{Driver, Stream};
use cuda_mem_pool::pinned_cache::PinnedCacheOptions;
use cuda_mem_pool::{MempoolId, PinnedBlock, PinnedCachingAllocator};
use cuda_mem_sim::Sim;
use proptest::prelude::*;

use crate::common::gate::Gate;
use crate::common::is_filled;
use crate::rig::expect_clean;

const POOLS: u64 = 2;

fn id_of(pool: u64) -> MempoolId {
    MempoolId(0, pool + 1)
}

#[derive(Debug, Clone)]
enum Step {
    /// From the default pool, or a private one.
    Allocate(usize, Option<u64>),
    Free(prop::sample::Index),
    /// Freed while one of the streams, held up or not, uses it.
    FreeInUse(prop::sample::Index, bool),
    /// Freed by another thread.
    FreeElsewhere(prop::sample::Index),
    /// Lets the held-up stream go.
    Open,
    Trim(usize),
    /// The pool is begun anew by its next allocation.
    Release(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![1usize..3000, 1usize..100_000, 1usize..(4 << 20)];
    let pool = prop_oneof![3 => Just(None), 1 => (0..POOLS).prop_map(Some)];
    let index = any::<prop::sample::Index>;
    let step = prop_oneof![
        8 => (size.clone(), pool).prop_map(|(size, pool)| Step::Allocate(size, pool)),
        4 => index().prop_map(Step::Free),
        2 => (index(), any::<bool>()).prop_map(|(index, slow)| Step::FreeInUse(index, slow)),
        1 => index().prop_map(Step::FreeElsewhere),
        1 => Just(Step::Open),
        1 => prop_oneof![Just(0), size].prop_map(Step::Trim),
        1 => (0..POOLS).prop_map(Step::Release),
    ];
    prop::collection::vec(step, 1..80)
}

/// A block and the bytes that nobody else may have.
struct Live {
    block: PinnedBlock,
    pool: Option<u64>,
    mark: u8,
}

fn span(block: &PinnedBlock) -> (usize, usize) {
    (block.as_ptr().addr(), block.as_ptr().addr() + block.capacity())
}

struct Model {
    allocator: PinnedCachingAllocator,
    quick: Stream,
    slow: Stream,
    gate: Option<Gate>,
    live: Vec<Live>,
    /// What was freed while the held-up stream uses it, by pool.
    waiting: Vec<(usize, usize)>,
    begun: [bool; POOLS as usize],
    allocations: u64,
    peak: u64,
    mark: u8,
}

impl Model {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Allocate(size, pool) => self.allocate(*size, *pool),
            Step::Release(pool) => {
                self.open();
                if std::mem::take(&mut self.begun[*pool as usize]) {
                    self.allocator.release_pool(id_of(*pool)).unwrap();
                }
            }
            Step::Trim(bytes) => {
                // The driver unpins nothing before all work of the context is done.
                self.open();
                self.allocator.trim_to(*bytes);
            }
            Step::Open => self.open(),
            Step::Free(index) => drop(self.take(index)),
            Step::FreeElsewhere(index) => {
                let live = self.take(index);
                std::thread::spawn(move || drop(live)).join().unwrap();
            }
            Step::FreeInUse(index, slow) => {
                let Some(live) = self.take(index).filter(|live| live.pool.is_none()) else { return };
                if *slow && self.gate.is_none() {
                    self.gate = Some(Gate::before(&self.slow));
                }
                if *slow {
                    self.waiting.push(span(&live.block));
                }
                let stream = if *slow { &self.slow } else { &self.quick };
                live.block.record_stream(stream).unwrap();
            }
        }
        self.check();
    }

    fn allocate(&mut self, size: usize, pool: Option<u64>) {
        let id = pool.map(id_of);
        if let (Some(id), Some(pool)) = (id, pool) {
            self.allocator.begin_allocate_to_pool(id, |_| true).unwrap();
            // One use a pool, whatever is begun again.
            if std::mem::replace(&mut self.begun[pool as usize], true) {
                self.allocator.release_pool(id).unwrap();
            }
        }
        let mut block = self.allocator.allocate(size).unwrap();
        if let Some(id) = id {
            self.allocator.end_allocate_to_pool(id).unwrap();
        }
        let (start, end) = span(&block);
        assert_eq!(start % 256, 0);
        assert_eq!(block.len(), size);
        let others = self.live.iter().map(|live| span(&live.block)).chain(self.waiting.iter().copied());
        for (from, to) in others {
            assert!(end <= from || to <= start, "bytes of somebody else");
        }
        self.mark = self.mark.wrapping_add(1);
        block.as_mut_slice().unwrap().fill(self.mark);
        self.live.push(Live { block, pool, mark: self.mark });
        self.allocations += 1;
        self.peak = self.peak.max(self.live.len() as u64);
    }

    fn take(&mut self, index: &prop::sample::Index) -> Option<Live> {
        if self.live.is_empty() {
            return None;
        }
        let live = self.live.swap_remove(index.index(self.live.len()));
        if live.pool.is_some() {
            // Of a pool that was released it is unpinned at once.
            self.open();
        }
        assert!(is_filled(live.block.as_slice().unwrap(), live.mark), "somebody else wrote");
        Some(live)
    }

    fn open(&mut self) {
        if let Some(gate) = self.gate.take() {
            gate.open();
            self.slow.synchronize().unwrap();
            self.waiting.clear();
        }
    }

    fn check(&self) {
        let stats = self.allocator.statistics();
        let bytes: u64 = self.live.iter().map(|live| live.block.capacity() as u64).sum();
        assert_eq!(
            (stats.active_requests.current, stats.active_bytes.current),
            (self.live.len() as u64, bytes)
        );
        assert_eq!(
            (stats.active_requests.allocated, stats.active_requests.peak),
            (self.allocations, self.peak)
        );
        assert!(stats.allocated_bytes.current >= bytes);
        for live in &self.live {
            assert_eq!(live.block.pool(), live.pool.map(id_of));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_allocator_is_its_model(steps in steps()) {
        let sim = Sim::builder().workers(2).build();
        let context = Driver::over(sim.table()).unwrap().device(0).unwrap().primary_context().unwrap();
        let options = PinnedCacheOptions::default().with_returns_surplus(false);
        let mut model = Model {
            allocator: PinnedCachingAllocator::with_options(&context, options),
            quick: Stream::new(&context).unwrap(),
            slow: Stream::new(&context).unwrap(),
            gate: None,
            live: Vec::new(),
            waiting: Vec::new(),
            begun: [false; POOLS as usize],
            allocations: 0,
            peak: 0,
            mark: 0,
        };
        steps.iter().for_each(|step| model.step(step));
        // In the end all goes back, private pools with their last use.
        model.open();
        model.quick.synchronize().unwrap();
        model.live.clear();
        (0..POOLS).for_each(|pool| model.step(&Step::Release(pool)));
        model.allocator.empty_cache();
        prop_assert_eq!(model.allocator.statistics().allocated_bytes.current, 0);
        drop(model);
        drop(context);
        expect_clean(&sim);
    }
}

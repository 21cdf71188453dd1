//! Random work while calls fail, one or many: no handle is lost, and what is pinned stays.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::model::{AllHeaps, Model};
use crate::engine::paged::NoIndex;
use crate::engine::paged::{Backend, Block, PageSource, Policy, StreamHeap, Wanted, block_size};

const MIB: usize = 1 << 20;
const HEAPS: u32 = 3;

/// Fails the call of this number from now, and if told all that follow.
#[derive(Debug)]
struct Failing {
    model: Model,
    fails_in: Option<u32>,
    for_good: bool,
}

impl Failing {
    fn call<R>(
        &mut self,
        call: impl FnOnce(&mut Model) -> Result<R, &'static str>,
    ) -> Result<R, &'static str> {
        match self.fails_in {
            Some(0) => {
                self.fails_in = self.for_good.then_some(0);
                Err("it fails")
            }
            left => {
                self.fails_in = left.map(|left| left - 1);
                call(&mut self.model)
            }
        }
    }
}

impl Backend for Failing {
    type Error = &'static str;
    type Point = u64;

    fn reserve(&mut self, bytes: u64) -> Result<Option<u64>, &'static str> {
        match self.call(|model| model.reserve(bytes)) {
            // One that fails alone says that there are none.
            Err(_) if !self.for_good => Ok(None),
            reserved => reserved,
        }
    }
    fn create(&mut self, bytes: usize) -> Result<Option<u64>, &'static str> {
        self.call(|model| model.create(bytes))
    }
    /// As the driver's: each piece is mapped, and then the device is let in to all of them or to none.
    fn map(&mut self, address: u64, bytes: usize, row: &[u64]) -> (usize, Result<(), &'static str>) {
        let (mut mapped, mut end, mut outcome) = (0, address, Ok(()));
        for memory in row {
            outcome = self.call(|model| {
                model.map_one(end, bytes, *memory);
                Ok(())
            });
            if outcome.is_err() {
                break;
            }
            (mapped, end) = (mapped + 1, end + bytes as u64);
        }
        if mapped > 0
            && let Err(error) = self.call(|_| Ok(()))
        {
            self.model.unmap(address, (end - address) as usize).unwrap();
            return (0, Err(error));
        }
        (mapped, outcome)
    }
    fn unmap(&mut self, address: u64, bytes: usize) -> Result<(), &'static str> {
        self.call(|model| model.unmap(address, bytes))
    }
    fn release(&mut self, memory: u64, bytes: usize) -> Result<(), &'static str> {
        self.call(|model| model.release(memory, bytes))
    }
    fn point(&mut self, heap: u32) -> Result<Option<u64>, &'static str> {
        self.call(|model| model.point(heap))
    }
    fn is_done(&mut self, point: &u64) -> Result<bool, &'static str> {
        self.call(|model| model.is_done(point))
    }
    fn wait(&mut self, waiter: u32, of: u32, point: &u64) -> Result<bool, &'static str> {
        self.call(|model| model.wait(waiter, of, point))
    }
}

#[derive(Debug, Clone)]
enum Step {
    Allocate(u32, usize),
    Free(usize),
    Trim(u32),
    Pin(usize),
    Unpin(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let sizes = [1000, 200 << 10, 3 * MIB / 2, 3 * MIB, 8 * MIB, 21 * MIB, 40 * MIB];
    prop_oneof![
        5 => (0..HEAPS, prop::sample::select(sizes.to_vec())).prop_map(|(heap, size)| Step::Allocate(heap, size)),
        4 => any::<usize>().prop_map(Step::Free),
        1 => (0..HEAPS).prop_map(Step::Trim),
        1 => any::<usize>().prop_map(Step::Pin),
        1 => any::<usize>().prop_map(Step::Unpin),
    ]
}

/// A pinned block: where it is, the handles behind it, and what they were when it was pinned.
struct Pinned {
    address: u64,
    handles: Vec<u32>,
    id: u64,
    generation: u64,
    memory: u64,
}

struct World {
    source: PageSource<Failing>,
    heaps: BTreeMap<u32, StreamHeap>,
    live: Vec<(u32, Block)>,
    pinned: Vec<Pinned>,
}

impl World {
    fn new(lag: u64, handle_bytes: usize, total: u64) -> Self {
        let model = Model::new(lag, 96 * MIB);
        let backend = Failing { model, fails_in: None, for_good: false };
        let policy = Policy { handle_bytes, ..Policy::for_memory(usize::MAX >> 1) };
        let heaps = (0..HEAPS).map(|heap| (heap, StreamHeap::new())).collect();
        Self { source: PageSource::new(backend, policy, total), heaps, live: Vec::new(), pinned: Vec::new() }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Allocate(number, size) => {
                let size = block_size(size).unwrap();
                let active: usize = self.live.iter().map(|(_, block)| block.size).sum();
                let found = self.heaps.get_mut(&number).unwrap().allocate(size, 0, &NoIndex);
                let block = found.or_else(|| {
                    let wanted = Wanted { size, unused: 0, peak: active + size };
                    let mut heaps = AllHeaps(&mut self.heaps, &NoIndex);
                    self.source.begin();
                    self.source.grow(number, &mut heaps, wanted).ok()
                });
                self.live.extend(block.map(|block| (number, block)));
            }
            Step::Free(at) if !self.live.is_empty() => {
                let (heap, block) = self.live.swap_remove(at % self.live.len());
                self.heaps.get_mut(&heap).unwrap().free(block.number, &NoIndex).unwrap();
            }
            Step::Trim(heap) => {
                self.heaps.get_mut(&heap).unwrap().coalesce(&NoIndex);
                let _ = self.source.release_free(heap, &mut AllHeaps(&mut self.heaps, &NoIndex), usize::MAX);
            }
            Step::Pin(at) if !self.live.is_empty() => {
                let (_, block) = self.live[at % self.live.len()];
                let handles = self.source.pin(block.address, block.address + block.size as u64).unwrap();
                let segment = self.source.segment(block.address).unwrap();
                let (id, generation, memory) = (segment.id, segment.generation, segment.memory);
                self.pinned.push(Pinned { address: block.address, handles, id, generation, memory });
            }
            Step::Unpin(at) if !self.pinned.is_empty() => {
                let pinned = self.pinned.swap_remove(at % self.pinned.len());
                self.source.unpin(&pinned.handles);
            }
            Step::Free(_) | Step::Pin(_) | Step::Unpin(_) => {}
        }
    }

    fn check(&self) {
        let in_heaps: usize = self.heaps.values().map(|heap| heap.used_bytes() + heap.free_bytes()).sum();
        let unmapped = self.source.memory.handles().filter(|(_, handle)| handle.active.is_none());
        let unmapped: usize = unmapped.map(|(_, handle)| handle.bytes).sum();
        assert_eq!(self.source.reserved(), in_heaps + unmapped, "bytes were lost");
        assert_eq!(self.source.reserved(), self.source.backend.model.held);
        let live: usize = self.live.iter().map(|(_, block)| block.size).sum();
        assert_eq!(live, self.heaps.values().map(StreamHeap::used_bytes).sum::<usize>());
        for pinned in &self.pinned {
            let segment = self.source.segment(pinned.address).unwrap();
            assert_eq!(
                (segment.id, segment.generation),
                (pinned.id, pinned.generation),
                "a pinned page moved"
            );
            assert_eq!(self.source.backend.model.translate(pinned.address).0, pinned.memory);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn nothing_is_lost(
        lag in 0..3u64,
        handle_bytes in prop::sample::select(vec![2 * MIB, 8 * MIB]),
        total in prop::sample::select(vec![1 << 24, 1 << 40]),
        steps in prop::collection::vec((step(), 0..40u32, any::<bool>()), 1..80),
    ) {
        let mut world = World::new(lag, handle_bytes, total);
        for (step, fails_in, for_good) in steps {
            world.source.backend.model.now += 1;
            world.source.backend.fails_in = Some(fails_in);
            world.source.backend.for_good = for_good;
            world.take(step);
            world.source.backend.fails_in = None;
            world.check();
        }
        while !world.live.is_empty() {
            world.take(Step::Free(0));
        }
        while !world.pinned.is_empty() {
            world.take(Step::Unpin(0));
        }
        for _ in 0..2 {
            world.source.backend.model.now += 3;
            (0..HEAPS).for_each(|heap| world.take(Step::Trim(heap)));
        }
        world.check();
        prop_assert_eq!(world.source.reserved(), 0);
        prop_assert!(world.source.backend.model.mapped.is_empty());
    }
}

/// A handle that has been with many heaps is not mapped for all of them any more.
#[test]
fn stale_mappings_do_not_pile_up() {
    const MANY: u32 = 100;
    let policy = Policy { handle_bytes: 32 * MIB, ..Policy::for_memory(usize::MAX >> 1) };
    let mut source = PageSource::new(Model::new(0, 32 * MIB), policy, 1 << 30);
    let mut heaps: BTreeMap<u32, StreamHeap> = (0..MANY).map(|heap| (heap, StreamHeap::new())).collect();
    let size = 30 * MIB;
    for number in 0..MANY {
        source.begin();
        let wanted = Wanted { size, unused: 0, peak: size };
        let block = source.grow(number, &mut AllHeaps(&mut heaps, &NoIndex), wanted).unwrap();
        heaps.get_mut(&number).unwrap().free(block.number, &NoIndex).unwrap();
    }
    let mapped = source.backend.mapped.len();
    assert!((2..40).contains(&mapped), "{mapped} mappings of one handle");
}

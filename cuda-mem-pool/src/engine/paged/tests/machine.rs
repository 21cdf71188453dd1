//! Random work against a model of what is where: no byte belongs to two blocks or is used against the order of streams, none is
//! lost, and what is pinned stays.
//!
//! `CUDA_MEM_MACHINE_OPERATIONS` says how many operations there are in each test, `CUDA_MEM_MACHINE_SEED` which; the seed is
//! printed.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::device::Device;
use super::model::AllHeaps;
use crate::engine::paged::{
    Block, BlockIndex, BlockNumber, GrowError, Hold, PageSource, Policy, SLAB, StreamHeap, Tier, Wanted,
    block_size,
};

mod checks;

/// How many operations each machine has before the next one begins.
const RUN: u64 = 4000;

/// The same numbers for the same seed (xorshift64*).
#[derive(Debug)]
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}

/// Where blocks begin, as the heaps say.
#[derive(Debug, Default)]
struct Index(RefCell<BTreeMap<u64, BlockNumber>>, RefCell<BTreeMap<u64, Tier>>);

impl Index {
    fn set(&self, address: u64, number: BlockNumber) -> bool {
        assert_eq!(self.0.borrow_mut().insert(address, number), None, "two blocks begin at {address:#x}");
        true
    }
}

impl BlockIndex for Index {
    fn set_large(&self, address: u64, number: u32) -> bool {
        self.set(address, BlockNumber::new(Tier::Large, number))
    }
    fn clear_large(&self, address: u64, number: u32) {
        // The block that is a slab has no entry.
        let gone = self.0.borrow_mut().remove(&address);
        assert_eq!(gone, Some(BlockNumber::new(Tier::Large, number)));
    }
    fn add_slab(&self, address: u64, tier: Tier) -> bool {
        assert_eq!(self.1.borrow_mut().insert(address, tier), None);
        true
    }
    fn remove_slab(&self, address: u64) {
        assert!(self.1.borrow_mut().remove(&address).is_some());
    }
    fn set_in_slab(&self, address: u64, number: u32) -> bool {
        let tier = self.1.borrow()[&(address & !(SLAB as u64 - 1))];
        self.set(address, BlockNumber::new(tier, number))
    }
    fn clear_in_slab(&self, address: u64) {
        assert!(self.0.borrow_mut().remove(&address).is_some());
    }
}

fn any_size(chance: &mut Chance, largest: u64) -> usize {
    let bytes = match chance.below(10) {
        0..3 => chance.below(16 << 10),
        3..5 => chance.below(1 << 20),
        5 => chance.below(64) << 20,
        6 => chance.below(8 << 20),
        _ => chance.below(largest << 20),
    };
    block_size(bytes as usize).unwrap()
}

/// One device, its page source, its heaps, and what is known of them.
struct Machine {
    chance: Chance,
    source: PageSource<Device>,
    heaps: BTreeMap<u32, StreamHeap>,
    index: Index,
    live: Vec<(u32, Block)>,
    /// The bytes of live blocks, by handle and offset.
    bytes: BTreeMap<(u64, u64), u64>,
    active: usize,
    peak: usize,
    /// Pinned handles, and how often they had moved when they were pinned.
    pinned: Vec<(u32, u64)>,
    largest: u64,
    /// The only sizes, in half of the machines: blocks find places that they had before.
    sizes: Vec<usize>,
}

impl Machine {
    fn new(seed: u64) -> Self {
        let mut chance = Chance(seed | 1);
        // More than a few have what is free elsewhere where it is.
        let streams = [1, 2, 3, 4, 6][chance.below(5) as usize];
        let capacity = [64, 256, 1024, 1 << 20][chance.below(4) as usize] << 20;
        let mut device = Device::new(streams, capacity);
        device.refuses = if chance.one_in(3) { 7 + chance.below(200) } else { 0 };
        let handle_bytes = [2, 4, 16][chance.below(3) as usize] << 20;
        let hold = if chance.one_in(3) { Hold::Tight { over_peak: 1.02 } } else { Hold::Ample };
        let reserve_bytes = if chance.one_in(2) { 16 << 20 } else { 0 };
        // Half of them have moved too much soon, or leave memory of idle streams early.
        let moves_us_per_s = if chance.one_in(2) { 40 } else { u64::MAX };
        let idle_permille = if chance.one_in(2) { 0 } else { 1500 };
        let moves = !chance.one_in(6);
        let policy = Policy { handle_bytes, hold, reserve_bytes, moves_us_per_s, idle_permille, moves };
        // Short ones are soon full, and the next one follows.
        let range = [16u64 << 20, 1 << 30, 4 << 30, 1 << 40][chance.below(4) as usize];
        let largest = 1 + chance.below(200);
        let count = if chance.one_in(2) { 1 + chance.below(12) } else { 0 };
        let sizes = (0..count).map(|_| any_size(&mut chance, largest)).collect();
        Self {
            largest,
            sizes,
            source: PageSource::new(device, policy, range),
            heaps: (0..streams).map(|heap| (heap, StreamHeap::new())).collect(),
            chance,
            index: Index::default(),
            live: Vec::new(),
            bytes: BTreeMap::new(),
            active: 0,
            peak: 0,
            pinned: Vec::new(),
        }
    }

    fn stream(&mut self) -> u32 {
        self.chance.below(self.heaps.len() as u64) as u32
    }

    fn step(&mut self) {
        match self.chance.below(100) {
            0..38 => self.allocate(),
            38..72 => self.free(),
            72..78 => self.work(),
            78..94 => {
                let stream = self.stream();
                for _ in 0..self.chance.below(40) {
                    self.source.backend.advance(stream);
                }
            }
            94 => self.trim(),
            95 => self.capture(),
            96 => self.pin(),
            97 => self.unpin(),
            98 => {
                let (stream, index) = (self.stream(), &self.index);
                self.heaps.get_mut(&stream).unwrap().coalesce(index);
            }
            _ if self.chance.one_in(2) => self.limit(),
            // As if there were more memory, or less, from here on.
            _ => self.source.policy.handle_bytes = [2, 4, 16][self.chance.below(3) as usize] << 20,
        }
    }

    fn size(&mut self) -> usize {
        if self.sizes.is_empty() || self.chance.one_in(20) {
            return any_size(&mut self.chance, self.largest);
        }
        self.sizes[self.chance.below(self.sizes.len() as u64) as usize]
    }

    fn allocate(&mut self) {
        let (stream, size) = (self.stream(), self.size());
        let mut block = self.heaps.get_mut(&stream).unwrap().allocate(size, 1, &self.index);
        if block.is_none() {
            let wanted = Wanted { size, unused: 1, peak: self.peak.max(self.active + size) };
            let heaps = &mut AllHeaps(&mut self.heaps, &self.index);
            self.source.begin();
            block = match self.source.grow(stream, heaps, wanted) {
                Ok(block) => Some(block),
                Err(GrowError::OutOfMemory | GrowError::Backend("refused")) => None,
                Err(error) => panic!("{error:?}"),
            };
            assert!(self.source.backend.held <= self.source.backend.capacity);
        }
        let Some(block) = block else { return };
        assert_eq!((block.size, block.address % 512), (size, 0));
        assert_eq!(self.heaps[&stream].sizes(block.number), Some((size, size - 1)));
        assert_eq!(self.index.0.borrow().get(&block.address), Some(&block.number));
        self.enter(block);
        self.active += size;
        self.peak = self.peak.max(self.active);
        self.source.backend.work(stream, block.address, size);
        self.live.push((stream, block));
    }

    /// The bytes of a block belong to nobody else.
    fn enter(&mut self, block: Block) {
        for (memory, offset, bytes) in self.source.backend.pieces(block.address, block.size) {
            let before = self.bytes.range(..(memory, offset + bytes)).next_back();
            let free = before.is_none_or(|((of, start), held)| *of != memory || start + held <= offset);
            assert!(free, "two blocks have the same bytes");
            self.bytes.insert((memory, offset), bytes);
        }
    }

    fn free(&mut self) {
        if self.live.is_empty() {
            return;
        }
        let at = self.chance.below(self.live.len() as u64) as usize;
        let (stream, block) = self.live.swap_remove(at);
        // What was behind it when it was handed out still is.
        for (memory, offset, bytes) in self.source.backend.pieces(block.address, block.size) {
            assert_eq!(self.bytes.remove(&(memory, offset)), Some(bytes), "it moved while it was in use");
        }
        self.active -= block.size;
        let heap = self.heaps.get_mut(&stream).unwrap();
        let freed = heap.free(block.number, &self.index).unwrap();
        assert_eq!((freed.size, freed.unused), (block.size, 1));
        assert_eq!(heap.free(block.number, &self.index), None, "it was freed twice");
    }

    fn work(&mut self) {
        if !self.live.is_empty() {
            let at = self.chance.below(self.live.len() as u64) as usize;
            let (stream, block) = self.live[at];
            self.source.backend.work(stream, block.address, block.size);
        }
    }

    fn trim(&mut self) {
        for stream in 0..self.heaps.len() as u32 {
            let before = self.source.reserved();
            let heaps = &mut AllHeaps(&mut self.heaps, &self.index);
            match self.source.release_free(stream, heaps, usize::MAX) {
                Ok(bytes) => assert_eq!(self.source.reserved(), before - bytes),
                Err(error) => assert_eq!(error, GrowError::Backend("refused")),
            }
        }
    }

    fn capture(&mut self) {
        let stream = self.stream();
        let capturing = &mut self.source.backend.capturing;
        if !capturing.remove(&stream) {
            capturing.insert(stream);
        }
    }

    fn pin(&mut self) {
        let mapped = self.source.memory.handles().filter(|(_, handle)| handle.active.is_some());
        let handles: Vec<u32> = mapped.map(|(number, _)| number).collect();
        if !handles.is_empty() && self.pinned.len() < 3 {
            let number = handles[self.chance.below(handles.len() as u64) as usize];
            let handle = self.source.memory.handle_mut(number).unwrap();
            handle.pins += 1;
            self.pinned.push((number, handle.generation));
        }
    }

    fn unpin(&mut self) {
        if let Some((number, generation)) = self.pinned.pop() {
            let handle = self.source.memory.handle_mut(number).expect("a pinned handle is not given back");
            assert_eq!(handle.generation, generation, "a pinned handle moved");
            handle.pins -= 1;
        }
    }

    fn limit(&mut self) {
        let limit = if self.chance.one_in(2) { usize::MAX } else { self.source.reserved() };
        self.source.set_limit(limit);
    }

    /// Everything goes back.
    fn end(mut self) {
        self.source.backend.refuses = 0;
        self.source.backend.capturing.clear();
        while !self.pinned.is_empty() {
            self.unpin();
        }
        while !self.live.is_empty() {
            self.free();
        }
        self.check();
        for heap in self.heaps.values_mut() {
            heap.coalesce(&self.index);
        }
        // The first time points are made.
        self.trim();
        self.source.backend.finish();
        self.trim();
        self.check();
        assert!(self.source.backend.is_empty(), "something was kept: {:?}", self.source.backend);
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is {value:?}")))
}

fn run(seed: u64) {
    println!("CUDA_MEM_MACHINE_SEED={seed}");
    let mut machine = Machine::new(seed);
    for operation in 0..RUN {
        machine.step();
        if operation % 16 == 0 {
            machine.check();
        }
    }
    machine.end();
}

#[test]
fn random_work_loses_nothing_and_breaks_no_order() {
    let operations = number("CUDA_MEM_MACHINE_OPERATIONS").unwrap_or(60_000);
    if let Some(seed) = number("CUDA_MEM_MACHINE_SEED") {
        return run(seed);
    }
    for seed in 1..=operations.div_ceil(RUN) {
        run(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    }
}

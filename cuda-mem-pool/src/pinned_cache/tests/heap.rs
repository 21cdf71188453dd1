//! The engine against a model that knows each byte.

use proptest::prelude::*;

use crate::engine::classes::{self, GRANULE, LARGE};
use crate::engine::paged::Piece;
use crate::pinned_cache::heap::{self, BlockId, Heap};

/// Two heaps, as an arena has them, that grow as the allocator grows them, and every block in use.
pub(super) struct Machine {
    small: Heap<usize>,
    large: Heap<usize>,
    segments: Vec<usize>,
    pub(super) held: usize,
    /// Ever.
    pub(super) pinned: usize,
    pub(super) blocks: Vec<Block>,
}

#[derive(Debug)]
pub(super) struct Block {
    id: BlockId,
    segment: usize,
    offset: usize,
    pub(super) size: usize,
}

impl<S> Heap<S> {
    pub(super) fn free_bytes(&self) -> usize {
        self.spans.held_bytes() - self.spans.used_bytes()
    }

    /// Offset, size and freedom of every block of every segment, in order.
    pub(super) fn layout(&self) -> Vec<Vec<(usize, usize, bool)>> {
        let of_segment = |(start, (bytes, _)): (&u64, &(usize, S))| {
            let pieces = self.spans.pieces(false);
            let inside = pieces.filter(|piece| (*start..*start + *bytes as u64).contains(&piece.address));
            let block =
                |piece: Piece| ((piece.address - start) as usize, piece.size, piece.requested.is_none());
            let mut blocks: Vec<_> = inside.map(block).collect();
            blocks.sort_unstable();
            blocks
        };
        self.segments.iter().map(of_segment).collect()
    }
}

impl Machine {
    pub(super) fn new() -> Self {
        Self {
            small: Heap::new(),
            large: Heap::new(),
            segments: Vec::new(),
            held: 0,
            pinned: 0,
            blocks: Vec::new(),
        }
    }

    fn heap(&mut self, size: usize) -> &mut Heap<usize> {
        if size >= LARGE { &mut self.large } else { &mut self.small }
    }

    fn try_take(&mut self, size: usize) -> Option<Block> {
        let grant = self.heap(size).allocate(size)?;
        Some(Block { id: grant.block, segment: *grant.segment, offset: grant.offset, size })
    }

    /// The size of a new block.
    pub(super) fn allocate(&mut self, len: usize) -> usize {
        let size = classes::block_size(len).unwrap();
        let block = self.try_take(size).unwrap_or_else(|| {
            let bytes = heap::segment_for(size, self.held);
            let number = self.segments.len();
            self.segments.push(bytes);
            self.held += bytes;
            self.pinned += bytes;
            self.heap(size).add_segment(bytes, number).unwrap();
            let block = self.try_take(size).expect("a segment that was made for the block");
            let surplus = self.large.take_surplus();
            self.give_back(surplus);
            block
        });
        self.blocks.push(block);
        size
    }

    pub(super) fn free(&mut self, index: usize) {
        let block = self.blocks.swap_remove(index);
        let free = self.heap(block.size).free_bytes();
        let is_whole = self.heap(block.size).free(block.id);
        assert_eq!(self.heap(block.size).free_bytes(), free + block.size);
        let is_alone = self.blocks.iter().all(|other| other.segment != block.segment);
        assert_eq!(is_whole, is_alone, "whether nothing of the segment is in use");
    }

    fn trim(&mut self, most: usize) {
        let large = self.large.take_free(|taken| taken >= most);
        self.give_back(large);
        let small = self.small.take_free(|taken| taken >= most);
        self.give_back(small);
    }

    fn give_back(&mut self, taken: Vec<(usize, usize)>) {
        let mut last = usize::MAX;
        for (bytes, segment) in taken {
            assert_eq!(self.segments[segment], bytes);
            assert!(bytes <= last, "not the largest first");
            last = bytes;
            assert!(self.blocks.iter().all(|block| block.segment != segment), "a segment in use");
            self.held -= bytes;
            self.segments[segment] = 0;
        }
    }

    fn check(&self) {
        // What the heaps say: segments without holes, blocks that touch, no two free neighbours.
        let (mut held, mut free, mut used) = (0, 0, 0);
        for segment in self.small.layout().iter().chain(&self.large.layout()) {
            let mut end = 0;
            let mut last_free = false;
            for &(offset, size, is_free) in segment {
                assert_eq!(offset, end, "a hole or an overlap");
                assert!(size > 0 && size % GRANULE == 0);
                assert!(!(last_free && is_free), "two free neighbours");
                (end, last_free) = (offset + size, is_free);
                if is_free { free += size } else { used += 1 }
            }
            held += end;
        }
        assert_eq!(held, self.held);
        assert_eq!(used, self.blocks.len());
        assert_eq!(free, self.small.free_bytes() + self.large.free_bytes());
        assert_eq!(free, held - self.blocks.iter().map(|block| block.size).sum::<usize>());
        // What was handed out: inside its segment, and apart from all others.
        let mut sorted: Vec<_> =
            self.blocks.iter().map(|b| (b.segment, b.offset, b.offset + b.size)).collect();
        sorted.sort_unstable();
        assert!(
            sorted.windows(2).all(|two| two[0].0 != two[1].0 || two[0].2 <= two[1].1),
            "overlapping blocks"
        );
        assert!(sorted.iter().all(|&(segment, _, end)| end <= self.segments[segment]));
    }
}

#[derive(Debug, Clone)]
enum Step {
    Allocate(usize),
    Free(prop::sample::Index),
    Trim(usize),
}

fn sizes() -> impl Strategy<Value = usize> {
    prop_oneof![1usize..2000, 1usize..(64 << 10), 1usize..(3 << 20), 1usize..(200 << 20)]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => sizes().prop_map(Step::Allocate),
        4 => any::<prop::sample::Index>().prop_map(Step::Free),
        1 => prop_oneof![Just(1usize), Just(usize::MAX), sizes()].prop_map(Step::Trim),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_engine_is_its_model(steps in steps()) {
        let mut machine = Machine::new();
        for step in steps {
            match step {
                Step::Allocate(len) => { machine.allocate(len); }
                Step::Free(index) if !machine.blocks.is_empty() => {
                    let index = index.index(machine.blocks.len());
                    machine.free(index);
                }
                Step::Free(_) => {}
                Step::Trim(most) => machine.trim(most),
            }
            machine.check();
        }
        while !machine.blocks.is_empty() {
            machine.free(machine.blocks.len() / 2);
        }
        machine.check();
        let whole = |heap: &Heap<usize>| heap.layout().iter().all(|segment| segment.len() == 1);
        prop_assert!(whole(&machine.small) && whole(&machine.large), "a segment that was not joined");
        machine.trim(usize::MAX);
        prop_assert_eq!(machine.held, 0);
    }

    #[test]
    fn a_block_is_found_whenever_one_of_its_class_or_larger_is_free(sizes in prop::collection::vec(sizes(), 1..40)) {
        let mut machine = Machine::new();
        sizes.iter().for_each(|&len| { machine.allocate(len); });
        while !machine.blocks.is_empty() {
            machine.free(0);
        }
        let held = machine.held;
        for len in sizes {
            machine.allocate(len);
            machine.free(0);
        }
        prop_assert_eq!(machine.held, held, "grew with as much free as was ever used");
    }
}

/// Numbers that are the same on every run.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 11
    }

    pub(super) fn unit(&mut self) -> f64 {
        self.next() as f64 / (1u64 << 53) as f64
    }

    pub(super) fn between(&mut self, low: usize, high: usize) -> usize {
        low + (self.unit() * (high - low) as f64) as usize
    }

    pub(super) fn log_between(&mut self, low: usize, high: usize) -> usize {
        (low as f64 * (high as f64 / low as f64).powf(self.unit())) as usize
    }
}

pub(super) const KIB: usize = 1 << 10;
pub(super) const GIB: usize = 1 << 30;

/// Allocates sizes that are no powers of two until 24 GiB are in use, and gives held over requested.
fn held_over_requested(numbers: &mut Numbers, mut size: impl FnMut(&mut Numbers) -> usize) -> (Machine, f64) {
    let mut machine = Machine::new();
    let mut requested = 0;
    while requested < 24 * GIB {
        let len = size(numbers).clamp(KIB + 1, 2 * GIB - 1);
        if len.is_power_of_two() || requested + len > 24 * GIB + GIB {
            continue;
        }
        machine.allocate(len);
        requested += len;
    }
    let ratio = machine.held as f64 / requested as f64;
    (machine, ratio)
}

#[test]
fn mixes_of_24_gib_are_held_within_three_percent() {
    for seed in 0..4 {
        let numbers = &mut Numbers(seed);
        let (_, uniform) = held_over_requested(numbers, |numbers| numbers.between(KIB, 2 * GIB));
        let (_, log) = held_over_requested(numbers, |numbers| numbers.log_between(KIB, 2 * GIB));
        let (_, small) = held_over_requested(numbers, |numbers| {
            if numbers.unit() < 0.99 {
                numbers.log_between(KIB, 64 * KIB)
            } else {
                numbers.log_between(KIB, 64 << 20)
            }
        });
        let (_, medium) = held_over_requested(numbers, |numbers| numbers.between(64 * KIB, 1 << 20));
        for ratio in [uniform, log, small, medium] {
            assert!(
                (1.0..=1.03).contains(&ratio),
                "uniform {uniform}, log {log}, small {small}, medium {medium}"
            );
        }
    }
}

#[test]
fn a_mix_that_is_freed_and_asked_for_again_needs_no_more() {
    let numbers = &mut Numbers(7);
    let (mut machine, _) = held_over_requested(numbers, |numbers| numbers.log_between(KIB, 2 * GIB));
    let held = machine.held;
    let mut sizes: Vec<usize> = machine.blocks.iter().map(|block| block.size).collect();
    for _ in 0..machine.blocks.len() {
        let index = numbers.between(0, machine.blocks.len());
        machine.free(index);
    }
    // Large ones first, as a program that knows what it needs asks.
    sizes.sort_unstable_by(|one, other| other.cmp(one));
    sizes.iter().for_each(|&size| {
        machine.allocate(size);
    });
    machine.check();
    assert!(machine.held as f64 <= held as f64 * 1.01, "{} after {held}", machine.held);
}

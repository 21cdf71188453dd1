//! Blocks of any size up to a largest, as in RMM's random-allocation benchmark.

use std::collections::BTreeMap;

use super::model::{Model, Others};
use crate::engine::paged::{
    Block, GrowError, Load, NoIndex, PageSource, Policy, StreamHeap, Wanted, block_size,
};

/// What is in use at most.
const LIMIT: usize = 16_000 << 20;

/// A program that frees and allocates at random, and does the same each time.
struct Program {
    source: PageSource<Model>,
    heap: StreamHeap,
    active: usize,
    peak: usize,
}

/// What one run of it took.
#[derive(Debug)]
struct Run {
    calls: u64,
    grows: u64,
    allocations: u64,
    microseconds: u64,
    nanoseconds: u128,
}

impl Program {
    fn new(policy: Policy, capacity: usize) -> Self {
        let source = PageSource::new(Model::new(0, capacity), policy, 4 << 40);
        Self { source, heap: StreamHeap::new(), active: 0, peak: 0 }
    }

    fn allocate(&mut self, size: usize, grows: &mut u64) -> Option<Block> {
        self.source.backend_mut().now += 1;
        let found = self.heap.allocate(size, 0, &NoIndex);
        let block = match found {
            Some(block) => block,
            None => {
                *grows += 1;
                let wanted = Wanted { size, unused: 0, load: Load { active: self.active, peak: self.peak } };
                let mut none = BTreeMap::new();
                match self.source.grow(0, &mut self.heap, &mut Others(&mut none), wanted, &NoIndex) {
                    Ok(block) => block,
                    Err(GrowError::OutOfMemory) => return None,
                    Err(error) => panic!("{error:?}"),
                }
            }
        };
        self.active += size;
        self.peak = self.peak.max(self.active);
        Some(block)
    }

    fn free(&mut self, block: Block) {
        self.source.backend_mut().now += 1;
        self.heap.free(block.number, &NoIndex).unwrap();
        self.active -= block.size;
    }

    fn calls(&self) -> u64 {
        let model = self.source.backend();
        model.creates + model.maps + model.unmaps
    }

    /// `count` blocks of up to `largest` bytes; it ends with none.
    fn run(&mut self, count: usize, largest: usize) -> Run {
        let begun = std::time::Instant::now();
        let (calls, microseconds) = (self.calls(), self.source.backend().microseconds());
        let mut state = 88_172_645_463_325_252u64;
        let mut random = |most: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as usize % most
        };
        let mut live: Vec<Block> = Vec::new();
        let (mut made, mut grows) = (0, 0);
        for _ in 0..2 * count {
            let size = block_size(random(largest) + 1).unwrap();
            let wants = random(100) < 73 && made < count && self.active + size < LIMIT;
            let block = (wants || live.is_empty()).then(|| self.allocate(size, &mut grows)).flatten();
            if let Some(block) = block {
                live.push(block);
                made += 1;
            } else if !live.is_empty() {
                let block = live.swap_remove(random(live.len()));
                self.free(block);
            }
        }
        live.into_iter().for_each(|block| self.free(block));
        Run {
            calls: self.calls() - calls,
            grows,
            allocations: made as u64,
            microseconds: self.source.backend().microseconds() - microseconds,
            nanoseconds: begun.elapsed().as_nanos(),
        }
    }
}

/// Each run of `count` blocks of up to so many MiB.
fn runs(policy: Policy, times: usize, count: usize, mib: usize) -> (Program, Vec<Run>) {
    let mut program = Program::new(policy, 130 << 30);
    let runs = (0..times).map(|_| program.run(count, mib << 20)).collect();
    (program, runs)
}

/// A program that does nothing but free and allocate gets memory until it needs no calls any more.
#[test]
fn blocks_of_any_size_need_hardly_any_calls_in_the_end() {
    for (mib, most) in [(64, 1.1), (256, 1.3), (1024, 1.7), (4096, 2.0)] {
        let (program, runs) = runs(Policy::DEFAULT, 3, 1000, mib);
        let held = program.source.most_reserved() as f64 / program.peak as f64;
        assert!(held <= most, "{held} held with blocks of up to {mib} MiB");
        assert!(runs[2].calls <= 40, "{} calls with blocks of up to {mib} MiB", runs[2].calls);
        assert!(runs[2].grows <= 10, "the source is asked {} times", runs[2].grows);
    }
}

/// A program that has time between its blocks pays for the calls that its frees make, and holds no more for it.
#[test]
fn calls_that_are_paid_for_are_no_reason_to_hold_more() {
    let patient = Policy { credit: 1 << 20, ..Policy::DEFAULT };
    let (program, runs) = runs(patient, 2, 1000, 1024);
    let held = program.source.most_reserved() as f64 / program.peak as f64;
    assert!(held <= 1.04, "{held} held");
    assert!(runs[1].calls > 1000, "{runs:?}");
}

/// What a limit leaves that is close to what is in use is there to be used.
#[test]
fn a_close_limit_saves_calls() {
    let patient = Policy { credit: 1 << 20, ..Policy::DEFAULT };
    let (program, free) = runs(patient, 2, 1000, 256);
    let mut close = Program::new(patient, usize::MAX);
    close.source.set_limit(program.peak / 100 * 109);
    let close_runs = [close.run(1000, 256 << 20), close.run(1000, 256 << 20)];
    let held = close.source.most_reserved() as f64 / program.peak as f64;
    let (calls, before) = (close_runs[1].calls, free[1].calls);
    assert!((1.04..=1.09).contains(&held), "{held} held");
    assert!(calls < before / 4 * 3, "{calls} calls, {before} without a limit");
}

#[test]
#[ignore = "prints figures for choosing the policy"]
fn figures_of_random_blocks() {
    let number = |name: &str, default: usize| std::env::var(name).map_or(default, |v| v.parse().unwrap());
    let policy = Policy {
        slack: number("SLACK", Policy::DEFAULT.slack as usize) as u32,
        patience: number("PATIENCE", Policy::DEFAULT.patience as usize) as u64,
        ..Policy::DEFAULT
    };
    for count in [1_000, 10_000, 100_000].into_iter().filter(|count| *count <= number("MOST", 10_000)) {
        for mib in [1, 4, 64, 256, 1024, 4096] {
            let (program, runs) = runs(policy, number("RUNS", 2), count, mib);
            let held = program.source.most_reserved() as f64 / program.peak as f64;
            for Run { calls, grows, allocations, microseconds, nanoseconds } in runs {
                println!(
                    "{count} up to {mib} MiB: held {held:.3} of {} MiB, {calls} calls of {microseconds} us, {grows} grows of {allocations}, {} us, {} ns an operation, most mappings {}",
                    program.peak >> 20,
                    nanoseconds / 1000,
                    nanoseconds / (2 * u128::from(allocations)),
                    program.source.most_mappings(),
                );
            }
        }
    }
}

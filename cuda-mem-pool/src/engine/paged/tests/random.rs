//! Blocks of any size up to a largest: RMM's random-allocation benchmark, as `ci/peers/rmm_benchmarks.h` has it.

use std::collections::BTreeMap;

use super::engines::MinStd;
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
        let mut engine = MinStd::new();
        let mut live: Vec<(usize, Block)> = Vec::new();
        let (mut made, mut grows, mut total) = (0, 0, 0);
        for _ in 0..2 * count {
            let bytes = engine.uniform(1, largest as u64) as usize;
            let wants =
                live.is_empty() || (engine.uniform(0, 99) < 73 && made < count && total + bytes < LIMIT);
            let size = block_size(bytes).unwrap();
            if let Some(block) = wants.then(|| self.allocate(size, &mut grows)).flatten() {
                live.push((bytes, block));
                (made, total) = (made + 1, total + bytes);
            } else if !live.is_empty() {
                let index = engine.uniform(0, count as u64 - 1) as usize % live.len();
                let (bytes, block) = live.swap_remove(index);
                self.free(block);
                total -= bytes;
            }
        }
        live.into_iter().for_each(|(_, block)| self.free(block));
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
    for (mib, most) in [(64, 1.1), (256, 1.4), (1024, 1.7), (4096, 2.2)] {
        let (program, runs) = runs(Policy::DEFAULT, 3, 1000, mib);
        let held = program.source.most_reserved() as f64 / program.peak as f64;
        assert!(held <= most, "{held} held with blocks of up to {mib} MiB");
        // One block in a thousand may find its place taken each time.
        assert!(runs[1].calls.max(runs[2].calls) <= 4, "{runs:?} with blocks of up to {mib} MiB");
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
    let (program, free) = runs(patient, 2, 1000, 64);
    let mut close = Program::new(patient, usize::MAX);
    close.source.set_limit(program.peak / 100 * 109);
    let close_runs = [close.run(1000, 64 << 20), close.run(1000, 64 << 20)];
    let held = close.source.most_reserved() as f64 / program.peak as f64;
    let (calls, before) = (close_runs[1].calls, free[1].calls);
    assert!((1.04..=1.09).contains(&held), "{held} held");
    assert!(calls < before / 4 * 3, "{calls} calls, {before} without a limit");
}

#[test]
#[ignore = "takes long where it is not optimised; nightly runs it"]
fn figures_of_random_blocks() {
    let number = |name: &str, default: usize| std::env::var(name).map_or(default, |v| v.parse().unwrap());
    let policy = Policy {
        slack: number("SLACK", Policy::DEFAULT.slack as usize) as u32,
        patience: number("PATIENCE", Policy::DEFAULT.patience as usize) as u64,
        ..Policy::DEFAULT
    };
    for count in [1_000, 10_000, 100_000].into_iter().filter(|count| *count <= number("MOST", 10_000)) {
        for mib in [1, 4, 64, 256, 1024, 4096].into_iter().filter(|mib| number("MIB", *mib) == *mib) {
            let (program, runs) = runs(policy, number("RUNS", 2), count, mib);
            let held = program.source.most_reserved() as f64 / program.peak as f64;
            let again = runs.last().map(|run| run.calls);
            for Run { calls, grows, allocations, microseconds, nanoseconds } in runs {
                println!(
                    "{count} up to {mib} MiB: held {held:.3} of {} MiB, {calls} calls of {microseconds} us, {grows} grows of {allocations}, {} us, {} ns an operation, most mappings {}",
                    program.peak >> 20,
                    nanoseconds / 1000,
                    nanoseconds / (2 * u128::from(allocations)),
                    program.source.most_mappings(),
                );
            }
            assert!(held <= 2.2, "{count} up to {mib} MiB: {held} held");
            assert!(
                again.is_some_and(|calls| calls <= 16),
                "{count} up to {mib} MiB: {again:?} calls the last time"
            );
        }
    }
}

//! Random sizes, a fixed number of blocks alive in each heap: what the benchmarks of allocators do.

use std::collections::HashMap;

use super::model::{Model, Others};
use crate::engine::paged::pages::ROOMY;
use crate::engine::paged::{Block, Load, NoIndex, PageSource, Policy, StreamHeap, Wanted, block_size};

const LIVE: usize = 64;

struct Outcome {
    /// Held at most, and in use at most.
    held: usize,
    peak: usize,
    /// Calls in the second half.
    late_calls: u64,
}

/// `heaps` heaps by turns, each with sizes from 512 bytes up to `doublings` doublings, evenly over them.
fn churn(heaps: u32, doublings: f64, rounds: usize) -> Outcome {
    let mut source = PageSource::new(Model::new(0, usize::MAX), Policy::DEFAULT, 1 << 42);
    let mut state = 88_172_645_463_325_252u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let sizes: Vec<Vec<usize>> = (0..heaps)
        .map(|_| (0..1024).map(|_| (512.0 * (random() * doublings).exp2()) as usize).collect())
        .collect();
    let mut all: HashMap<u32, StreamHeap> = (0..heaps).map(|heap| (heap, StreamHeap::new())).collect();
    let mut live: Vec<Vec<Option<Block>>> = vec![vec![None; LIVE]; heaps as usize];
    let (mut active, mut peak, mut half) = (0usize, 0usize, 0);
    let calls = |model: &Model| model.creates + model.maps + model.unmaps;
    for round in 0..rounds {
        if round == rounds / 2 {
            half = calls(source.backend());
        }
        for heap in 0..heaps {
            source.backend_mut().now += 1;
            let mut mine = all.remove(&heap).unwrap();
            let place = &mut live[heap as usize][round * 29 % LIVE];
            if let Some(block) = place.take() {
                mine.free(block.number, &NoIndex).unwrap();
                active -= block.size;
            }
            let size = block_size(sizes[heap as usize][round % 1024]).unwrap();
            let block = mine.allocate(size, 0, &NoIndex).unwrap_or_else(|| {
                let load = Load { active, peak };
                source
                    .grow(heap, &mut mine, &mut Others(&mut all), Wanted { size, unused: 0, load }, &NoIndex)
                    .unwrap()
            });
            *place = Some(block);
            active += size;
            peak = peak.max(active);
            all.insert(heap, mine);
        }
    }
    Outcome { held: source.most_reserved(), peak, late_calls: calls(source.backend()) - half }
}

#[test]
fn random_blocks_are_held_in_little_more_than_they_are() {
    for (heaps, doublings, most) in [(1, 10.0, 1.1), (1, 16.0, 1.11), (4, 16.0, 1.2)] {
        let Outcome { held, peak, late_calls } = churn(heaps, doublings, 8 << 10);
        let ratio = held as f64 / peak as f64;
        println!("{heaps} heaps, {doublings} doublings: held {ratio:.3}, {late_calls} calls");
        assert!(ratio <= most || held <= ROOMY, "{heaps} heaps hold {ratio}");
        assert!(doublings > 10.0 || late_calls == 0, "{late_calls} calls");
    }
}

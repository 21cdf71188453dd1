//! One allocation and its free, of one size that the allocator has: the mean of many, and single ones.

use std::time::Instant;

use cuda_mem_pool::cuda_mem_core::Stream;

use super::allocator::Allocator;
use crate::protocol::{Answer, Outcome, Request};

pub(crate) fn measure<A: Allocator>(allocator: &A, stream: &Stream, request: &Request) -> Outcome {
    let (bytes, samples) = (request.number("bytes")?, request.number::<usize>("samples")?);
    let wanted = request.number::<u128>("ms")? * 1_000_000;
    let pairs = |count| {
        (0..count).try_for_each(|_| {
            let address = allocator.allocate(bytes, stream)?;
            // SAFETY: allocated above, freed once; no work uses it.
            unsafe { allocator.free(address) };
            Ok::<_, cuda_mem_pool::Error>(())
        })
    };
    pairs(1000)?;
    let before = allocator.told().driver_calls;
    let (started, mut done) = (Instant::now(), 0);
    while started.elapsed().as_nanos() < wanted {
        pairs(256)?;
        done += 256;
    }
    let mean = started.elapsed().as_nanos() as f64 / f64::from(done);
    let (whole, start) = (Instant::now(), ticks());
    let single = |work: &dyn Fn() -> Result<(), cuda_mem_pool::Error>| {
        let mut samples = vec![0; samples];
        for sample in &mut samples {
            let before = ticks();
            work()?;
            *sample = ticks() - before;
        }
        samples.sort_unstable();
        Ok::<_, cuda_mem_pool::Error>(samples)
    };
    let (empty, taken) = (single(&|| Ok(()))?, single(&|| pairs(1))?);
    let tick = whole.elapsed().as_nanos() as f64 / (ticks() - start) as f64;
    let at = |sorted: &[u64], percent: usize| {
        sorted.get((sorted.len() - 1) * percent / 100).map_or(0.0, |ticks| *ticks as f64 * tick)
    };
    // Without what reading the counter takes.
    let reading = at(&empty, 50);
    let mut figures =
        vec![("pair", mean), ("p50", at(&taken, 50) - reading), ("p99", at(&taken, 99) - reading)];
    let after = allocator.told().driver_calls;
    figures.extend(after.zip(before).map(|(after, before)| ("driver_calls", (after - before) as f64)));
    Ok(Answer::Figures(figures))
}

/// The processor's counter.
#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// The clock, where the processor's counter is none that programs may read.
#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    static START: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    START.elapsed().as_nanos() as u64
}

//! RMM's random-allocation benchmark: milliseconds of all of its operations, on the default stream.

use std::time::Instant;

use cuda_mem_pool::cuda_mem_core::Stream;

use super::allocator::Allocator;
use super::sequence;
use crate::protocol::{Answer, Outcome, Request};

pub(crate) fn measure<A: Allocator>(allocator: &A, stream: &Stream, request: &Request) -> Outcome {
    let (allocations, largest) = (request.number("n")?, request.number::<u64>("mib")? << 20);
    let all = || {
        sequence::run(
            allocations,
            largest,
            |bytes| allocator.allocate(bytes, stream),
            // SAFETY: allocated by the line above, freed once; no work uses it.
            |address| unsafe { allocator.free(address) },
        )
    };
    let wanted = request.number::<u128>("ms")?;
    let peak = all()?;
    let (started, mut repetitions) = (Instant::now(), 0.0);
    while repetitions == 0.0 || started.elapsed().as_millis() < wanted {
        all()?;
        repetitions += 1.0;
    }
    let time = started.elapsed().as_secs_f64() * 1e3 / repetitions;
    Ok(Answer::Figures(vec![
        ("random", time),
        ("live", peak.bytes as f64 / f64::from(1 << 20)),
        ("blocks", peak.blocks as f64),
    ]))
}

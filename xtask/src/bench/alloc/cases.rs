//! What is asked, and of whom.

use super::super::suite::{Case, size};

/// What the blocks of a thread are: a name, and what the participants know it by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pattern {
    pub(super) name: &'static str,
    number: u32,
}

pub(super) const PATTERNS: [Pattern; 3] = [
    Pattern { name: "512 B", number: 0 },
    Pattern { name: "512 B to 512 KiB", number: 1 },
    Pattern { name: "512 B to 32 MiB", number: 2 },
];

pub(super) const THREADS: [u64; 5] = [1, 2, 4, 8, 16];

/// Sizes of the hit pairs.
pub(super) const HITS: [u64; 3] = [512, 64 << 10, 2 << 20];

/// Allocations of RMM's random benchmark, and MiB of the largest of them.
pub(super) const RANDOM: [u64; 3] = [1000, 10_000, 100_000];
pub(super) const LARGEST: [u64; 6] = [1, 4, 64, 256, 1024, 4096];

/// Streams of RMM's multi-stream benchmark.
pub(super) const STREAMS: [u64; 3] = [1, 2, 4];

pub(super) const CHURNERS: &[&str] =
    &["ours", "floor", "pytorch", "cudaMallocAsync", "rmm-pool", "rmm-arena", "rmm-cuda_async"];

pub(super) const HITTERS: &[&str] =
    &["ours", "floor", "loop", "pytorch", "cudaMallocAsync", "rmm-pool", "rmm-arena", "rmm-cuda_async"];

pub(super) const REMOTE: &[&str] =
    &["ours", "pytorch", "cudaMallocAsync", "rmm-pool", "rmm-arena", "rmm-cuda_async"];

pub(super) const RANDOMISERS: &[&str] =
    &["ours", "pytorch", "rmm-cuda_async", "rmm-pool", "rmm-arena", "rmm-binning", "rmm-cuda"];

/// Those of them for whom a large benchmark is no matter of minutes.
const FAST: &[&str] = &["ours", "pytorch", "rmm-cuda_async", "rmm-pool", "rmm-arena", "rmm-binning"];

pub(super) const STREAMERS: &[&str] =
    &["ours", "pytorch", "cudaMallocAsync", "rmm-cuda_async", "rmm-pool", "rmm-arena", "rmm-binning"];

pub(super) const PRESSURE: &str = "kernel beside allocations";

pub(super) fn hit(bytes: u64) -> String {
    format!("hit, {}", size(bytes))
}

pub(super) fn churn(pattern: Pattern, threads: u64) -> String {
    format!("churn, {}, {threads} thread{}", pattern.name, if threads == 1 { "" } else { "s" })
}

pub(super) fn remote(pattern: Pattern) -> String {
    format!("free on another thread, {}", pattern.name)
}

pub(super) fn random(allocations: u64, mib: u64) -> String {
    format!("RMM random, {allocations} of up to {mib} MiB")
}

pub(super) fn streams(count: u64, prewarmed: bool) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("RMM multi-stream, {count} stream{plural}{}", if prewarmed { ", prewarmed" } else { "" })
}

pub(super) fn all(quick: bool) -> Vec<Case> {
    let case = |name, participants, request, rounds| Case {
        name,
        participants,
        request,
        // Every answer begins with a warm-up of its own, because everybody begins with nothing.
        warm_up: None,
        rounds: if quick { 2 } else { rounds },
        // Of the host.
        memory: 0,
    };
    // The steps of all threads together are those of the first pass of the benchmark whose patterns these are; who is slower than that
    // takes no longer.
    let (ms, warm, warm_ms) = if quick { (1, 1024, 4) } else { (60, 200_000, 2000) };
    let mut cases = Vec::new();
    for bytes in HITS {
        let samples = if quick { 100 } else { 20_000 };
        let request = format!("hit bytes={bytes} ms={} samples={samples}", ms.min(20));
        cases.push(case(hit(bytes), HITTERS, request, 9));
    }
    for pattern in PATTERNS {
        for threads in THREADS {
            let request = format!(
                "churn pattern={} threads={threads} ms={ms} warm={} warm_ms={warm_ms}",
                pattern.number,
                warm / threads
            );
            cases.push(case(churn(pattern, threads), CHURNERS, request, 5));
        }
    }
    for pattern in &PATTERNS[..2] {
        let (batches, warm) = if quick { (4, 1) } else { (500, 50) };
        let request = format!("remote pattern={} batches={batches} warm={warm}", pattern.number);
        cases.push(case(remote(*pattern), REMOTE, request, 7));
    }
    // The simulated device is smaller than what the larger ones have live.
    let (all_allocations, all_largest) =
        if quick { (&RANDOM[..1], &LARGEST[..2]) } else { (&RANDOM[..], &LARGEST[..]) };
    for allocations in all_allocations {
        // The largest take some resources many seconds.
        let (rounds, participants) = match allocations {
            0..=1000 => (5, RANDOMISERS),
            1001..=10_000 => (3, FAST),
            _ => (1, FAST),
        };
        for mib in all_largest {
            let request = format!("random n={allocations} mib={mib} ms={ms}");
            cases.push(case(random(*allocations, *mib), participants, request, rounds));
        }
    }
    for count in STREAMS {
        for prewarmed in [false, true] {
            // RMM's kernels spin for a million clocks.
            let (times, spin) = if quick { (2, 1000) } else { (20, 500_000) };
            let request = format!(
                "streams streams={count} kernels=4 prewarm={} times={times} spin={spin}",
                u8::from(prewarmed)
            );
            cases.push(case(streams(count, prewarmed), STREAMERS, request, 7));
        }
    }
    let request = match quick {
        true => format!("pressure bytes={} room={} launches=2 repeats=2 ballast=0", 1 << 20, 256 << 20),
        false => {
            format!("pressure bytes={} room={} launches=20 repeats=15 ballast=1", 1u64 << 30, 4u64 << 30)
        }
    };
    cases.push(case(PRESSURE.to_owned(), &["ours"], request, 5));
    cases
}

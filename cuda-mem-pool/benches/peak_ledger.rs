//! What counting a block adds to an operation, beside a flag that is taken and given back, which any heap has to do anyway.
//!
//! `cargo bench -p cuda-mem-pool --bench peak_ledger`. Prints the median and the least of interleaved rounds in
//! nanoseconds an operation, half of them allocations and half frees. It needs no GPU.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program that measures and prints")]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use cuda_mem_pool::statistics::{PeakLedger, Peaks, PoolSize, Shard};

const PAIRS: u32 = 10_000;
const ROUNDS: usize = 501;
/// Blocks that are allocated before the first of them is freed.
const RUN: u32 = 50;

static FLAG: AtomicBool = AtomicBool::new(false);

fn take_flag() {
    while FLAG.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {}
    black_box(());
    FLAG.store(false, Ordering::Release);
}

fn flags() {
    for _ in 0..PAIRS {
        take_flag();
        take_flag();
    }
}

fn allocate(shard: &Shard) {
    let bytes = black_box(4096);
    shard.hold().allocate(PoolSize::Small, bytes, bytes);
}

fn free(shard: &Shard) {
    let bytes = black_box(4096);
    shard.hold().free(PoolSize::Small, bytes, bytes);
}

fn pairs(shard: &Shard) {
    for _ in 0..PAIRS {
        allocate(shard);
        free(shard);
    }
}

fn runs(shard: &Shard) {
    for _ in 0..PAIRS / RUN {
        (0..RUN).for_each(|_| allocate(shard));
        (0..RUN).for_each(|_| free(shard));
    }
}

/// Each operation in another shard than the one before: all of them hand the activity over, if it is handed over at all.
fn alternate(one: &Shard, other: &Shard) {
    for _ in 0..PAIRS {
        allocate(one);
        free(other);
    }
}

/// The shard behind the heap's lock, with one of its own.
fn behind_a_flag(shard: &Shard) {
    for _ in 0..PAIRS {
        take_flag();
        allocate(shard);
        take_flag();
        free(shard);
    }
}

/// Nanoseconds an operation.
fn time(body: impl FnOnce()) -> f64 {
    let began = Instant::now();
    body();
    began.elapsed().as_nanos() as f64 / f64::from(2 * PAIRS)
}

/// The median and the least.
fn summary(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[0])
}

fn main() {
    // `cargo test --benches` runs it too, to see that it does.
    let rounds = if std::env::args().any(|argument| argument == "--bench") { ROUNDS } else { 1 };
    let (exact, sharded) = (PeakLedger::new(Peaks::Exact), PeakLedger::new(Peaks::Sharded));
    let (one, other) = (exact.shard(), exact.shard());
    let (first, second) = (sharded.shard(), sharded.shard());
    let cases: [(&str, &dyn Fn()); 7] = [
        ("a flag alone", &flags),
        ("pairs, the shard as the lock", &|| pairs(&one)),
        ("runs of 50, the shard as the lock", &|| runs(&one)),
        ("pairs, the shard behind a flag", &|| behind_a_flag(&one)),
        ("two shards in turn, exact", &|| alternate(&one, &other)),
        ("two shards in turn, sharded", &|| alternate(&first, &second)),
        ("pairs, sharded", &|| pairs(&first)),
    ];
    let mut times = vec![Vec::new(); cases.len()];
    for _ in 0..rounds {
        for ((_, body), times) in cases.iter().zip(&mut times) {
            times.push(time(body));
        }
    }
    let summaries: Vec<(f64, f64)> = times.into_iter().map(summary).collect();
    let (flag_median, flag_least) = summaries[0];
    println!("{:>34}  median  above the flag   least  above the flag", "ns");
    for ((name, _), (median, least)) in cases.iter().zip(summaries) {
        println!(
            "{name:>34}  {median:6.1}  {:14.1}  {least:6.1}  {:14.1}",
            median - flag_median,
            least - flag_least
        );
    }
}

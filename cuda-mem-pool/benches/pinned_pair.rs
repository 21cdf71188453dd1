//! What a cached pair of allocation and free costs, beside the least that any thread cache must do, in one run.
//!
//! `cargo bench -p cuda-mem-pool --bench pinned_pair`. Prints the median of interleaved rounds in nanoseconds a pair. It
//! needs no GPU: a cached pair makes no driver call.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a program that measures and prints")]

use std::cell::RefCell;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use cuda_mem_core::{Context, Driver};
use cuda_mem_pool::PinnedCachingAllocator;

const PAIRS: u32 = 200_000;
const ROUNDS: usize = 31;
const SIZES: [usize; 5] = [1 << 10, 60_000, 1 << 20, 5_000_001, 16 << 20];

thread_local! {
    static STACK: RefCell<Vec<usize>> = RefCell::new(vec![7]);
}
static FLAG: AtomicBool = AtomicBool::new(false);

/// Thread-local pop and push, and one uncontended atomic.
fn floor() {
    for _ in 0..PAIRS {
        FLAG.swap(true, Ordering::Acquire);
        let value = STACK.with_borrow_mut(|stack| stack.pop());
        FLAG.store(false, Ordering::Release);
        if let Some(value) = black_box(value) {
            STACK.with_borrow_mut(|stack| stack.push(value));
        }
    }
}

fn pairs(allocator: &PinnedCachingAllocator, bytes: usize) {
    for _ in 0..PAIRS {
        drop(black_box(allocator.allocate(black_box(bytes)).unwrap()));
    }
}

/// Nanoseconds a pair.
fn time(body: impl FnOnce()) -> f64 {
    let began = Instant::now();
    body();
    began.elapsed().as_nanos() as f64 / f64::from(PAIRS)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn context() -> Context {
    let driver = Driver::system().or_else(|_| Driver::over(cuda_mem_sim::table())).unwrap();
    driver.device(0).unwrap().primary_context().unwrap()
}

fn main() {
    // `cargo test --benches` runs it too, to see that it does.
    let rounds = if std::env::args().any(|argument| argument == "--bench") { ROUNDS } else { 1 };
    let allocator = PinnedCachingAllocator::new(&context());
    let mut floors = Vec::new();
    let mut times = vec![Vec::new(); SIZES.len()];
    for _ in 0..rounds {
        floors.push(time(floor));
        for (bytes, times) in SIZES.iter().zip(&mut times) {
            times.push(time(|| pairs(&allocator, *bytes)));
        }
    }
    let floor = median(floors);
    println!("{:>12}  {floor:6.1} ns", "floor");
    for (bytes, times) in SIZES.iter().zip(times) {
        let median = median(times);
        println!("{bytes:>12}  {median:6.1} ns, {:.1} above the floor", median - floor);
    }
}

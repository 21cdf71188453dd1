//! One allocation and its free, from a cache that has the block.

use std::cell::RefCell;
use std::error::Error;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use cuda_mem_pool::PinnedCachingAllocator;

use crate::machine::Machine;
use crate::protocol::{Answer, Outcome, Request};

/// The allocator, kept from one round to the next.
pub(crate) struct Pairs {
    allocator: PinnedCachingAllocator,
}

impl Pairs {
    pub(crate) fn new(machine: &Machine) -> Self {
        Self { allocator: PinnedCachingAllocator::new(&machine.context) }
    }

    pub(crate) fn measure(&self, request: &Request) -> Outcome {
        let (threads, pairs, bytes) =
            (request.number("threads")?, request.number("pairs")?, request.number("bytes")?);
        let ours = || match self.allocator.allocate(black_box(bytes)) {
            Ok(block) => {
                drop(black_box(block));
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        };
        let nanoseconds = match request.participant.as_str() {
            "ours" => in_threads(threads, pairs, ours)?,
            "floor" => in_threads(threads, pairs, || {
                floor();
                Ok(())
            })?,
            other => return Err(format!("{other} has no cache").into()),
        };
        Ok(Answer::Figures(vec![("pair", nanoseconds)]))
    }
}

/// Mean nanoseconds of one pair in one thread, while all of them work.
fn in_threads(
    threads: usize,
    pairs: u32,
    pair: impl Fn() -> Result<(), String> + Sync,
) -> Result<f64, Box<dyn Error>> {
    let start = Barrier::new(threads);
    let one = || {
        // The thread's own cache gets its block.
        (0..pairs.min(100)).try_for_each(|_| pair())?;
        start.wait();
        let started = Instant::now();
        (0..pairs).try_for_each(|_| pair())?;
        Ok(started.elapsed().as_nanos() as f64 / f64::from(pairs))
    };
    if threads == 1 {
        return Ok(one()?);
    }
    let times: Result<Vec<f64>, String> = thread::scope(|scope| {
        let workers = (0..threads).map(|_| scope.spawn(one)).collect::<Vec<_>>();
        let results =
            workers.into_iter().map(|worker| worker.join().map_err(|_| "a thread died".to_owned())?);
        results.collect()
    });
    Ok(times?.iter().sum::<f64>() / threads as f64)
}

/// What no cache can do without: a block from the thread's own list and back, and one count that others may read.
fn floor() {
    thread_local! {
        static BLOCKS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
        static COUNT: AtomicU64 = const { AtomicU64::new(0) };
    }
    let block = BLOCKS.with_borrow_mut(Vec::pop).unwrap_or(4096);
    COUNT.with(|count| count.fetch_add(1, Ordering::Relaxed));
    BLOCKS.with_borrow_mut(|blocks| blocks.push(black_box(block)));
}

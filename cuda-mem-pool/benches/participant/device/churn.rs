//! 64 live blocks a thread; a step frees one of them and allocates another.

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Instant;

use cuda_mem_pool::cuda_mem_core::Stream;

use super::allocator::{Allocator, Told};
use super::sizes::{self, SIZES};
use super::team::in_threads;
use crate::protocol::{Answer, Outcome, Request};

const LIVE: usize = 64;

/// One thread's blocks.
struct Churner<'a, A: Allocator> {
    allocator: &'a A,
    stream: &'a Stream,
    sizes: Vec<usize>,
    /// Addresses; 0 for none.
    live: [u64; LIVE],
    bytes: [usize; LIVE],
    step: usize,
}

impl<A: Allocator> Churner<'_, A> {
    fn steps(&mut self, count: usize) -> Result<(), String> {
        for step in self.step..self.step + count {
            let slot = (step * 29) % LIVE;
            self.free(slot);
            let bytes = self.sizes[step % SIZES];
            self.bytes[slot] = bytes;
            self.live[slot] =
                self.allocator.allocate(bytes, self.stream).map_err(|error| error.to_string())?;
        }
        self.step += count;
        Ok(())
    }

    #[inline(always)]
    fn free(&mut self, slot: usize) {
        let address = std::mem::take(&mut self.live[slot]);
        if address != 0 {
            // SAFETY: allocated in `steps`, freed once; no work uses it.
            unsafe { self.allocator.free(address) };
        }
    }

    /// Bytes that are live, each block rounded up to 512.
    fn live(&self) -> i64 {
        let blocks = self.live.iter().zip(&self.bytes).filter(|(address, _)| **address != 0);
        blocks.map(|(_, bytes)| bytes.next_multiple_of(512) as i64).sum()
    }
}

impl<A: Allocator> Drop for Churner<'_, A> {
    fn drop(&mut self) {
        (0..LIVE).for_each(|slot| self.free(slot));
    }
}

/// Nanoseconds of one free and one allocation, the mean of all threads, each with a stream of its own.
pub(crate) fn measure<A: Allocator>(allocator: &A, streams: &[Stream], request: &Request) -> Outcome {
    let (threads, pattern) = (request.number::<usize>("threads")?, request.number("pattern")?);
    let (warm, wanted) = (request.number::<usize>("warm")?, request.number::<u128>("ms")? * 1_000_000);
    let enough_warm = request.number::<u128>("warm_ms")? * 1_000_000;
    if threads > streams.len() {
        return Err(format!("{threads} threads are more than {} streams", streams.len()).into());
    }
    let (live, most) = (AtomicI64::new(0), AtomicI64::new(0));
    let enough = AtomicBool::new(false);
    let results = in_threads(threads, |index, team| {
        let mut churner = Churner {
            allocator,
            stream: &streams[index],
            sizes: sizes::of_thread(index as u32, pattern),
            live: [0; LIVE],
            bytes: [0; LIVE],
            step: 0,
        };
        // Every size twice at least; who is slow does not take longer than it has to.
        let started = Instant::now();
        while churner.step < warm && (churner.step < 2 * SIZES || started.elapsed().as_nanos() < enough_warm)
        {
            churner.steps(64)?;
        }
        // The clock is looked at seldom enough to cost nothing, and often enough that all end together.
        let piece = if started.elapsed().as_nanos() / churner.step as u128 > 2000 { 16 } else { 256 };
        team.meet()?;
        let before = allocator.told().driver_calls;
        team.meet()?;
        let (started, mut done) = (Instant::now(), 0);
        // Whoever comes last to a busy machine works too.
        while done == 0 || !enough.load(Ordering::Relaxed) {
            churner.steps(piece)?;
            done += piece;
            if started.elapsed().as_nanos() >= wanted {
                enough.store(true, Ordering::Relaxed);
            }
        }
        let time = started.elapsed().as_nanos() as f64 / done as f64;
        team.meet()?;
        let calls = allocator.told().driver_calls.zip(before).map(|(after, before)| after - before);
        team.meet()?;
        // What is live at once, counted for as long again: the threads' peaks meet seldom.
        let (started, mut mine, mut step) = (Instant::now(), 0, 0);
        while step < 2 * SIZES || started.elapsed().as_nanos() < wanted {
            churner.steps(1)?;
            step += 1;
            let now = churner.live();
            let all = live.fetch_add(now - mine, Ordering::Relaxed) + now - mine;
            mine = now;
            most.fetch_max(all, Ordering::Relaxed);
        }
        team.meet()?;
        Ok((time, calls))
    })?;
    let most = most.load(Ordering::Relaxed) as f64;
    let mut figures = vec![
        ("op", results.iter().map(|(time, _)| time).sum::<f64>() / threads as f64),
        ("live", most / f64::from(1 << 20)),
    ];
    // All of them saw the same calls.
    figures.extend(results[0].1.map(|calls| ("driver_calls", calls as f64)));
    let Told { reserved, metadata, .. } = allocator.told();
    figures.extend(reserved.map(|reserved| ("reserved", reserved as f64 / most)));
    figures.extend(reserved.zip(metadata).map(|(all, bytes)| ("metadata", bytes as f64 / all as f64)));
    Ok(Answer::Figures(figures))
}

//! One thread allocates, another frees: nanoseconds of each side, without its waiting for the other.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use cuda_mem_pool::cuda_mem_core::Stream;

use super::allocator::Allocator;
use super::sizes;
use super::team::in_threads;
use crate::protocol::{Answer, Outcome, Request};

/// Blocks that change hands at once.
const BATCH: usize = 64;

/// Batches that may be on their way.
const DEPTH: usize = 16;

/// How many batches a side has done, on a cache line of its own.
#[repr(align(64))]
struct Done(AtomicUsize);

pub(crate) fn measure<A: Allocator>(allocator: &A, stream: &Stream, request: &Request) -> Outcome {
    let (batches, warm) = (request.number::<usize>("batches")?, request.number::<usize>("warm")?);
    let sizes = sizes::of_thread(0, request.number("pattern")?);
    let blocks = (0..DEPTH * BATCH).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    let (filled, emptied) = (Done(AtomicUsize::new(0)), Done(AtomicUsize::new(0)));
    let times = in_threads(2, |index, team| {
        let mut nanoseconds = 0;
        for batch in 0..warm + batches {
            let must_wait = || match index {
                0 => batch - emptied.0.load(Ordering::Acquire) >= DEPTH,
                _ => filled.0.load(Ordering::Acquire) == batch,
            };
            while must_wait() {
                team.wait()?;
            }
            let mine = &blocks[batch % DEPTH * BATCH..][..BATCH];
            let started = Instant::now();
            if index == 0 {
                for (block, bytes) in mine.iter().zip(&sizes[batch * BATCH % sizes.len()..]) {
                    let address = allocator.allocate(*bytes, stream).map_err(|error| error.to_string())?;
                    block.store(address, Ordering::Relaxed);
                }
            } else {
                for block in mine {
                    // SAFETY: allocated by the other thread, which has handed it over; freed once, no work uses it.
                    unsafe { allocator.free(block.load(Ordering::Relaxed)) };
                }
            }
            if batch >= warm {
                nanoseconds += started.elapsed().as_nanos();
            }
            let done = if index == 0 { &filled } else { &emptied };
            done.0.store(batch + 1, Ordering::Release);
        }
        Ok(nanoseconds as f64 / (batches * BATCH) as f64)
    })?;
    Ok(Answer::Figures(vec![("remote_alloc", times[0]), ("remote_free", times[1])]))
}

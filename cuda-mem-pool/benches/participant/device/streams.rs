//! RMM's multi-stream benchmark: microseconds of kernels on several streams, each with a buffer that is freed behind it.

use std::time::Instant;

use cuda_mem_pool::cuda_mem_core::Stream;

use super::allocator::Allocator;
use super::kernels::Kernels;
use crate::machine::Machine;
use crate::protocol::{Answer, Outcome, Request};

pub(crate) fn measure<A: Allocator>(
    allocator: &A,
    streams: &[Stream],
    kernels: &Kernels,
    machine: &Machine,
    request: &Request,
) -> Outcome {
    let (count, each) = (request.number::<usize>("streams")?, request.number::<usize>("kernels")?);
    let (times, spin) = (request.number::<u32>("times")?, request.number("spin")?);
    let kernel = kernels.find(c"spin_ns")?;
    let streams =
        streams.get(..count).filter(|streams| !streams.is_empty()).ok_or("there are not so many streams")?;
    if request.number::<u32>("prewarm")? == 1 {
        let buffers = streams.iter().map(|stream| allocator.allocate(8, stream));
        for buffer in buffers.collect::<Result<Vec<_>, _>>()? {
            // SAFETY: allocated above, freed once; no work uses it.
            unsafe { allocator.free(buffer) };
        }
    }
    machine.context.synchronize()?;
    let started = Instant::now();
    for _ in 0..times {
        for stream in streams.iter().cycle().take(each) {
            let buffer = allocator.allocate(8, stream)?;
            // SAFETY: the kernel's own parameter; it touches no memory.
            unsafe { kernels.launch(stream, kernel, [1, 1], &[spin])? };
            // SAFETY: allocated above, freed once; no work uses it.
            unsafe { allocator.free(buffer) };
        }
        machine.context.synchronize()?;
    }
    let microseconds = started.elapsed().as_secs_f64() * 1e6 / f64::from(times);
    Ok(Answer::Figures(vec![("streams", microseconds)]))
}

//! Copy rates over the link: memory registered in place against memory that the driver allocated, and pageable memory.
//!
//! For a GPU: `cargo bench -p cuda-mem-core --bench link`. On the simulated driver it runs, and its figures mean nothing. The
//! prediction when this was written: registered memory reaches 0.98 of allocated memory from 16 MiB on, in both directions.

#![allow(clippy::print_stdout, reason = "a benchmark reports on its standard output")]

use std::time::{Duration, Instant};

use cuda_mem_core::host::{PinnedFlags, RegisterFlags, Registered};
use cuda_mem_core::{DeviceBuffer, Driver, PinnedBuffer, Result, Stream};

const ROUNDS: usize = 15;

fn main() -> Result<()> {
    let driver = Driver::system().or_else(|_| Driver::over(cuda_mem_sim::table()))?;
    let device = driver.device(0)?;
    let context = device.primary_context()?;
    let stream = Stream::new(&context)?;
    println!("{}, CUDA {}; medians of {ROUNDS} interleaved rounds, GB/s", device.name()?, driver.version());
    println!(
        "{:>10} {:>9} {:>12} {:>12} {:>10} {:>8}",
        "bytes", "direction", "registered", "allocated", "pageable", "ratio"
    );
    for bytes in [1usize << 20, 16 << 20, 256 << 20] {
        let device = DeviceBuffer::<u8>::zeroed(&stream, bytes)?;
        let mut registered = Registered::new(&context, vec![1u8; bytes], RegisterFlags::default())?;
        let mut allocated = PinnedBuffer::<u8>::zeroed(&context, bytes, PinnedFlags::default())?;
        let mut pageable = vec![1u8; bytes];
        let mut up: [Vec<Duration>; 3] = Default::default();
        let mut down: [Vec<Duration>; 3] = Default::default();
        // Interleaved, so that whatever slows the machine for a while slows all three.
        for round in 0..=ROUNDS {
            let uploads = [
                timed(|| device.copy_from_slice(&stream, registered.as_slice()?))?,
                timed(|| device.copy_from_slice(&stream, allocated.as_slice()?))?,
                timed(|| device.copy_from_slice(&stream, &pageable))?,
            ];
            let downloads = [
                timed(|| device.copy_to_slice(&stream, registered.as_mut_slice()?))?,
                timed(|| device.copy_to_slice(&stream, allocated.as_mut_slice()?))?,
                timed(|| device.copy_to_slice(&stream, &mut pageable))?,
            ];
            // The first round warms up.
            if round > 0 {
                up.iter_mut().zip(uploads).for_each(|(times, time)| times.push(time));
                down.iter_mut().zip(downloads).for_each(|(times, time)| times.push(time));
            }
        }
        for (direction, times) in [("H2D", up), ("D2H", down)] {
            let [registered, allocated, pageable] = times.map(|times| rate(bytes, times));
            let ratio = registered / allocated;
            println!(
                "{bytes:>10} {direction:>9} {registered:>12.2} {allocated:>12.2} {pageable:>10.2} {ratio:>8.3}"
            );
        }
    }
    Ok(())
}

fn timed(copy: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let start = Instant::now();
    copy()?;
    Ok(start.elapsed())
}

/// GB/s of the median time.
fn rate(bytes: usize, mut times: Vec<Duration>) -> f64 {
    times.sort();
    bytes as f64 / times[times.len() / 2].as_secs_f64() / 1e9
}

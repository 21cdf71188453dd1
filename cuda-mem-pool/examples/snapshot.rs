//! Writes a snapshot of the caching allocator, to be opened with `python -m torch.cuda._memory_viz`,
//! <https://pytorch.org/memory_viz> or `cargo xtask report`.
//!
//! `cargo run -p cuda-mem-pool --example snapshot FILE`. It takes a GPU if there is one and the simulated driver if not.
//! What happens is made up: two streams with blocks of all sizes, memory that moves from one to the other, a request that fails.
//! In the end it says what the allocator's statistics are, a `key=value` a line.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]

use std::error::Error;
use std::fs::File;
use std::io::BufWriter;
use std::path::PathBuf;

use cuda_mem_core::{Driver, Stream};
use cuda_mem_pool::MemoryResource;
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::history::{HistoryOptions, RecordContext, backtrace, set_user_metadata};

/// All that the allocator may hold.
const LIMIT: usize = 256 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(path), None) = (arguments.next(), arguments.next()) else {
        eprintln!("usage: snapshot FILE");
        return Err("one file has to be named".into());
    };
    let driver = match Driver::system() {
        Ok(driver) => driver,
        Err(reason) => {
            println!("# on the simulated driver ({reason})");
            Driver::over(cuda_mem_sim::table())?
        }
    };
    let context = driver.device(0)?.primary_context()?;
    let (compute, copies) = (Stream::new(&context)?, Stream::new(&context)?);
    let fraction = LIMIT as f64 / context.device().total_memory()? as f64;
    let options = CachingOptions::default().with_memory_fraction(fraction);
    let allocator = CachingAllocator::new(&context, &options)?;
    allocator.history().start(&HistoryOptions::default().with_frames(RecordContext::Alloc, backtrace));

    set_user_metadata(Some("forward"));
    let weights = allocator.allocate(40_000_000, &compute)?;
    let bias = allocator.allocate(500, &compute)?;
    let batch = allocator.allocate(300_000, &copies)?;
    let activations: Vec<_> =
        (1..=8).map(|layer| allocator.allocate(layer * 3_000_000, &compute)).collect::<Result<_, _>>()?;
    set_user_metadata(Some("backward"));
    drop(activations);
    // More than what is left: memory that was for activations moves to the other stream.
    let next = allocator.allocate(150_000_000, &copies)?;
    if let Err(reason) = allocator.allocate(1 << 30, &compute) {
        println!("# {reason}");
    }
    // The compute stream works on the batch: freed, it waits until somebody finds that done.
    allocator.record_stream(batch.address(), &compute)?;
    drop(batch);

    let statistics = allocator.statistics();
    allocator.snapshot().write_pickle(BufWriter::new(File::create(path)?))?;
    let peaks = [statistics.allocated_bytes, statistics.active_bytes, statistics.reserved_bytes]
        .map(|figure| figure.all.peak);
    for (key, value) in
        ["allocated_bytes.peak", "active_bytes.peak", "reserved_bytes.peak"].into_iter().zip(peaks)
    {
        println!("{key}={value}");
    }
    println!("allocation.allocated={}", statistics.allocation.all.allocated);
    println!("num_ooms={}", statistics.num_ooms);
    drop((weights, bias, next));
    Ok(())
}

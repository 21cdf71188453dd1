//! Ranks that read each other's symmetric buffers, verify every byte, and tell what it took.
//!
//! ```text
//! cargo run --release -p cuda-mem-ipc --example ranks -- [RANKS [MIB]]
//! ```
//!
//! Each rank is a process, started by the first one. It takes GPUs if there are any and the simulated driver if not, and says which.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command-line program")]

use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use cuda_mem_core::{DeviceBuffer, Driver, Stream, StreamUse, copy};
use cuda_mem_ipc::symmetric::{Backends, DeviceType, Group, GroupOptions, NativeBackend, SymmetricMemory};

/// What ends the program early, in words for its user.
type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

const NAME: &str = "ranks";
const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
/// Rounds that times are medians of.
const ROUNDS: usize = 51;

/// Names the rank, in the processes that are started.
const RANK: &str = "CUDA_MEM_EXAMPLE_RANK";
const DIRECTORY: &str = "CUDA_MEM_EXAMPLE_DIRECTORY";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ranks: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut numbers = Vec::new();
    for argument in std::env::args().skip(1) {
        numbers.push(argument.parse::<usize>().map_err(|_| "usage: ranks [RANKS [MIB]]")?);
    }
    let (ranks, mib) = match numbers[..] {
        [] => (2, 64),
        [ranks] => (ranks, 64),
        [ranks, mib] => (ranks, mib),
        _ => return Err("usage: ranks [RANKS [MIB]]".into()),
    };
    if let (Some(directory), Ok(rank)) = (std::env::var_os(DIRECTORY), std::env::var(RANK)) {
        return be(rank.parse()?, ranks, mib, directory.as_ref());
    }
    let directory = std::env::temp_dir().join(format!("cuda-mem-ranks-{}", std::process::id()));
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args([ranks.to_string(), mib.to_string()]);
        command.env(RANK, rank.to_string()).env(DIRECTORY, &directory).spawn()
    };
    let others = (1..ranks).map(start).collect::<std::io::Result<Vec<Child>>>()?;
    let result = be(0, ranks, mib, &directory);
    for mut other in others {
        if result.is_err() {
            other.kill()?;
        }
        let status = other.wait()?;
        if result.is_ok() && !status.success() {
            return Err(format!("another rank failed: {status}").into());
        }
    }
    std::fs::remove_dir_all(&directory).ok();
    result
}

/// One rank's life.
fn be(rank: usize, ranks: usize, mib: usize, directory: &Path) -> Result<()> {
    let (driver, simulated) = match Driver::system() {
        Ok(driver) if driver.device_count()? > 0 => (driver, false),
        _ => (Driver::over(cuda_mem_sim::table())?, true),
    };
    let devices = driver.devices()?;
    let context = devices[rank % devices.len()].primary_context()?;
    let stream = Stream::new(&context)?;
    let say = |what: &str, time: Duration| {
        if rank == 0 {
            println!("{what:<44} {:>12.1} us", time.as_secs_f64() * 1e6);
        }
    };
    if rank == 0 {
        let count = devices.len().min(ranks);
        let kind = if simulated { " (simulated)" } else { "" };
        println!("{ranks} ranks on {count} x {}{kind}", context.device().name()?);
    }

    let start = Instant::now();
    let group = Group::join(&context, NAME, rank, ranks, directory, &GroupOptions::default())?;
    say("the ranks come together", start.elapsed());
    let backends = Backends::new();
    let native = std::sync::Arc::new(NativeBackend::new());
    native.add_group(&group)?;
    backends.register(DeviceType::CUDA, native)?;

    let bytes = mib << 20;
    let (next, device) = ((rank + 1) % ranks, context.device());
    let start = Instant::now();
    let buffer = backends.empty(bytes, device, Some(NAME))?;
    let memory = buffer.rendezvous(None)?;
    say("a new segment, allocated and brought together", start.elapsed());

    let mut times = Vec::new();
    let mut small = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let buffer = backends.empty(4096, device, Some(NAME))?;
        let allocated = start.elapsed();
        meet(&*memory, &stream)?; // so that no rank waits for another one's allocation
        let start = Instant::now();
        let memory = buffer.rendezvous(None)?;
        times.push(allocated + start.elapsed());
        small.push((buffer, memory));
    }
    say("4 KiB in a segment that is mapped", median(times));

    let source = DeviceBuffer::from_slice(&stream, &pattern(rank, bytes))?;
    copy_between(&stream, memory.get_buffer(rank, 0..bytes)?.on(&stream)?, source.on_read(&stream)?, bytes)?;
    meet(&*memory, &stream)?;
    let target = DeviceBuffer::<u8>::zeroed(&stream, bytes)?;
    copy_between(&stream, target.on(&stream)?, memory.get_buffer(next, 0..bytes)?.on(&stream)?, bytes)?;
    if target.to_vec(&stream)? != pattern(next, bytes) {
        return Err(format!("rank {rank} reads something else from rank {next} than was written").into());
    }
    meet(&*memory, &stream)?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        memory.barrier(&stream, 1, LIMIT)?;
        stream.synchronize()?;
        times.push(start.elapsed());
    }
    memory.check()?;
    say("a barrier, waited for by the host", median(times));
    println!("rank {rank} has read {mib} MiB of rank {next}: every byte is right");
    meet(&*memory, &stream)
}

/// All ranks have come here.
fn meet(memory: &dyn SymmetricMemory, stream: &Stream) -> Result<()> {
    memory.barrier(stream, 0, LIMIT)?;
    stream.synchronize()?;
    Ok(memory.check()?)
}

fn copy_between(stream: &Stream, target: StreamUse<'_>, source: StreamUse<'_>, bytes: usize) -> Result<()> {
    // SAFETY: callers pass two pieces of memory that have as many bytes, whose owners know of the stream.
    Ok(unsafe { copy::memcpy_async(stream, target.address(), source.address(), bytes) }?)
}

/// Bytes that tell the ranks apart.
fn pattern(rank: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index / 7 + 31 * rank) as u8).collect()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

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

use cuda_mem_core::{DeviceBuffer, Driver, Stream};
use cuda_mem_ipc::symmetric::{Group, GroupOptions};

/// What ends the program early, in words for its user.
type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

const NAME: &str = "ranks";
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
    let (bytes, next) = (mib << 20, (rank + 1) % ranks);
    let start = Instant::now();
    let buffer = group.alloc::<u8>(bytes)?;
    say("a new segment, allocated and brought together", start.elapsed());

    let mut times = Vec::new();
    let mut small = Vec::new();
    for _ in 0..ROUNDS {
        meet(&group, &stream)?; // so that no rank waits long for another one's allocation
        let start = Instant::now();
        small.push(group.alloc::<u8>(4096)?);
        times.push(start.elapsed());
    }
    say("4 KiB in a segment that is mapped", median(times));

    buffer.of(rank)?.as_range()?.copy_from_slice(&stream, &pattern(rank, bytes))?;
    meet(&group, &stream)?;
    let target = DeviceBuffer::<u8>::zeroed(&stream, bytes)?;
    target.whole().copy_from(&stream, &buffer.of(next)?.as_range()?)?;
    if target.to_vec(&stream)? != pattern(next, bytes) {
        return Err(format!("rank {rank} reads something else from rank {next} than was written").into());
    }
    meet(&group, &stream)?;
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        meet(&group, &stream)?;
        times.push(start.elapsed());
    }
    say("a barrier, waited for by the host", median(times));
    println!("rank {rank} has read {mib} MiB of rank {next}: every byte is right");
    meet(&group, &stream)
}

/// All ranks have come here.
fn meet(group: &Group, stream: &Stream) -> Result<()> {
    group.barrier(stream)?;
    stream.synchronize()?;
    Ok(group.check()?)
}

/// Bytes that tell the ranks apart.
fn pattern(rank: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| (index / 7 + 31 * rank) as u8).collect()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

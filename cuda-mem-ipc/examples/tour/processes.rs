//! Memory in two processes: a buffer that another one gets and gives back, and ranks that read each other's. The other process is
//! this program, started again.

use std::env;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cuda_mem_core::{Context, DeviceBuffer, DeviceRange, Stream};
use cuda_mem_ipc::shared::{Exporter, Importer, SharedPool, SharedPoolOptions};
use cuda_mem_ipc::symmetric::{Group, GroupOptions};
use cuda_mem_ipc::transport::{PeerPolicy, Pending, pair};

use crate::{Result, driver, report};

/// What the other process is, in its environment.
const ROLE: &str = "CUDA_MEM_TOUR_ROLE";
/// Where the ranks meet.
const DIRECTORY: &str = "CUDA_MEM_TOUR_DIRECTORY";

const BYTES: usize = 16 << 20;
/// Rounds that are timed: the first by itself, the others by their median.
const ROUNDS: usize = 21;
const LIMIT: Duration = Duration::from_secs(60);
const RANKS: &str = "tour";

/// Whether this is the other process, which is done then.
pub(crate) fn play() -> Result<bool> {
    match env::var(ROLE).as_deref() {
        Ok("importer") => import()?,
        Ok("rank") => drop(rank(1, Path::new(&env::var_os(DIRECTORY).unwrap_or_default()))?),
        _ => return Ok(false),
    }
    Ok(true)
}

pub(crate) fn show(context: &Context) -> Result<()> {
    hand_over(context)?;
    ranks()
}

/// Gives a buffer away and has it back, again and again.
fn hand_over(context: &Context) -> Result<()> {
    let (here, there) = pair()?;
    let mut other = start("importer", |command| command.stdin(there))?;
    let stream = Stream::new(context)?;
    let exporter = Exporter::new(context, here.complete(&PeerPolicy::default(), LIMIT)?, LIMIT)?;
    let pool = SharedPool::new(context, &SharedPoolOptions::default())?;
    let buffer = pool.allocate(BYTES, &stream)?;
    buffer.as_range()?.copy_from_slice(&stream, &pattern(1))?;
    let mut times = Vec::new();
    for _ in 0..=ROUNDS {
        stream.synchronize()?;
        let start = Instant::now();
        exporter.hand_over(&buffer, &stream, LIMIT)?;
        while exporter.leases() > 0 {
            // One that has ended gives back as well, and may end before its last release is heard.
            if start.elapsed() > LIMIT {
                return Err("the other process did not give the buffer back".into());
            }
            std::hint::spin_loop();
        }
        times.push(start.elapsed());
    }
    // In the last round the other process has looked at all of it.
    times.pop();
    // Behind what the other process has written.
    expect(&stream, &buffer.as_range()?, 2, "came back from the other process")?;
    drop(exporter);
    let first = times.remove(0);
    println!(
        "handed    {} to process {} and back, nothing copied: {} with the mapping, {} from then on",
        report::bytes(BYTES),
        other.id(),
        report::microseconds(first),
        report::microseconds(median(times))
    );
    finish(&mut other)
}

/// Looks at what it gets, and writes something else into it.
fn import() -> Result<()> {
    let context = driver()?.0.device(0)?.primary_context()?;
    let there: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned()?;
    let connection = Pending::inherited(there)?.complete(&PeerPolicy::default(), LIMIT)?;
    let stream = Stream::new(&context)?;
    let source = DeviceBuffer::from_slice(&stream, &pattern(2))?;
    // The exporter waits for this, and its clock starts behind it.
    let importer = Importer::new(&context, connection, LIMIT)?;
    for round in 0..=ROUNDS {
        let buffer = importer.recv(LIMIT)?;
        if round == ROUNDS {
            expect(&stream, &buffer.as_range()?, 1, "was handed over")?;
            buffer.as_range()?.copy_from(&stream, &source.whole())?;
        }
    }
    // What has gone back behind work that is not done is lost with the process.
    Ok(stream.synchronize()?)
}

/// Two ranks, each on a device if there are as many.
fn ranks() -> Result<()> {
    let directory = env::temp_dir().join(format!("cuda-mem-tour-ranks-{}", std::process::id()));
    let mut other = start("rank", |command| command.env(DIRECTORY, &directory))?;
    let result = rank(0, &directory);
    if result.is_err() {
        other.kill()?;
    }
    let finished = finish(&mut other);
    // It is gone with the ranks, or the next run has another one.
    let _ = std::fs::remove_dir_all(&directory);
    let (time, devices) = result?;
    finished?;
    println!(
        "ranks     2 on {devices} device{}, each has read the other's {} of symmetric memory: {} GB/s",
        if devices > 1 { "s" } else { "" },
        report::bytes(BYTES),
        report::rate(BYTES, time)
    );
    println!("verified  {BYTES} bytes, in both processes each, all as they were written");
    Ok(())
}

/// One rank's life: how long its read of the other's buffer took, and on how many devices they are.
fn rank(rank: usize, directory: &Path) -> Result<(Duration, usize)> {
    let devices = driver()?.0.devices()?;
    let device = *devices.get(rank).or(devices.first()).ok_or("no device")?;
    let context = device.primary_context()?;
    let stream = Stream::new(&context)?;
    let group = Group::join(&context, RANKS, rank, 2, directory, &GroupOptions::default())?;
    let buffer = group.alloc::<u8>(BYTES)?;
    buffer.of(rank)?.as_range()?.copy_from_slice(&stream, &pattern(rank))?;
    meet(&group, &stream)?;
    let theirs = buffer.of(1 - rank)?;
    let target = DeviceBuffer::<u8>::zeroed(&stream, BYTES)?;
    stream.synchronize()?;
    let start = Instant::now();
    target.whole().copy_from(&stream, &theirs.as_range()?)?;
    stream.synchronize()?;
    let time = start.elapsed();
    if target.to_vec(&stream)? != pattern(1 - rank) {
        return Err(format!("rank {rank} reads something else than rank {} wrote", 1 - rank).into());
    }
    meet(&group, &stream)?;
    Ok((time, devices.len().min(2)))
}

/// Both ranks have come here.
fn meet(group: &Group, stream: &Stream) -> Result<()> {
    group.barrier(stream)?;
    stream.synchronize()?;
    Ok(group.check()?)
}

fn start(role: &str, how: impl FnOnce(&mut Command) -> &mut Command) -> Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command.env(ROLE, role).stdin(Stdio::null());
    Ok(how(&mut command).spawn()?)
}

fn finish(other: &mut Child) -> Result<()> {
    let status = other.wait()?;
    if status.success() { Ok(()) } else { Err(format!("the other process failed: {status}").into()) }
}

/// Compares what is there with a pattern.
fn expect(stream: &Stream, source: &DeviceRange<'_, u8>, seed: usize, what: &str) -> Result<()> {
    let mut bytes = vec![0; BYTES];
    source.copy_to_slice(stream, &mut bytes)?;
    if bytes == pattern(seed) { Ok(()) } else { Err(format!("other bytes {what}").into()) }
}

/// Bytes that tell the processes apart.
fn pattern(seed: usize) -> Vec<u8> {
    let bytes = (0..2048).map(|index| (index / 7 + 31 * seed) as u8).collect::<Vec<_>>();
    bytes.repeat(BYTES / bytes.len())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

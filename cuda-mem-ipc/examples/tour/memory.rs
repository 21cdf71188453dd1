//! The allocations of a training run, made again.

use std::collections::HashMap;
use std::io::Read;

use cuda_mem_core::{Device, Driver, Stream};
use cuda_mem_pool::caching::{CachingAllocator, CachingOptions};
use cuda_mem_pool::history::HistoryOptions;
use cuda_mem_pool::snapshot::Snapshot;
use cuda_mem_pool::trace::{Action, Trace};
use cuda_mem_pool::{Allocation, DeviceAccessible, MemoryResource};
use cuda_mem_sim::Sim;

use crate::{Result, report};

/// A graph network on samples of different sizes, for which PyTorch reserves the most beside what it uses.
const TRACE: (&str, &[u8]) = ("gnn_sampling", include_bytes!("../../../ci/traces/gnn_sampling.csv.gz"));

/// What a replay left, and what PyTorch reserved at most for the same work, by the name of the allocator, in bytes.
pub(crate) struct Replayed {
    pub(crate) snapshot: Snapshot,
    pub(crate) references: Vec<(&'static str, u64)>,
}

/// As [`replay`], on a simulated device whose memory has no bytes: the run takes more than a host may have to spare.
pub(crate) fn replay_without_bytes() -> Result<Replayed> {
    let simulator = Sim::builder().no_data().build();
    replay(Driver::over(simulator.table())?.device(0)?)
}

/// Replays the trace and tells what was reserved. What there was in the end.
pub(crate) fn replay(device: Device) -> Result<Replayed> {
    let (name, packed) = TRACE;
    let mut text = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut text)?;
    let trace = Trace::read(&*text)?;
    let divisor = divisor(&trace, device)?;
    let divided = if divisor > 1 { format!(", sizes divided by {divisor}") } else { String::new() };
    println!("trace     {name}, {} events of a training run{divided}", trace.events.len());

    let context = device.primary_context()?;
    let stream = Stream::new(&context)?;
    let allocator = CachingAllocator::new(&context, &CachingOptions::default())?;
    allocator.history().start(&HistoryOptions::default());
    let mut live: HashMap<u64, Allocation<DeviceAccessible>> = HashMap::new();
    for event in &trace.events {
        match event.action {
            Action::Allocate { size } => {
                let bytes = usize::try_from((size / divisor).max(1))?;
                live.insert(event.id, allocator.allocate(bytes, &stream)?);
            }
            // It goes back in the order of its stream.
            Action::Free => drop(live.remove(&event.id)),
            // This run has one stream.
            Action::Complete => {}
        }
    }
    let statistics = allocator.statistics();
    let (active, reserved) = (statistics.active_bytes.all.peak, statistics.reserved_bytes.all.peak);
    println!("in use    {} at most, in {} blocks", bytes(active)?, statistics.active.all.peak);
    println!(
        "reserved  {:.3} times as much by the caching allocator: {}",
        over(reserved, active),
        bytes(reserved)?
    );
    println!("          {}", pytorch(&trace)?);
    Ok(Replayed { snapshot: allocator.snapshot(), references: references(&trace, divisor)? })
}

/// What PyTorch reserved for the run when it was recorded.
fn pytorch(trace: &Trace) -> Result<String> {
    let figure = |key: &str| -> Result<f64> {
        trace.number(key)?.ok_or_else(|| format!("the trace does not tell {key}").into())
    };
    let used = figure("alloc_peak")?;
    Ok(format!(
        "{:.3} times by PyTorch's own in that run, {:.3} with expandable segments, {:.3} with cudaMallocAsync",
        figure("native_reserved_peak")? / used,
        figure("expandable_reserved_peak")? / used,
        figure("async_reserved_peak")? / used,
    ))
}

/// What PyTorch's allocators reserved at most for the run, with sizes divided as the replay's are.
fn references(trace: &Trace, divisor: u64) -> Result<Vec<(&'static str, u64)>> {
    let known = [
        ("native_reserved_peak", "PyTorch, native"),
        ("expandable_reserved_peak", "PyTorch, expandable segments"),
        ("async_reserved_peak", "PyTorch, cudaMallocAsync"),
    ];
    let mut found = Vec::new();
    for (key, name) in known {
        found.extend(trace.number(key)?.map(|bytes| (name, bytes as u64 / divisor)));
    }
    Ok(found)
}

/// What sizes are divided by for the run to fit into what is free of the device's memory.
fn divisor(trace: &Trace, device: Device) -> Result<u64> {
    const ROOM: f64 = 1.2;
    let peak = trace.number("alloc_peak")?.unwrap_or(0.0);
    let room = device.primary_context()?.memory_info()?.free as f64;
    Ok((ROOM * peak / room).ceil().clamp(1.0, peak.max(1.0)) as u64)
}

fn over(reserved: u64, active: u64) -> f64 {
    reserved as f64 / active.max(1) as f64
}

fn bytes(count: u64) -> Result<String> {
    Ok(report::bytes(usize::try_from(count)?))
}

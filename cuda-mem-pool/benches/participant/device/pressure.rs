//! A kernel that is bound by the device's memory, alone and while another thread allocates with hardly any memory left.

use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use cuda_mem_pool::cuda_mem_core::{Event, Stream};
use cuda_mem_pool::{
    Allocation, DeviceAccessible, DeviceMemoryResource, DeviceMemoryResourceOptions, MemoryResource,
};

use super::allocator::Allocator;
use super::engines::Mt19937;
use super::kernels::Kernels;
use crate::machine::Machine;
use crate::protocol::{Answer, Outcome, Request};

/// Enough threads to fill any device.
const GRID: [u32; 2] = [132 * 16, 512];

/// What the allocating thread is told, and what it tells.
#[derive(Default)]
struct Orders {
    allocate: AtomicBool,
    end: AtomicBool,
    allocations: AtomicU64,
    refusals: AtomicU64,
}

pub(crate) fn measure<A: Allocator>(
    allocator: &A,
    stream: &Stream,
    kernels: &Kernels,
    machine: &Machine,
    request: &Request,
) -> Outcome {
    let (bytes, room) = (request.number::<usize>("bytes")?, request.number::<usize>("room")?);
    let (launches, repeats) = (request.number("launches")?, request.number::<usize>("repeats")?);
    let pool = DeviceMemoryResource::new(&machine.context, &DeviceMemoryResourceOptions::default())?;
    let data = pool.allocate(bytes, &machine.stream)?;
    // The rest of the device is taken, so that whoever allocates has to make do with what it has.
    let _ballast = match request.number::<u32>("ballast")? {
        0 => None,
        _ => Some(ballast(&pool, machine, room)?),
    };
    let kernel = kernels.find(c"add_one_u32")?;
    let words = [data.as_raw(), (bytes / 4) as u64];
    let timed = || -> Result<f64, Box<dyn Error>> {
        let (start, end) = (Event::with_timing(&machine.context)?, Event::with_timing(&machine.context)?);
        machine.stream.record(&start)?;
        for _ in 0..launches {
            // SAFETY: the kernel's own parameters; the data lives until the stream was waited for below.
            unsafe { kernels.launch(&machine.stream, kernel, GRID, &words)? };
        }
        machine.stream.record(&end)?;
        machine.stream.synchronize()?;
        Ok(end.elapsed_since(&start)?.as_secs_f64())
    };
    let orders = Orders::default();
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    thread::scope(|scope| {
        let other = scope.spawn(|| allocate(allocator, stream, room, &orders));
        let mut both = || {
            timed()?;
            for _ in 0..repeats {
                orders.allocate.store(false, Ordering::SeqCst);
                alone.push(timed()?);
                orders.allocate.store(true, Ordering::SeqCst);
                beside.push(timed()?);
            }
            Ok::<_, Box<dyn Error>>(())
        };
        let measured = both();
        orders.end.store(true, Ordering::SeqCst);
        let ended = other.join().map_err(|_| "the allocating thread died")?;
        measured.and(Ok(ended?))
    })?;
    Ok(Answer::Figures(vec![
        ("slowdown", median(beside) / median(alone)),
        ("allocations", orders.allocations.load(Ordering::Relaxed) as f64),
        ("refusals", orders.refusals.load(Ordering::Relaxed) as f64),
    ]))
}

/// All memory of the device but `room` bytes.
fn ballast(
    pool: &DeviceMemoryResource,
    machine: &Machine,
    room: usize,
) -> Result<Allocation<DeviceAccessible>, Box<dyn Error>> {
    let free = machine.context.memory_info()?.free;
    let bytes = free.checked_sub(room).ok_or_else(|| format!("{free} bytes are free, {room} are needed"))?;
    Ok(pool.allocate(bytes, &machine.stream)?)
}

/// Frees and allocates blocks of 512 bytes to a sixteenth of the room, with nineteen twentieths of it live.
fn allocate<A: Allocator>(
    allocator: &A,
    stream: &Stream,
    room: usize,
    orders: &Orders,
) -> Result<(), String> {
    let mut engine = Mt19937::new(0);
    let (mut live, mut total) = (Vec::new(), 0);
    let octaves = (room as f64 / 16.0 / 512.0).log2();
    let give_back = |live: &mut Vec<(u64, usize)>, engine: &mut Mt19937| {
        let index = engine.next() as usize % live.len().max(1);
        let Some((address, bytes)) = (index < live.len()).then(|| live.swap_remove(index)) else { return 0 };
        // SAFETY: allocated below, freed once; no work uses it.
        unsafe { allocator.free(address) };
        bytes
    };
    while !orders.end.load(Ordering::Relaxed) {
        if !orders.allocate.load(Ordering::Relaxed) {
            thread::yield_now();
            continue;
        }
        let bytes = (512.0 * (engine.canonical() * octaves).exp2()) as usize;
        while total + bytes > room / 20 * 19 {
            total -= give_back(&mut live, &mut engine);
        }
        match allocator.allocate(bytes, stream) {
            Ok(address) => {
                live.push((address, bytes));
                total += bytes;
                orders.allocations.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) if error.is_out_of_memory() && !live.is_empty() => {
                orders.refusals.fetch_add(1, Ordering::Relaxed);
                total -= give_back(&mut live, &mut engine);
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    while !live.is_empty() {
        give_back(&mut live, &mut engine);
    }
    Ok(())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

//! What each rank does in a case. Both do the same, and begin together.

use std::error::Error;
use std::time::Instant;

use cuda_mem_ipc::cuda_mem_pool::cuda_mem_core::{DeviceBuffer, copy};
use cuda_mem_ipc::symmetric::SymmetricMemory;

use crate::board::Board;
use crate::rank::{LEN, Rank, expect};
use crate::timed::{Part, Spent};

type Found = Result<Vec<f64>, Box<dyn Error>>;

/// Copies before the clock runs.
const WARM_UP: usize = 2;

pub(crate) fn play(rank: &mut Rank, board: &Board, asked: &str) -> Found {
    let mut words = asked.split_whitespace();
    let case = words.next().unwrap_or_default();
    let numbers = words.map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    match (case, &numbers[..]) {
        ("start", &[bytes]) => start(rank, board, bytes),
        ("inside", &[times, bytes]) => inside(rank, board, times, bytes),
        ("fresh", &[times, bytes]) => fresh(rank, board, times, bytes),
        ("read", &[times, bytes]) => read(rank, board, times, bytes),
        _ => Err(format!("no rank plays `{asked}`").into()),
    }
}

/// From a context to the first memory that the other rank can be read in.
fn start(rank: &mut Rank, board: &Board, bytes: usize) -> Found {
    board.meet(0)?;
    let start = Instant::now();
    rank.join()?;
    let joined = start.elapsed();
    let buffer = rank.empty(bytes)?;
    let memory = buffer.rendezvous(None)?;
    let taken = slowest(board, nanoseconds(start))? / 1e6;
    read_back(rank, board, &*memory, 1)?;
    rank.kept.push((buffer, memory));
    Ok(vec![taken, joined.as_secs_f64() * 1e3])
}

/// Allocations that fit what is mapped.
fn inside(rank: &mut Rank, board: &Board, times: usize, bytes: usize) -> Found {
    let mut held = Vec::with_capacity(times);
    // Whatever it takes to have room for all of them.
    for _ in 0..times {
        let buffer = rank.empty(bytes)?;
        let memory = buffer.rendezvous(None)?;
        held.push((buffer, memory));
    }
    board.meet(0)?;
    held.clear();
    let (mut taken, calls) = ([const { Vec::new() }; 3], rank.driver_calls());
    for _ in 0..times {
        board.meet(0)?;
        let start = Instant::now();
        let buffer = rank.empty(bytes)?;
        let allocated = nanoseconds(start);
        // So that no rank waits for the other's allocation.
        board.meet(0)?;
        let start = Instant::now();
        let memory = buffer.rendezvous(None)?;
        let met = nanoseconds(start);
        let parts = [allocated + met, allocated, met];
        taken.iter_mut().zip(parts).for_each(|(all, one)| all.push(one as f64));
        held.push((buffer, memory));
    }
    if rank.driver_calls() != calls {
        return Err("the driver was called for memory that is mapped".into());
    }
    for (number, (_, memory)) in held.iter().enumerate().step_by(times.div_ceil(4).max(1)) {
        read_back(rank, board, &**memory, stamp(number))?;
    }
    board.meet(0)?;
    let [whole, allocate, rendezvous] = &mut taken;
    Ok(vec![
        percentile(whole, 50),
        percentile(whole, 99),
        percentile(allocate, 50),
        percentile(rendezvous, 50),
    ])
}

/// Allocations that stay, each larger than what the others leave of a segment.
fn fresh(rank: &mut Rank, board: &Board, times: usize, bytes: usize) -> Found {
    let mut taken = [const { Vec::new() }; 15];
    let mut grown = Vec::new();
    for number in 0..times {
        let before = rank.free_memory()?;
        board.meet(0)?;
        Spent::take();
        let start = Instant::now();
        let buffer = rank.empty(bytes)?;
        let allocated = nanoseconds(start);
        let making = Spent::take();
        let memory = buffer.rendezvous(None)?;
        let met = nanoseconds(start);
        let mapping = Spent::take();
        rank.read(&*memory)?;
        let all = nanoseconds(start);
        let slowest = slowest(board, all)? / 1e3;
        let [allocate, rendezvous] = [allocated, met - allocated].map(|part| part as f64 / 1e3);
        let parts = [
            slowest,
            allocate,
            rendezvous,
            (all - met) as f64 / 1e3,
            making.on(Part::Create),
            making.on(Part::Export),
            making.on(Part::Map),
            making.on(Part::Access),
            making.on(Part::Clear),
            // What is no driver call: books and messages here, messages and the other rank there.
            allocate - making.all(),
            mapping.on(Part::Import),
            mapping.on(Part::Map),
            mapping.on(Part::Access),
            rendezvous - mapping.all(),
            making.on(Part::Register) + mapping.on(Part::Register),
        ];
        taken.iter_mut().zip(parts).for_each(|(all, one)| all.push(one));
        if rank.free_memory()? < before {
            grown.push(slowest);
        }
        read_back(rank, board, &*memory, stamp(number))?;
        rank.kept.push((buffer, memory));
    }
    let mut found = taken.iter_mut().map(|values| percentile(values, 50)).collect::<Vec<_>>();
    found.push(percentile(&mut grown, 50));
    Ok(found)
}

/// Copies from the other rank's device by the first, while the other's does nothing.
fn read(rank: &mut Rank, board: &Board, times: usize, bytes: usize) -> Found {
    if rank.kept.last().is_none_or(|(buffer, _)| buffer.bytes() != bytes) {
        let buffer = rank.empty(bytes)?;
        let memory = buffer.rendezvous(None)?;
        rank.kept.push((buffer, memory));
    }
    let (_, memory) = rank.kept.last().ok_or("there is no memory")?;
    let marks = [0, bytes / 2, bytes.saturating_sub(LEN)];
    for (mark, stamp) in marks.into_iter().zip(1..) {
        rank.write(&**memory, mark..mark + LEN, stamp)?;
    }
    board.meet(0)?;
    let mut rate = 0.0;
    if rank.number == 0 {
        let target = DeviceBuffer::<u8>::zeroed(&rank.stream, bytes)?;
        let source = memory.get_buffer(rank.other(), 0..bytes)?;
        {
            let (from, to) = (source.on(&rank.stream)?, target.on(&rank.stream)?);
            // SAFETY: `bytes` bytes on both sides, which know of the stream.
            let copy = || unsafe { copy::memcpy_async(&rank.stream, to.address(), from.address(), bytes) };
            (0..WARM_UP).try_for_each(|_| copy())?;
            rank.stream.synchronize()?;
            let start = Instant::now();
            (0..times).try_for_each(|_| copy())?;
            rank.stream.synchronize()?;
            rate = (bytes * times) as f64 / nanoseconds(start) as f64;
        }
        let found = target.to_vec(&rank.stream)?;
        for (mark, stamp) in marks.into_iter().zip(1..) {
            expect(&found[mark..mark + LEN], stamp)?;
        }
    }
    board.meet(0)?;
    Ok(vec![rate])
}

/// Each rank writes, and finds what the other has written.
fn read_back(
    rank: &Rank,
    board: &Board,
    memory: &dyn SymmetricMemory,
    stamp: u8,
) -> Result<(), Box<dyn Error>> {
    let of = |rank: usize| stamp.wrapping_add(128 * u8::from(rank > 0));
    rank.write(memory, 0..LEN, of(rank.number))?;
    board.meet(0)?;
    rank.read(memory)?;
    rank.expect(of(rank.other()))
}

/// What the slower rank took.
fn slowest(board: &Board, taken: u64) -> Result<f64, Box<dyn Error>> {
    Ok(board.meet(taken)?.into_iter().max().unwrap_or(taken) as f64)
}

/// Numbers of allocations, as far as half a byte's values tell them apart.
fn stamp(number: usize) -> u8 {
    // Of the remainder nothing is cut off.
    (number % 127) as u8 + 1
}

fn nanoseconds(since: Instant) -> u64 {
    // Five hundred years fit.
    since.elapsed().as_nanos() as u64
}

/// The value that so many of a hundred do not exceed; no number if there is none.
fn percentile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) * percent / 100).copied().unwrap_or(f64::NAN)
}
